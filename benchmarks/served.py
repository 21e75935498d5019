"""A server in a process of its own, as a user starts it, and what it takes: CPU by thread, resident memory.

Knows the command line and /proc; nothing of what is asked of the server.
"""

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
    """Seconds of CPU so far. events: the event loop's thread, which is all of HTTP, with the API processes where there
    are some; engine: every other thread."""

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
        """What it has written to standard error."""
        return os.pread(self.log.fileno(), 2**20, 0).decode()

    def cpu(self) -> CPU:
        events = engine = 0.0
        for thread in Path(f"/proc/{self.process.pid}/task").iterdir():
            seconds = _seconds(thread / "stat")
            if int(thread.name) == self.process.pid:
                events += seconds
            else:
                engine += seconds
        for child in self._api_processes():
            events += _seconds(child / "stat")
        return CPU(events, engine)

    def _api_processes(self) -> list[Path]:
        started = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        folders = [Path("/proc") / one for one in started]
        return [one for one in folders if b"inflight.server.processes.child" in (one / "cmdline").read_bytes()]

    def resident_mb(self) -> float:
        """Megabytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024 / 1e6

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
