"""How much of all jobs' inputs is read before it is served: jobs whose input is open, and bytes of lines in memory.

Knows numbers; what is read, and when it is served, the runner knows.
"""

from __future__ import annotations

from collections.abc import Iterable

from inflight.server.batch.active_job import ActiveJob
from inflight.server.batch.lines import BatchLine
from inflight.server.batch.source import PAGE_LINES

MOST_READING = 16  # jobs whose input is being read: of each line read a digest is held, which makes some MiB a job
HELD_BYTES = 16 << 20  # of bodies in memory, read ahead or under way, of all jobs; above it nothing more is read


class ReadAhead:
    def __init__(self) -> None:
        self.reading: set[ActiveJob] = set()  # from their first line to their last
        self.held_bytes = 0  # of lines that are read and not served
        self._is_busy = False  # one reads at a time: what a page brings is not known before

    def may_open(self, active: ActiveJob) -> bool:
        """The others wait; but for one job of each tenant, so that nobody waits for the jobs of another."""
        if len(self.reading) < MOST_READING or all(one.job.tenant != active.job.tenant for one in self.reading):
            self.reading.add(active)
        return active in self.reading

    def may_read(self, active: ActiveJob) -> bool:
        """Whoever may, says so when the page is `read`."""
        if self._is_busy or self.held_bytes >= HELD_BYTES or len(active.lines) >= PAGE_LINES // 2:
            return False
        self._is_busy = True
        return True

    def read(self) -> None:
        self._is_busy = False

    def hold(self, active: ActiveJob, lines: Iterable[BatchLine]) -> None:
        for line in lines:
            active.lines.append(line)
            self.held_bytes += len(line.body)

    def drop(self, lines: Iterable[BatchLine]) -> None:
        """They are served, or will not be."""
        self.held_bytes -= sum(len(line.body) for line in lines)

    def close(self, active: ActiveJob) -> None:
        """Its input is read to its end, or will not be."""
        self.reading.discard(active)
        active.answered = set()
