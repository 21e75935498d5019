"""The clock on `/health`: `python -m benchmarks.attack.health PORT FILE PID`; a line of JSON for every question.

Asks over one connection every 20 ms; times that pass while it waits for an answer are left out here, and made
up for where the waits are counted. What the process itself waited for a core, as Linux reports it, does not count
against the server. What the server's event loop waited for a core is written down beside. Ends with its standard input.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path

from benchmarks.attack.parent import end_with_parent
from benchmarks.attack.wire import HOST

EVERY = 0.02  # seconds
LOST = 30.0  # seconds after which a question counts as unanswered
_QUESTION = f"GET /health HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()


class Clock:
    """failures: questions that had no answer 200; each brings a new connection."""

    def __init__(self, port: int):
        self._port = port
        self._line: socket.socket | None = None
        self.failures = 0

    def wait(self) -> float:
        """Ask now; seconds to the answer's end."""
        began, waited = time.perf_counter(), _waited()
        if not self._ask():
            self.failures += 1
            self._close()
        return max(0.0, time.perf_counter() - began - (_waited() - waited))

    def _ask(self) -> bool:
        try:
            if self._line is None:
                self._line = socket.create_connection((HOST, self._port), LOST)
                self._line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._line.sendall(_QUESTION)
            answer = b""
            while not answer.endswith(b"}") and (piece := self._line.recv(4096)):
                answer += piece
            return answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"}")
        except OSError:
            return False

    def _close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None


def _waited(thread: str = "thread-self") -> float:
    """Seconds for which a thread was ready and others had the core."""
    try:
        return int(Path(f"/proc/{thread}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def main() -> None:
    end_with_parent()
    clock, loop = Clock(int(sys.argv[1])), f"{sys.argv[3]}/task/{sys.argv[3]}"
    due = time.perf_counter()
    with open(sys.argv[2], "w", encoding="ascii", buffering=1) as file:
        while True:
            due += EVERY
            while due < (now := time.perf_counter()):  # what was due meanwhile is counted by the reader
                due += EVERY
            time.sleep(due - now)
            before = clock.failures
            wait = clock.wait()
            entry = (due, wait, clock.failures - before, time.perf_counter(), _waited(loop))
            file.write(json.dumps([round(one, 6) for one in entry]) + "\n")


if __name__ == "__main__":
    main()
