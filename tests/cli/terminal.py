"""Command lines for tests: in this process, or in one of their own where signals, pipes or a terminal matter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from inflight.cli import call

COMMAND = [sys.executable, "-m", "inflight.cli"]


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    def sentence(self) -> str:
        """The one sentence of an error."""
        assert self.code in (1, 2), (self.code, self.out, self.err)
        assert "Traceback" not in self.err
        result = [line for line in self.err.splitlines() if line.startswith(("inflight: ", "Error: "))]
        assert len(result) == 1, self.err
        sentence = result[0].partition(": ")[2]
        assert sentence.endswith((".", ")", "?")), sentence
        return sentence


class Caller:
    """Calls `inflight` in this process, on a model folder unless that is left out."""

    def __init__(self, capture: pytest.CaptureFixture[str], model: Path | None) -> None:
        self._capture, self._model = capture, model

    def __call__(self, verb: str, *arguments: object, model: bool = True) -> CommandResult:
        chosen = ["--model", str(self._model)] if model and self._model else []
        code = call([verb, *chosen, "--threads", "1", *(str(one) for one in arguments)])
        out, err = self._capture.readouterr()
        return CommandResult(code, out, err)


def spawn(*arguments: object, **settings: Any) -> subprocess.Popen[bytes]:
    """A process of its own, with pipes for its three streams unless `settings` say otherwise."""
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}
    return subprocess.Popen([*COMMAND, *(str(one) for one in arguments)], env=environment, **{**streams, **settings})


def finished(process: subprocess.Popen[bytes], typed: bytes | None = None) -> CommandResult:
    out, err = process.communicate(typed, timeout=60)
    return CommandResult(process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))


def write_lines(path: Path, *lines: Any) -> Path:
    """JSON lines; strings are written as they are."""
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines), "utf-8")
    return path
