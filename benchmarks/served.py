"""A server in a process of its own, as a user starts it, and what it takes: CPU by thread, resident memory."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class CPU:
    """Seconds of CPU so far. events: of the API processes, which is all of HTTP; engine: of the engine's processes."""

    events: float
    engine: float

    def __sub__(self, earlier: CPU) -> CPU:
        return CPU(self.events - earlier.events, self.engine - earlier.engine)


def _seconds(stat: Path) -> float:
    """CPU of a process or a thread."""
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def process_seconds(number: int) -> float:
    """CPU of a process, by its id, all threads together."""
    return _seconds(Path(f"/proc/{number}/stat"))


def tree_seconds(number: int) -> float:
    """CPU of a process and of all below it that are there."""
    total = 0.0
    with contextlib.suppress(OSError):  # it has ended meanwhile
        total += process_seconds(number)
        for thread in Path(f"/proc/{number}/task").iterdir():
            total += sum(map(tree_seconds, map(int, (thread / "children").read_text().split())))
    return total


def _proportional_mb(number: int) -> float:
    """Return the megabytes of a process and of all below it (PSS)."""
    total = 0.0
    with contextlib.suppress(OSError):  # it has ended meanwhile
        lines = Path(f"/proc/{number}/smaps_rollup").read_text().splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e6
        for thread in Path(f"/proc/{number}/task").iterdir():
            total += sum(map(_proportional_mb, map(int, (thread / "children").read_text().split())))
    return total


class Server:
    """`inflight serve` on a free port; `port` is known once it is ready. Use it in `with`.

    seconds_to_ready: from starting the command to its line that says so.
    """

    def __init__(self, *arguments: str, python: str = sys.executable, program: Sequence[str] = ("-m", "inflight.cli")):
        """python: the interpreter that runs it. program: what it runs, as its arguments."""
        started = time.perf_counter()
        self.log = tempfile.TemporaryFile()  # noqa: SIM115  # closed in stop()
        self.process = subprocess.Popen(
            [python, *program, "serve", "--port", "0", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=self.log,
        )
        self.port = 0
        while not self.port:
            found = re.search(r"Ready at http://\S+?:(\d+)", self.lines())
            if found:
                self.port = int(found[1])
            elif self.process.poll() is not None:
                raise RuntimeError(f"The server did not start:\n{self.lines()}")
            else:
                time.sleep(0.005)
        self.seconds_to_ready = time.perf_counter() - started

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            print(self.lines(), file=sys.stderr)  # an error of the client's is often the server's end
        self.stop()

    def lines(self) -> str:
        """Return what it has written to standard error."""
        return os.pread(self.log.fileno(), 2**20, 0).decode()

    def cpu(self) -> CPU:
        events = sum(process_seconds(one) for one in self.api_processes())
        return CPU(events, sum(process_seconds(one) for one in self._running(b"inflight.launch.engine_process")))

    def api_processes(self) -> list[int]:
        """Return the ids of the processes with HTTP; with several models or replicas that is the first process."""
        return self._running(b"inflight.server.processes.child") or [self.process.pid]

    def _running(self, module: bytes) -> list[int]:
        started = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(one) for one in started if module in (Path("/proc") / one / "cmdline").read_bytes()]

    def resident_mb(self) -> float:
        """Megabytes of all its processes; pages that several share count once."""
        return _proportional_mb(self.process.pid)

    def stop(self) -> int:
        """Ends it as a service manager would; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self.log.close()
        return code
