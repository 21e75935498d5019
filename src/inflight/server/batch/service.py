"""Batch jobs as a whole: the parts put together on one data directory, started and stopped with the server."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from inflight.server.batch.answering import Answerer
from inflight.server.batch.data import DataDirectory, DataDirectoryError
from inflight.server.batch.database import Database
from inflight.server.batch.files import Files
from inflight.server.batch.jobs import Jobs
from inflight.server.batch.persistence import Pause, Persistence
from inflight.server.batch.runner import Runner
from inflight.server.batch.store import Store
from inflight.server.metrics.batch import BatchCounts
from inflight.server.tenants import Tenant


class BatchService:
    def __init__(
        self,
        data_dir: Path,
        answerer: Answerer,
        tenant_of: Callable[[str], Tenant],
        *,
        concurrency: int = 32,
        max_file_mb: float = 200,
        retry_seconds: float = 5.0,
        now: Callable[[], float] = time.time,
    ):
        """Takes the data directory, and removes what a crash left half done.

        tenant_of: the tenant of that name, as it is today; asked for each line. concurrency: lines under way at once,
        of all jobs. max_file_mb: MiB of one upload. retry_seconds: between tries to write to a full disk. now: seconds
        of the wall clock. Raises DataDirectoryError, DatabaseError.
        """
        self._data = DataDirectory(data_dir)
        try:
            self._store = Store(Database(self._data.database))
            self._data.sweep(self._store.file_ids())
        except OSError as error:
            self._data.close()
            raise DataDirectoryError(f"The data directory {data_dir} cannot be used: {error}; check it.") from None
        except BaseException:
            self._data.close()
            raise
        self._storage = Persistence(retry_seconds=retry_seconds, now=now)
        self.files = Files(self._data, self._store, most_bytes=int(max_file_mb * 2**20), now=now)
        self._runner = Runner(
            self._store, self.files, self._storage, answerer, tenant_of, concurrency=concurrency, now=now
        )
        self.jobs = Jobs(self._store, self._runner.notice, now=now)

    @property
    def paused(self) -> Pause | None:
        """Why jobs do not go on, while they do not."""
        return self._storage.paused

    @property
    def lines_under_way(self) -> int:
        return self._runner.under_way

    def start(self, counts: BatchCounts | None = None) -> None:
        """Take up the jobs that have not ended. Within the event loop of the server. counts: told of their fate."""
        self._runner.start(counts)

    async def stop(self) -> None:
        """Lines under way are abandoned, and run again after the next start. Lets go of the directory."""
        await self._runner.stop()
        await self._store.close()
        self._data.close()
