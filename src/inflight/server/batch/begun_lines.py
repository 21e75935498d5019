"""Which lines are being answered, written down before they are: so that a line that ends the process is found.

A line that crashes the process would do so again at every start. The file names each line before it is handed to the
engine, and again when that has ended. What a start finds there as begun was in flight when the process died: it counts
one unclean end more. The file survives the process, whatever kills it, because the kernel has what was written; it is
not synced, so that a line costs no wait for the disk. A power cut may lose the latest marks: it is no line's doing.

Knows the file and counts; what a count leads to, `RetryPolicy` knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Container
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from inflight.private_files import open_private

REWRITE_BYTES = 256 << 10  # written since the file was last made anew, with nothing in it but what counts
_RECORD = re.compile(rb"(batch_[0-9a-f]{32}) (\d{1,9}) (\d{1,3}) (begun|ended)\n")

Line = tuple[str, int]  # the job's id, the line's number


class BegunLines:
    """Called in one thread; the file is written in a thread of its own."""

    def __init__(self, path: Path):
        """Read what an earlier process left. Raises OSError where it cannot be read."""
        self._path = path
        self._begun: set[Line] = set()
        self._ends: dict[Line, int] = {}  # unclean ends in which the line was begun, where there were any
        self._read()
        self.found = len(self._begun)  # lines that were in flight when an earlier process died
        for line in self._begun:
            self._ends[line] = self._ends.get(line, 0) + 1
        self._begun.clear()
        self._written = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="inflight-begun-lines")
        with contextlib.suppress(OSError):  # a full disk: the first line that is begun waits for room
            self._rewrite(self._content())

    def close(self) -> None:
        """Returns when everything is written."""
        self._thread.shutdown()

    def ends(self, job: str, line: int) -> int:
        """Unclean ends so far in which the line was begun."""
        return self._ends.get((job, line), 0)

    async def begin(self, job: str, line: int) -> None:
        """On return the line is known as begun, also to the next process. Raises OSError."""
        self._begun.add((job, line))
        loop = asyncio.get_running_loop()
        if self._written < REWRITE_BYTES:
            await loop.run_in_executor(self._thread, self._append, self._record((job, line)))
        else:
            await loop.run_in_executor(self._thread, self._rewrite, self._content())
            self._written = 0

    def end(self, job: str, line: int) -> None:
        """The line is no longer in flight, with or without an answer."""
        self._begun.discard((job, line))
        self._thread.submit(self._append, self._record((job, line)))  # where that fails, a later `begin` reports it

    def crashed(self, job: str, line: int) -> None:
        """Count an unclean end of the engine that computed the line, where this process lives; `end` follows."""
        self._ends[job, line] = self.ends(job, line) + 1

    def forget_others(self, jobs: Container[str]) -> None:
        """Only lines of these jobs may still be run."""
        self._ends = {line: ends for line, ends in self._ends.items() if line[0] in jobs}

    # -- the file ---------------------------------------------------------------------------------------------------

    def _record(self, line: Line) -> bytes:
        state = "begun" if line in self._begun else "ended"
        record = f"{line[0]} {line[1]} {min(self.ends(*line), 999)} {state}\n".encode()
        self._written += len(record)
        return record

    def _content(self) -> bytes:
        return b"".join(self._record(line) for line in (*self._ends, *(self._begun - self._ends.keys())))

    def _read(self) -> None:
        """Tolerate what a full disk or a power cut left of a record."""
        try:
            with open(self._path, "rb", opener=open_private) as file:
                content = file.read()
        except FileNotFoundError:
            return
        for job, number, ends, state in _RECORD.findall(content):
            line = (job.decode(), int(number))
            self._begun.add(line) if state == b"begun" else self._begun.discard(line)
            self._ends[line] = int(ends)
        self._ends = {line: ends for line, ends in self._ends.items() if ends}

    def _append(self, record: bytes) -> None:
        with open(self._path, "ab", buffering=0, opener=open_private) as file:
            file.write(record)

    def _rewrite(self, content: bytes) -> None:
        new = self._path.with_name(f".{self._path.name}.new")
        new.unlink(missing_ok=True)
        with open(new, "xb", buffering=0, opener=open_private) as file:
            file.write(content)
        os.replace(new, self._path)
