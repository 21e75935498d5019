"""/v1/batches: jobs that answer every line of an uploaded file: schema and routes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from inflight.server.asgi import json_of
from inflight.server.common.bodies import BodyDecoder
from inflight.server.jobs.lines import LinePath
from inflight.server.jobs.service import JobService
from inflight.server.jobs.storage import Pause
from inflight.server.jobs.store import ENDED, WINDOW, Job
from inflight.server.openai.files import ends_of, refusals
from inflight.server.routes import Routes, read_query, tenant_of

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]


class RequestCounts(Struct, kw_only=True):
    """Lines of the input file: all, those answered with 2xx, and the others that are done."""

    total: int
    completed: int
    failed: int


class InputTokensDetails(Struct, kw_only=True):
    cached_tokens: int


class OutputTokensDetails(Struct, kw_only=True):
    reasoning_tokens: int


class BatchUsage(Struct, kw_only=True):
    """Tokens of the lines that were served."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int

    @classmethod
    def of(cls, job: Job) -> BatchUsage:
        return cls(
            input_tokens=job.input_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=job.cached_tokens),
            output_tokens=job.output_tokens,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
            total_tokens=job.input_tokens + job.output_tokens,
        )


class BatchError(Struct, kw_only=True):
    code: str
    message: str
    param: str | None
    line: int | None


class BatchErrors(Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[BatchError]


class PauseObject(Struct, kw_only=True):
    """Why the job does not go on at the moment, and since when (Unix seconds)."""

    reason: str
    since: int


class Batch(Struct, kw_only=True):
    id: str
    object: Literal["batch"] = "batch"
    endpoint: LinePath
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: Status
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    model: str | None
    usage: BatchUsage
    metadata: dict[str, str] | None
    paused: PauseObject | None

    @classmethod
    def of(cls, job: Job, pause: Pause | None) -> Batch:
        """pause: of all jobs that have not ended."""
        own: dict[str, Any] = {name: getattr(job, name) for name in cls.__struct_fields__ if hasattr(job, name)}
        own["errors"] = BatchErrors(data=[BatchError(**error) for error in job.errors]) if job.errors else None
        counts = RequestCounts(total=job.total, completed=job.completed, failed=job.failed)
        waits = pause is not None and job.status not in ENDED
        paused = PauseObject(reason=pause.reason, since=pause.since) if pause is not None and waits else None
        return cls(**own, request_counts=counts, usage=BatchUsage.of(job), paused=paused)


class BatchPage(Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Batch]
    first_id: str | None
    last_id: str | None
    has_more: bool

    @classmethod
    def of(cls, jobs: list[Job], has_more: bool, pause: Pause | None) -> BatchPage:
        return cls(data=[Batch.of(job, pause) for job in jobs], has_more=has_more, **ends_of(jobs))


Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]


# Its form is checked where it is read, by an error message; the pattern is for the OpenAPI document.
_WINDOW = Meta(max_length=30, description="Such as 24h.", extra_json_schema={"pattern": f"^{WINDOW.pattern}$"})


class BatchBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """completion_window: minutes, hours or days, such as 24h."""

    input_file_id: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,64}$", max_length=64)]
    endpoint: LinePath
    completion_window: Annotated[str, _WINDOW]
    metadata: Metadata | None = None


BATCH = BodyDecoder(BatchBody, neutral={"output_expires_after": ((), "files are kept until they are deleted.")})


class BatchesQuery(Struct):
    after: str | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 20


def batch_routes(service: JobService) -> Routes:
    """Return the routes of batches. Refusals are raised as ApiError."""
    routes = Routes("batches")

    @routes.post("/v1/batches", body=BatchBody, result=Batch, errors=refusals(400, 401, 404, 413, 429, 507))
    async def create_batch(request: Request) -> Response:
        """Answer every line of an uploaded file in the background."""
        body = BATCH.decode(await request.body())
        job = await service.jobs.create(
            tenant_of(request),
            input_file_id=body.input_file_id,
            endpoint=body.endpoint,
            window=body.completion_window,
            metadata=body.metadata,
        )
        return json_of(Batch.of(job, service.paused))

    @routes.get("/v1/batches", query=BatchesQuery, result=BatchPage, errors=refusals(400, 401, 404, 507))
    async def list_batches(request: Request) -> Response:
        """Batches, the newest first."""
        asked = read_query(request, BatchesQuery)
        jobs, has_more = await service.jobs.page(tenant_of(request), after=asked.after, limit=asked.limit)
        return json_of(BatchPage.of(jobs, has_more, service.paused))

    @routes.get("/v1/batches/{batch_id}", result=Batch, errors=refusals(401, 404, 507))
    async def retrieve_batch(request: Request) -> Response:
        job = await service.jobs.retrieve(tenant_of(request), request.path_params["batch_id"])
        return json_of(Batch.of(job, service.paused))

    @routes.post("/v1/batches/{batch_id}/cancel", result=Batch, errors=refusals(401, 404, 409, 507))
    async def cancel_batch(request: Request) -> Response:
        """Cancel the job; what has been answered stays available in the output file."""
        job = await service.jobs.cancel(tenant_of(request), request.path_params["batch_id"])
        return json_of(Batch.of(job, service.paused))

    return routes
