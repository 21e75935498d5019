"""The asking side: an engine in a process of its own, what it is sent, and what was observed of each request."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peers.stepping import Job, Work
from inflight.metrics.observation import Observation

_ROOT = Path(__file__).parents[2]  # where `benchmarks` can be imported
_PATIENCE = 1800.0
_NOT_INHERITED = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")  # an engine keeps compiled modules, as installed programs do


class EngineFailed(RuntimeError):
    """The process ended, or did not do as it was asked; the sentence has its last words."""


class EngineProcess:
    """Started when made, loaded when `ready` returns. While it is asked nothing it waits for its input.

    patience: seconds for an answer; an engine that takes longer hangs, and is killed.
    """

    def __init__(
        self, python: Path, module: str, environment: Mapping[str, str], job: Job, patience: float = _PATIENCE
    ):
        inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        self._patience = patience
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed in close()
        self.started = time.monotonic()
        self._process = subprocess.Popen(
            [str(python), "-m", module],
            cwd=_ROOT,
            env={**inherited, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._job = job

    def ready(self) -> dict[str, Any]:
        """Have the job loaded; its version and the settings that it chose itself. Once, before anything is sent."""
        self._send(asdict(self._job))
        return self._answer()

    def send(self, works: Sequence[Work]) -> list[Observation]:
        """Once all have got their tokens. Times are of the system's monotonic clock."""
        self._send([[one.arrival, one.prompt, one.output_tokens] for one in works])
        answer = self._answer()
        return [
            _observation(str(index), one, answer["start"], times)
            for index, (one, times) in enumerate(zip(works, answer["times"], strict=True))
        ]

    def peak_resident_bytes(self) -> int:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024

    def close(self) -> None:
        """The end of its input is the end of it; one that does not take notice is killed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it ended before
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def _send(self, line: object) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise EngineFailed(self._last_words()) from None

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        answered, _, _ = select.select([self._process.stdout], [], [], self._patience)
        if not answered:
            self._process.kill()
            raise EngineFailed(f"it gave no answer within {self._patience:g} s")
        line = self._process.stdout.readline()
        if not line:
            raise EngineFailed(self._last_words())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_words(self) -> str:
        self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines() or ["it said nothing"]
        errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
        return f"exit status {self._process.returncode}: {(errors or lines)[-1]}"


def _observation(request_id: str, work: Work, start: float, times: list[float]) -> Observation:
    if len(times) != work.output_tokens:
        raise EngineFailed(f"it gave {len(times)} tokens where {work.output_tokens} were asked")
    return Observation(
        request_id,
        intended=start + work.arrival,
        ended=times[-1],
        first_token=times[0],
        last_token=times[-1],
        token_times=times,
        prompt_tokens=len(work.prompt),
        output_tokens=len(times),
        longest_output=len(times),
    )
