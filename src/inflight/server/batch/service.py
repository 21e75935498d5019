"""Batch jobs as a whole: the parts put together on one data directory, started and stopped with the server."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from inflight.server.batch.answering import Answerer
from inflight.server.batch.clock import Clocks, StoreClock
from inflight.server.batch.data import DataDirectory, directory_told
from inflight.server.batch.database import Database
from inflight.server.batch.files import Files
from inflight.server.batch.jobs import Jobs
from inflight.server.batch.persistence import Pause, Persistence
from inflight.server.batch.quotas import Quotas
from inflight.server.batch.runner import Runner
from inflight.server.batch.store import Store
from inflight.server.batch.sweep import sweep
from inflight.server.metrics.batch import BatchCounts
from inflight.server.tenants import Tenant

log = logging.getLogger(__name__)


class BatchService:
    def __init__(
        self,
        data_dir: Path,
        answerer: Answerer,
        tenant_of: Callable[[str], Tenant],
        *,
        concurrency: int,
        max_file_mb: float,
        max_stored_mb: float,
        max_stored_files: int,
        retry_seconds: float = 5.0,
        clocks: Clocks | None = None,
    ):
        """Takes the data directory, and sorts what a crash or a stranger left in it.

        tenant_of: the tenant of that name, as it is today; asked for each line. concurrency: lines under way at once,
        of all jobs. max_file_mb: MiB of one upload. max_stored_mb, max_stored_files: what each tenant may keep that has
        no limits of its own. retry_seconds: between tries to write to a full disk. clocks: the machine's. Raises
        DataDirectoryError, DatabaseError; what is in the directory is as it was then.
        """
        clocks = clocks or Clocks()
        self._data = DataDirectory(data_dir)
        try:
            with directory_told(self._data.path):
                database = Database(self._data.database, self._data.reserve, self._data.mark)
                try:
                    self._store = Store(database)
                    self._sort()
                    self._data.reserve.restore()
                    self._clock = StoreClock(self._store.kept_time(), clocks)
                except BaseException:
                    database.close()
                    raise
        except BaseException:
            self._data.close()
            raise
        self._storage = Persistence(retry_seconds=retry_seconds, now=clocks.wall)
        quotas = Quotas(max_stored_mb, max_stored_files)
        self.files = Files(self._data, self._store, quotas, most_bytes=int(max_file_mb * 2**20), now=clocks.wall)
        self._runner = Runner(
            self._store,
            self.files,
            self._storage,
            answerer,
            tenant_of,
            self._clock,
            concurrency=concurrency,
            now=clocks.wall,
        )
        self.jobs = Jobs(self._store, quotas, self._runner.notice, self._clock, now=clocks.wall)

    def _sort(self) -> None:
        proofs = self._store.proofs()
        findings = sweep(self._data, proofs)
        for sentence in findings.sentences(proofs.lengths):
            log.warning(sentence)
        with contextlib.suppress(OSError):  # the next start finds nothing more under these ids
            self._store.forget_now(findings.gone)

    @property
    def paused(self) -> Pause | None:
        """Why jobs do not go on, while they do not."""
        return self._storage.paused

    def start(self, counts: BatchCounts | None = None) -> None:
        """Take up the jobs that have not ended. Within the event loop of the server. counts: told of their fate."""
        self._runner.start(counts)

    async def stop(self) -> None:
        """Lines under way are abandoned, and run again after the next start. Lets go of the directory."""
        await self._runner.stop()
        with contextlib.suppress(OSError):
            await self._store.keep_time(self._clock.to_keep())
        await self._store.close()
        self._data.close()
