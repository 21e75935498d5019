"""Measure what the start of a GGUF model costs, part by part: time of the processor, time on the clock, memory.

Writes a file of a real size with random weights (`gguf_shapes`), starts `inflight run` on it for one token, and runs
the parts of the same start one after the other in a process of their own. A start has two of them at once, the text and
the weights, so it takes less on the clock than its parts do together. The processor's time counts all threads' and what
the system does for them, most of it the first touch of memory; on a machine that does other work too it is the figure
to compare.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from benchmarks.gguf_shapes import KINDS, write_gguf
from benchmarks.results import table, write_section

_CHILD = "--in-child"


class Cost(Struct, frozen=True):
    """user, system: seconds of the processor, of all threads. wall: on the clock. peak: resident bytes so far."""

    name: str
    user: float
    system: float
    wall: float
    peak: int


def whole_start(path: Path, threads: int | None) -> Cost:
    """`inflight run` to the end of its only token, as a process."""
    command = [sys.executable, "-m", "inflight.cli", "run", "Hello", "--model", str(path), "--max-tokens", "1"]
    command += [] if threads is None else ["--threads", str(threads)]
    started = time.perf_counter()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=Path.cwd()
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"inflight run ended with {process.returncode}; start it by hand to see why.")
    wall = time.perf_counter() - started
    return Cost("`inflight run`, one token", used.ru_utime, used.ru_stime, wall, used.ru_maxrss * 1024)


def parts_of_start(path: Path, threads: int | None) -> list[Cost]:
    """In a process of their own, one after the other."""
    command = [sys.executable, "-m", "benchmarks.start", _CHILD, str(path)]
    command += [] if threads is None else ["--threads", str(threads)]
    run = subprocess.run(command, capture_output=True, check=True, text=True)
    return [Cost(**one) for one in json.loads(run.stdout)]


class _Meter:
    def __init__(self) -> None:
        self.costs: list[Cost] = []
        self._user, self._system, self._wall = self._now()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._user, self._system, self._wall = self._now()
        yield
        self.end(name)

    def end(self, name: str) -> None:
        """End a part that began with the end of the one before, or as `part` says."""
        user, system, wall = self._now()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self.costs.append(Cost(name, user - self._user, system - self._system, wall - self._wall, peak))
        self._user, self._system, self._wall = user, system, wall

    def _now(self) -> tuple[float, float, float]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime, used.ru_stime, time.perf_counter()


def _in_child(path: Path, threads: int | None) -> list[Cost]:
    """Return what a start does, in the order of its parts. Only the first imports anything of inflight."""
    meter = _Meter()
    with meter.part("imports"):
        from inflight.config.threads import load_numpy

        load_numpy()
        import tokenizers  # noqa: F401

        from inflight.config.engine import EngineSettings
        from inflight.config.threads import resolve_threads
        from inflight.execution.backends import open_backend
        from inflight.execution.checkpoints.checkpoint import open_checkpoint
        from inflight.execution.weights import load_weights
        from inflight.models.gguf.gguf_model import GGUFModel
        from inflight.models.registry import read_folder
        from inflight.text import ChatTemplate, Tokenizer
    with meter.part("header of the file"):
        model = GGUFModel(path)
    with meter.part("spec"):
        spec = read_folder(model, to_run=True)
    with meter.part("tokenizer"):
        tokenizer = Tokenizer.load(model)
    with meter.part("chat template"):
        ChatTemplate.load(model).compile()
    with meter.part("backend and its threads"):
        count = int(resolve_threads(EngineSettings(threads=threads)).value)
        backend = open_backend("bfloat16", count)
    seen: list[int] = []

    def packed(done: int, total: int) -> None:
        if not seen:
            meter.end("tables: read, packed, first touched")
        seen.append(done)

    with meter.part("layers: read, packed, first touched"):
        weights = load_weights(spec, open_checkpoint(model), backend, spec.default_model_len, packed)
    assert tokenizer.vocab_size and weights.nbytes
    del weights, backend
    with meter.part("whole engine, by then imported"):
        from inflight.build import build_engine

        engine = build_engine(EngineSettings(model=str(path), threads=threads))
    with meter.part("first token"):
        from inflight.core.types.sampling import SamplingParams
        from inflight.frontend.offline import Offline

        ids = engine.prompts.tokens("Hello")
        offline = Offline(engine.loop, engine.tokenizer)
        request = engine.prompts.request("0", ids, SamplingParams(max_tokens=1), engine.loop.clock.now())
        collector = offline.add(request, "Hello")
        while not collector.finished:
            offline.step()
    return meter.costs


def _row(runs: list[Cost]) -> list[object]:
    """Medians of the runs of one part."""
    user, system, wall = (statistics.median(getattr(one, name) for one in runs) for name in ("user", "system", "wall"))
    peak = max(one.peak for one in runs)
    return [runs[0].name, f"{user:.3f}", f"{system:.3f}", f"{wall:.3f}", f"{peak / 2**20:,.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=sorted(KINDS), default="Q4_0", help="types of blocks of the file")
    parser.add_argument("--file", type=Path, help="a GGUF file to start, instead of one that is written")
    parser.add_argument("--threads", type=int, help="one thread: no spinning of one that waits for others is counted")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--write", action="store_true")
    parser.add_argument(_CHILD, type=Path, dest="child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        costs = _in_child(arguments.child, arguments.threads)
        print(json.dumps([{name: getattr(one, name) for name in Cost.__struct_fields__} for one in costs]))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.file or write_gguf(Path(folder) / "model.gguf", arguments.kind)
        whole_start(path, arguments.threads)  # the file is in the page cache from here on
        starts, parts = [], []
        for _ in range(arguments.repeats):
            starts.append(whole_start(path, arguments.threads))
            parts.append(parts_of_start(path, arguments.threads))
        size = path.stat().st_size
    rows = [_row(starts), *(_row(list(runs)) for runs in zip(*parts, strict=True))]
    body = table(["part", "CPU, user, s", "CPU, system, s", "wall, s", "peak resident so far, MiB"], rows)
    print(f"{arguments.file or arguments.kind}, {size / 1e6:,.0f} MB, medians of {arguments.repeats}\n\n{body}")
    if arguments.write:
        command = f"python -m benchmarks.start --kind {arguments.kind} --repeats {arguments.repeats}"
        title = f"The start of a GGUF model, part by part: {arguments.kind}"
        write_section(f"start {arguments.kind}", title, command, body)


if __name__ == "__main__":
    main()
