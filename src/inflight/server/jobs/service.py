"""Batch jobs and stored responses of one API process, on the data directory that all processes of the server share."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import NoReturn

from inflight.server.errors import ApiError
from inflight.server.jobs.attempts import Attempts, LineHandler
from inflight.server.jobs.clock import Clocks, StoreClock
from inflight.server.jobs.database import Database
from inflight.server.jobs.files import Files
from inflight.server.jobs.folder import DataDirectory, WorkerSlot
from inflight.server.jobs.storage import Pause, Retries, StorageError
from inflight.server.jobs.store import Jobs
from inflight.server.jobs.worker import JobCounts, Worker
from inflight.server.openai.responses.store import Responses
from inflight.server.tenants import Tenant


class JobService:
    def __init__(
        self,
        data: DataDirectory,
        handler: LineHandler,
        tenant_of: Callable[[str], Tenant],
        *,
        concurrency: int,
        max_file_mb: float,
        max_stored_mb: float,
        max_stored_files: int,
        max_responses_mb: float = 1024,
        response_days: float = 30,
        retry_seconds: float = 5.0,
        clocks: Clocks | None = None,
    ):
        """
        Args:
            data: Claimed by this process, which prepares it then, or claimed and prepared by the one that started it.
            tenant_of: The tenant of that name, with its limits of today.
            concurrency: Lines in flight at once, of all jobs.
            max_file_mb: MiB of one upload.
            max_stored_mb, max_stored_files: Of each tenant that has no limits of its own.
            max_responses_mb, response_days: The same of stored responses, and how long each is kept.
            retry_seconds: Between two tries to write to a full disk.
        """
        self._data, self._handler, self._tenant_of = data, handler, tenant_of
        self._concurrency, self._retry_seconds = concurrency, retry_seconds
        self._file_limits = int(max_file_mb * 2**20), max_stored_mb, max_stored_files
        self._response_limits = max_responses_mb, response_days
        self._clocks = clocks or Clocks()
        self._slot = WorkerSlot(data.path / "worker")
        self._is_open = False

    def open(self) -> None:
        """Open the database, after preparing the directory where this process has claimed it; waits.

        Raises:
            DataDirectoryError: What the check has refused is as it was then.
        """
        if self._data.lock is not None:
            self._data.prepare(self._clocks)
        now, (max_bytes, max_mb, max_files) = self._clocks.wall, self._file_limits
        self._database = database = Database(self._data.database, self._data.reserve)
        self._clock = clock = database.write_now(lambda connection: StoreClock(connection, self._clocks))
        self._files = files = Files(
            self._data, database, max_bytes=max_bytes, max_stored_mb=max_mb, max_stored_files=max_files, now=now
        )
        files.remove_abandoned()
        self._jobs = jobs = Jobs(database, files, clock, self._notice, now=now)
        self._retries = retries = Retries(self._slot.report, seconds=self._retry_seconds, now=now)
        attempts = Attempts(self._handler, self._tenant_of, jobs, retries)
        self._worker = Worker(jobs, files, attempts, retries, clock, self._slot, concurrency=self._concurrency, now=now)
        max_mb, days = self._response_limits
        self._responses = Responses(database, clock, max_mb=max_mb, days=days)
        self._is_open = True

    @property
    def files(self) -> Files:
        """Raises ApiError 503 until it is open, as the others do."""
        return self._files if self._is_open else _refuse()

    @property
    def jobs(self) -> Jobs:
        return self._jobs if self._is_open else _refuse()

    @property
    def responses(self) -> Responses:
        return self._responses if self._is_open else _refuse()

    @property
    def paused(self) -> Pause | None:
        """Why jobs do not run, in whichever process answers their lines."""
        return self._slot.pause()

    def start(self, counts: JobCounts | None = None) -> None:
        """Answer lines, unless another process does. Within an event loop. counts: receives what becomes of jobs."""
        self._worker.counts = counts or self._worker.counts
        self._worker.start()
        self._responses.start()

    async def stop(self) -> None:
        """Abandon lines in flight, which are run again after the next start, and release the directory."""
        if not self._is_open:  # it may be being opened: then it is the process's as long as that lives
            return
        await self._worker.stop()
        await self._responses.stop()
        with contextlib.suppress(StorageError):
            await self._jobs.save_time()
        await asyncio.to_thread(self._database.close)
        self._data.release()

    def _notice(self) -> None:
        self._worker.notice()


def _refuse() -> NoReturn:
    raise ApiError(
        503,
        "The server is checking its data directory; try again in 1 s (GET /readyz shows when it is done).",
        type="server_error",
        code="loading",
        retry_after=1.0,
    )
