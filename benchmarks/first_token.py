"""From nothing to the first token of a GGUF file, beside llama.cpp: time of the processor, time on the clock, memory.

Starts `inflight run` and llama.cpp's library (`peers/first_token_llama.py`, in the environment of `--llama`) on the
same files in turns, and `inflight serve`, whose first token comes over HTTP, which the library has not. What a process
and those that it started have used is read when the first byte of the answer comes. Files are in the page cache, and
modules compiled to bytecode, as they are after a first use. One thread by default: threads that spin while others are
late are counted as work, and on a machine that does other work too they are late.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from benchmarks.gguf_shapes import write_gguf
from benchmarks.results import table, write_section
from inflight.counted import counted
from inflight.execution.checkpoints.hub import resolve_model
from inflight.models.gguf.gguf_model import gguf_at

_MODELS = ("gemma3-270m", "smollm2")  # of `inflight pull`
_SHAPES = ("Q4_K_M", "experts-Q4_K_M")  # of random weights
_PROMPT = "The first token of a text is"
_LLAMA = Path(__file__).parent / "peers" / "first_token_llama.py"
_INFLIGHT = (sys.executable, "-c", "from inflight.__main__ import main; main()")  # as the installed command does
_READY = re.compile(rb"Ready at (http://\S+?) ")
_TICKS = os.sysconf("SC_CLK_TCK")
RUN, SERVE, PEER = "`inflight run`", "`inflight serve`", "llama.cpp"


class Cost(Struct, frozen=True):
    """processor, wall: seconds from the start to the first token. peak: resident bytes of the largest process."""

    processor: float
    wall: float
    peak: int


class Started:
    """A process that is measured, and all that it starts."""

    def __init__(self, command: Sequence[str], bytecode: Path, environment: Mapping[str, str] | None = None) -> None:
        """bytecode: a folder for compiled modules, which installed programs have beside their own. environment: what
        the process has in addition."""
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed in close()
        self._began = time.perf_counter()
        self.process = subprocess.Popen(
            command,
            env={**inherited, "PYTHONPYCACHEPREFIX": str(bytecode), **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )

    def first_byte(self) -> bytes:
        """Wait for output. Raises RuntimeError where there is none."""
        assert self.process.stdout is not None
        return os.read(self.process.stdout.fileno(), 1) or self.fail()

    def fail(self) -> bytes:
        raise RuntimeError(f"{self.process.args!r} ended without an answer: {self.errors()[-800:].decode()}")

    def errors(self) -> bytes:
        self._errors.seek(0)
        return self._errors.read()

    def cost(self) -> Cost:
        """Return what the server has used until now."""
        wall = time.perf_counter() - self._began
        family = _family(self.process.pid)
        peaks = [int(found[1]) * 1024 for pid in family if (found := re.search(r"VmHWM:\s+(\d+)", _of(pid, "status")))]
        ticks = sum(sum(map(int, _of(pid, "stat").rpartition(")")[2].split()[11:15])) for pid in family)
        return Cost(ticks / _TICKS, wall, max(peaks))

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate(b"")
        self._errors.close()


def _of(pid: int, name: str) -> str:
    return Path(f"/proc/{pid}/{name}").read_text()


def _family(pid: int) -> list[int]:
    """A process, those that it started, and theirs."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        children += (thread / "children").read_text().split() if thread.name != str(pid) else []
    return [pid, *(one for child in children for one in _family(int(child)))]


def inflight_run(path: Path, threads: int, bytecode: Path) -> Cost:
    options = ["--raw", "--temperature", "0", "--max-tokens", "64", "--threads", str(threads)]
    started = Started([*_INFLIGHT, "run", "--model", str(path), *options, _PROMPT], bytecode)
    try:
        started.first_byte()
        return started.cost()
    finally:
        started.close()


def inflight_serve(path: Path, threads: int, bytecode: Path) -> Cost:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--port", str(port), "--threads", str(threads)]
    started = Started([*_INFLIGHT, "serve", "--model", str(path), *options], bytecode)
    try:
        while (found := _READY.search(started.errors())) is None:
            if started.process.poll() is not None:
                started.fail()
            time.sleep(0.005)
        body = {"model": path.stem, "prompt": _PROMPT, "temperature": 0, "max_tokens": 64, "stream": True}
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{found[1].decode()}/v1/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request) as answer:
            answer.read(1)
            return started.cost()
    finally:
        started.process.terminate()
        started.close()


