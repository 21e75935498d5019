"""Jobs as clients see them: created, listed, looked at, cancelled. What becomes of their lines is the runner's."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

from inflight.counted import shortened
from inflight.server.batch.clock import StoreClock
from inflight.server.batch.faults import storage_told
from inflight.server.batch.files import no_file
from inflight.server.batch.models import WINDOW
from inflight.server.batch.quotas import OverQuota, Quotas
from inflight.server.batch.records import ENDED, Job
from inflight.server.batch.store import Missing, Store, TooMany
from inflight.server.errors import ApiError, invalid
from inflight.server.tenants import Tenant

_SECONDS = {"m": 60, "h": 3600, "d": 86400}


class Jobs:
    def __init__(
        self,
        store: Store,
        quotas: Quotas,
        changed: Callable[[], None],
        clock: StoreClock,
        *,
        now: Callable[[], float] = time.time,
    ):
        """changed: called after a job was created or cancelled. clock: windows are measured by it. now: seconds of the
        wall clock."""
        self._store, self._quotas, self._changed, self._clock, self._now = store, quotas, changed, clock, now

    async def create(
        self, tenant: Tenant, *, input_file_id: str, endpoint: str, window: str, metadata: dict[str, str] | None
    ) -> Job:
        """On return the job survives the process. Raises ApiError."""
        created, seconds, clock = int(self._now()), window_seconds(window), self._clock.to_keep()
        values = {
            "id": f"batch_{secrets.token_hex(16)}",
            "tenant": tenant.name,
            "endpoint": endpoint,
            "input_file_id": input_file_id,
            "completion_window": window,
            "metadata": metadata,
            "status": "validating",
            "created_at": created,
            "expires_at": created + seconds,
            "due": clock.seconds + seconds,
        }
        try:
            with storage_told():
                most = self._quotas.of(tenant)
                job = await self._store.add_job(values, most_jobs=tenant.max_batch_jobs, most=most, time=clock)
        except Missing:
            raise no_file(input_file_id, "input_file_id") from None
        except TooMany as limit:
            raise ApiError(
                429,
                f"You have {limit.args[0]} batch jobs under way, which is your limit; wait, or cancel one.",
                type="rate_limit_error",
                code="too_many_batch_jobs",
            ) from None
        except OverQuota as over:
            raise self._quotas.refusal(tenant, over.args[0], "what a job writes", None) from None
        self._changed()
        return job

    async def retrieve(self, tenant: Tenant, job_id: str) -> Job:
        """Raises ApiError 404."""
        try:
            with storage_told():
                return await self._store.job(job_id, tenant.name)
        except Missing:
            raise _no_job(job_id) from None

    async def page(self, tenant: Tenant, *, after: str | None, limit: int) -> tuple[list[Job], bool]:
        """The newest first, and whether there are more. Raises ApiError 404 for an unknown `after`."""
        try:
            with storage_told():
                found = await self._store.jobs(tenant.name, after=after, limit=limit + 1)
        except Missing:
            raise _no_job(after, "after") from None
        return found[:limit], len(found) > limit

    async def cancel(self, tenant: Tenant, job_id: str) -> Job:
        """Cancel the job; its answers stay available. Raises ApiError: 404, or 409 when it has ended already."""
        job = await self.retrieve(tenant, job_id)
        # The runner may move the job in between; each time round it is further on its way to an end.
        while job.status in ("validating", "in_progress"):
            with storage_told():
                job = await self._store.move(job, "cancelling", cancelling_at=job.stamp(self._now()))
            self._changed()
        if job.status == "finalizing" or (job.status in ENDED and job.status != "cancelled"):
            raise ApiError(
                409,
                f"The job is {job.status}; only jobs that are validating or in_progress can be cancelled.",
                code="job_not_cancellable",
            )
        return job


def window_seconds(window: str) -> int:
    """Return the seconds of "90m", "24h" or "7d". Raises ApiError 400."""
    match = WINDOW.fullmatch(window)
    if match is None:
        raise invalid(
            f"completion_window is {shortened(window)!r}; give minutes, hours or days, such as 24h.",
            "completion_window",
        )
    return int(match[1]) * _SECONDS[match[2]]


def _no_job(job_id: object, param: str | None = None) -> ApiError:
    return ApiError(
        404, f"There is no batch {shortened(str(job_id))!r}; list your batches.", param=param, code="not_found"
    )
