"""Batch jobs and stored responses as a whole: the parts put together on one data directory, started and stopped with
the server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from inflight.counted import counted
from inflight.server.batch.answering import Answerer
from inflight.server.batch.begun_lines import BegunLines
from inflight.server.batch.clock import Clocks, StoreClock
from inflight.server.batch.data import DataDirectory, directory_told
from inflight.server.batch.database import Database
from inflight.server.batch.files import Files
from inflight.server.batch.jobs import Jobs
from inflight.server.batch.persistence import Pause, Persistence
from inflight.server.batch.quotas import Quotas
from inflight.server.batch.retry_policy import RetryPolicy
from inflight.server.batch.runner import Runner
from inflight.server.batch.store import Store
from inflight.server.batch.sweep import sweep
from inflight.server.errors import ApiError
from inflight.server.metrics.batch import BatchCounts
from inflight.server.responses.kept import KeptResponses, Responses
from inflight.server.responses.store import ResponseStore
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
        max_responses_mb: float = 1024,
        response_days: float = 30,
        retry_seconds: float = 5.0,
        clocks: Clocks | None = None,
    ):
        """Takes the data directory, as far as its names and its marker let it; `open` must follow.

        tenant_of: the tenant of that name, as it is today; asked for each line. concurrency: lines under way at once,
        of all jobs. max_file_mb: MiB of one upload. max_stored_mb, max_stored_files: what each tenant may keep that has
        no limits of its own; max_responses_mb: the same of stored responses, each of which is kept for response_days.
        retry_seconds: between tries to write to a full disk. clocks: the machine's. Raises DataDirectoryError; what is
        in the directory is as it was then.
        """
        self._data = DataDirectory(data_dir)
        self._answerer, self._tenant_of, self._concurrency = answerer, tenant_of, concurrency
        self._most_bytes, self._quotas = int(max_file_mb * 2**20), Quotas(max_stored_mb, max_stored_files)
        self._response_bounds = max_responses_mb, response_days
        self._clocks = clocks or Clocks()
        self._storage = Persistence(retry_seconds=retry_seconds, now=self._clocks.wall)
        self._is_open = False

    def open(self) -> None:
        """Checks the whole database, and sorts what a crash or somebody else left in the directory; waits, some seconds
        for each GB. Raises DataDirectoryError, DatabaseError; what was refused by the check is as it was then."""
        self._data.check()
        try:
            with directory_told(self._data.path):
                self._open_store()
        except BaseException:
            self._data.close()
            raise
        now = self._clocks.wall
        self._files = Files(self._data, self._store, self._quotas, most_bytes=self._most_bytes, now=now)
        self._runner = Runner(
            self._store,
            self._files,
            self._storage,
            RetryPolicy(self._answerer, self._tenant_of, self._storage, self._begun),
            self._begun,
            self._clock,
            concurrency=self._concurrency,
            now=now,
        )
        max_mb, days = self._response_bounds
        self._responses = Responses(self._response_store, self._clock, max_mb=max_mb, days=days)
        self._jobs = Jobs(self._store, self._quotas, self._runner.notice, self._clock, now=now)
        self._is_open = True

    def _open_store(self) -> None:
        database = Database(self._data.database, self._data.reserve, self._data.mark)
        try:
            self._store, self._response_store = Store(database), ResponseStore(database)
            self._sort()
            self._data.reserve.restore()
            self._clock = StoreClock(self._store.kept_time(), self._clocks)
            self._begun = BegunLines(self._data.begun_lines)
            if self._begun.found:
                lines = counted(self._begun.found, "line of batch jobs was", "lines of batch jobs were")
                log.warning(f"{lines} in flight when the server ended uncleanly: such lines are tried one at a time.")
        except BaseException:
            database.close()
            raise

    def _sort(self) -> None:
        proofs = self._store.proofs()
        findings = sweep(self._data, proofs)
        for sentence in findings.sentences(proofs.lengths):
            log.warning(sentence)
        with contextlib.suppress(OSError):  # the next start finds nothing more under these ids
            self._store.forget_now(findings.gone)

    @property
    def files(self) -> Files:
        """Raises ApiError 503 until it is open."""
        self._refuse_unopened()
        return self._files

    @property
    def jobs(self) -> Jobs:
        """Raises ApiError 503 until it is open."""
        self._refuse_unopened()
        return self._jobs

    @property
    def responses(self) -> Responses:
        """Raises ApiError 503 until it is open."""
        self._refuse_unopened()
        return self._responses

    @property
    def kept_responses(self) -> KeptResponses:
        """Raises ApiError 503 until it is open."""
        return self.responses

    def _refuse_unopened(self) -> None:
        if not self._is_open:
            raise ApiError(
                503,
                "The server is checking its data directory; try again in a moment (GET /health tells when it is done).",
                type="server_error",
                code="loading",
                retry_after=1.0,
            )

    @property
    def paused(self) -> Pause | None:
        """Why jobs do not go on, while they do not."""
        return self._storage.paused

    def start(self, counts: BatchCounts | None = None) -> None:
        """Take up the jobs that have not ended. Within the event loop of the server. counts: told of their fate."""
        self._runner.start(counts)
        self._responses.start()

    async def stop(self) -> None:
        """Lines under way are abandoned, and run again after the next start. Lets go of the directory, unless it is
        being opened meanwhile: then it is the process's as long as that lives."""
        if not self._is_open:
            return
        await self._runner.stop()
        await self._responses.stop()
        with contextlib.suppress(OSError):
            await self._store.keep_time(self._clock.to_keep())
        await self._store.close()
        await asyncio.to_thread(self._begun.close)
        self._data.close()