def llama(python: Path) -> Callable[[Path, int, Path], Cost]:
    """Return a start of llama.cpp. python: of an environment that `peers/setup.sh` made, or one with the bindings."""
    environment: dict[str, str] = {}
    source, build = python.parents[1] / "source", python.parents[1] / "build/bin"
    if source.is_dir() and build.is_dir():
        environment = {"PYTHONPATH": str(source), "LLAMA_CPP_LIB_PATH": str(build)}

    def measure(path: Path, threads: int, bytecode: Path) -> Cost:
        command = [str(python), str(_LLAMA), str(path), _PROMPT, str(threads)]
        started = Started(command, bytecode, environment)
        try:
            started.first_byte()
            return started.cost()
        finally:
            started.close()

    return measure


def _rows(path: Path, costs: dict[str, list[Cost]]) -> list[list[str]]:
    """Medians; ratios to llama.cpp are medians of those of single turns."""
    rows = []
    for name, runs in costs.items():
        cells = []
        for value in ("processor", "wall"):
            own = [getattr(one, value) for one in runs]
            beside = [getattr(one, value) for one in costs.get(PEER, ())]
            ratio = statistics.median(a / b for a, b in zip(own, beside, strict=True)) if beside else None
            cells += [f"{statistics.median(own):.2f}", "" if ratio is None or name != RUN else f"{ratio:.2f}×"]
        peak = statistics.median(one.peak for one in runs)
        rows.append([f"{path.name}, {path.stat().st_size / 1e6:,.0f} MB", name, *cells, f"{peak / 2**20:,.0f}"])
    return rows


def _parts(path: Path, threads: int, bytecode: Path) -> str:
    """The line in which `inflight run --verbose` says what its start took."""
    options = ["--raw", "--verbose", "--max-tokens", "1", "--threads", str(threads)]
    started = Started([*_INFLIGHT, "run", "--model", str(path), *options, _PROMPT], bytecode)
    try:
        started.first_byte()
        lines = started.errors().decode().splitlines()
        return f"{path.name}: {next(one for one in lines if one.startswith('start: '))}"
    finally:
        started.close()


def _files(folder: Path) -> Iterator[Path]:
    """Two trained models, then two shapes with random weights, each written when it is its turn and removed after."""
    for name in _MODELS:
        files = gguf_at(resolve_model(name))
        assert files is not None, f"{name} is a GGUF file"
        yield files.path
    for kind in _SHAPES:
        path = write_gguf(folder / f"{'0.5B' if kind == _SHAPES[0] else 'mixture'}-{_SHAPES[0]}.gguf", kind)
        yield path
        path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--file", type=Path, action="append", help="a GGUF file; several (default: of two models, two shapes)"
    )
    parser.add_argument("--llama", type=Path, help="Python with llama-cpp-python (`benchmarks/peers/setup.sh`)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    engines: dict[str, Callable[[Path, int, Path], Cost]] = {RUN: inflight_run}
    if arguments.llama is not None:
        engines[PEER] = llama(arguments.llama.absolute())
    engines[SERVE] = inflight_serve
    rows, parts = [], []
    with tempfile.TemporaryDirectory() as folder:
        bytecode = Path(folder) / "bytecode"
        for path in arguments.file or _files(Path(folder)):
            costs: dict[str, list[Cost]] = {name: [] for name in engines}
            for turn in range(arguments.repeats + 1):  # the first fills the page cache and is not counted
                for name, measure in engines.items():
                    cost = measure(path, arguments.threads, bytecode)
                    costs[name] += [cost] if turn else []
            rows += _rows(path, costs)
            parts.append(_parts(path, arguments.threads, bytecode))
    head = ["file", "from the start to the first token", "CPU, s", "of llama.cpp's", "wall, s", "of llama.cpp's"]
    body = table([*head, "peak resident, MiB"], rows)
    conditions = f"{counted(arguments.threads, 'thread')}, medians of {arguments.repeats} in turns."
    body = f"{conditions}\n\n{body}\n\nBy `inflight run --verbose`:\n\n" + "\n".join(f"- {one}" for one in parts)
    print(body)
    if arguments.write:
        command = f"python -m benchmarks.first_token --llama PYTHON --repeats {arguments.repeats}"
        write_section("first_token", "From nothing to the first token of a GGUF file, beside llama.cpp", command, body)


if __name__ == "__main__":
    main()
