"""Lines under way: which line of which job is next, and that its answer is kept.

Knows turns and tasks; how a line comes to its answer, `RetryPolicy` knows, and what becomes of its job, the runner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from functools import partial

from inflight.server.batch.active_jobs import ActiveJob, ReadAhead
from inflight.server.batch.clock import StoreClock
from inflight.server.batch.ending import line_fault
from inflight.server.batch.lines import BadLine, BatchLine
from inflight.server.batch.persistence import Persistence
from inflight.server.batch.retry_policy import RetryPolicy
from inflight.server.batch.store import Store
from inflight.server.metrics.batch import BatchCounts

_UNKEPT = ("server_error", "The line was answered, but the server cannot keep the answer; its log has the details.")

log = logging.getLogger(__name__)


class LineRunner:
    def __init__(
        self,
        store: Store,
        storage: Persistence,
        retry_policy: RetryPolicy,
        clock: StoreClock,
        read_ahead: ReadAhead,
        concurrency: int,
    ):
        """concurrency: lines under way at once, of all jobs."""
        self._store, self._storage, self._retry_policy = store, storage, retry_policy
        self._clock, self._read_ahead, self._concurrency = clock, read_ahead, concurrency
        self._turn = 0
        self.counts = BatchCounts()

    def launch(self, jobs: Collection[ActiveJob]) -> None:
        """Lines in turn: of the tenant that has waited longest, the job that has waited longest."""
        while sum(len(one.under_way) for one in jobs) < self._concurrency and self._storage.paused is None:
            ready = [one for one in jobs if one.lines and one.ending(self._clock.now()) is None]
            if not ready:
                return
            last: dict[str, int] = {}
            for one in jobs:
                last[one.job.tenant] = max(last.get(one.job.tenant, 0), one.turn)
            chosen = min(ready, key=lambda one: (last[one.job.tenant], one.turn, one.job.number))
            self._turn += 1
            chosen.turn = self._turn
            self._start(chosen, chosen.lines.popleft())

    def _start(self, active: ActiveJob, line: BatchLine) -> None:
        task = asyncio.create_task(self._serve(active, line))
        active.answering[line.number] = task
        active.under_way.add(task)
        task.add_done_callback(partial(self._served, active, line))

    async def _serve(self, active: ActiveJob, line: BatchLine) -> None:
        answer = await self._retry_policy.answer(active.job, line)
        # From here on nothing but the end of the process keeps the answer from being kept.
        del active.answering[line.number]
        try:
            await self._storage.durably(partial(self._store.keep, [answer]))
        except Exception:  # a bug; to run the line again would meet it again
            log.exception("line %d of batch job %s has an answer that cannot be kept", line.number, active.job.id)
            answer = line_fault(active.job, BadLine(line.number, *_UNKEPT, line.custom_id))
            await self._storage.durably(partial(self._store.keep, [answer]))
        self.counts.lines("completed" if answer.status == 200 else "failed")

    def _served(self, active: ActiveJob, line: BatchLine, task: asyncio.Task[None]) -> None:
        active.answering.pop(line.number, None)
        active.under_way.discard(task)
        if task.cancelled():
            active.lines.appendleft(line)
        else:
            self._read_ahead.drop([line])
            if (error := task.exception()) is not None:  # not even that it has no answer can be kept
                log.error("line %d of batch job %s met a fault", line.number, active.job.id, exc_info=error)
                active.break_by(error)
        self._storage.changed.set()
