"""HTTP of the Files and Batches API. Knows routes, statuses and what the OpenAPI document says of them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from inflight.server.errors import Error
from inflight.server.jobs.files import too_large
from inflight.server.jobs.models import (
    BATCH,
    Batch,
    BatchBody,
    BatchPage,
    FileDeleted,
    FileObject,
    FilePage,
    UploadForm,
)
from inflight.server.jobs.service import JobService
from inflight.server.jobs.upload import MultipartUpload, declared_bytes
from inflight.server.json import json_of
from inflight.server.routes import Routes, read_query, tenant_of
from inflight.server.sending import file_pieces

_FORM_BYTES = 1 << 14  # what a form may hold beside its file
_MEANINGS = {
    400: "The request is malformed; `param` names the field.",
    401: "No API key, or an unknown one.",
    404: "There is no such file or batch.",
    409: "Not while it is in this state.",
    413: "The file is too large, or does not fit (or what the batch writes) beside what is stored.",
    429: "A limit of this API key is reached.",
    503: "The server is checking its data directory.",
    507: "The server's disk is full or broken.",
}
_CONTENT = {"application/octet-stream": {"type": "string", "format": "binary"}}
_FORM = msgspec.json.schema_components([UploadForm])[1]["UploadForm"]


class FilesQuery(Struct):
    after: str | None = None
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 10_000
    purpose: str | None = None
    order: Literal["asc", "desc"] = "desc"


class BatchesQuery(Struct):
    after: str | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 20


def job_routes(service: JobService) -> Routes:
    """Return the routes of files and batches. Refusals are raised as ApiError."""
    routes = Routes()
    _add_files(routes, service)
    _add_batches(routes, service)
    return routes


def _add_files(routes: Routes, service: JobService) -> None:
    @routes.post("/v1/files", tag="files", form=_FORM, result=FileObject, errors=_refusals(400, 401, 413, 507))
    async def upload_file(request: Request) -> Response:
        """Upload a JSONL file for a batch."""
        declared = declared_bytes(request)
        files = service.files
        if declared is not None and declared > files.max_bytes + _FORM_BYTES:
            raise too_large(files.max_bytes)
        return json_of(FileObject.of(await files.receive(tenant_of(request), MultipartUpload(request))))

    @routes.get("/v1/files", tag="files", query=FilesQuery, result=FilePage, errors=_refusals(400, 401, 404, 507))
    async def list_files(request: Request) -> Response:
        """Files in the order they came, the newest first unless asked otherwise."""
        asked = read_query(request, FilesQuery)
        files, has_more = await service.files.page(
            tenant_of(request),
            after=asked.after,
            limit=asked.limit,
            purpose=asked.purpose,
            descending=asked.order == "desc",
        )
        return json_of(FilePage.of(files, has_more))

    @routes.get("/v1/files/{file_id}", tag="files", result=FileObject, errors=_refusals(401, 404, 507))
    async def retrieve_file(request: Request) -> Response:
        return json_of(FileObject.of(await service.files.retrieve(tenant_of(request), request.path_params["file_id"])))

    @routes.get("/v1/files/{file_id}/content", tag="files", content=_CONTENT, errors=_refusals(401, 404, 409, 507))
    async def file_content(request: Request) -> Response:
        file, content = await service.files.open(tenant_of(request), request.path_params["file_id"])
        headers = {
            "Content-Length": str(file.bytes),
            "Content-Disposition": f'attachment; filename="{file.id}.jsonl"',
            "X-Content-Type-Options": "nosniff",
        }
        return StreamingResponse(
            file_pieces(content, file.bytes), media_type="application/octet-stream", headers=headers
        )

    @routes.delete("/v1/files/{file_id}", tag="files", result=FileDeleted, errors=_refusals(401, 404, 409, 507))
    async def delete_file(request: Request) -> Response:
        """Refused while a batch that has not ended reads the file."""
        file_id = request.path_params["file_id"]
        await service.files.delete(tenant_of(request), file_id)
        return json_of(FileDeleted(id=file_id))


def _add_batches(routes: Routes, service: JobService) -> None:
    @routes.post(
        "/v1/batches",
        tag="batches",
        body=BatchBody,
        result=Batch,
        errors=_refusals(400, 401, 404, 413, 429, 507),
    )
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

    @routes.get(
        "/v1/batches", tag="batches", query=BatchesQuery, result=BatchPage, errors=_refusals(400, 401, 404, 507)
    )
    async def list_batches(request: Request) -> Response:
        """Batches, the newest first."""
        asked = read_query(request, BatchesQuery)
        jobs, has_more = await service.jobs.page(tenant_of(request), after=asked.after, limit=asked.limit)
        return json_of(BatchPage.of(jobs, has_more, service.paused))

    @routes.get("/v1/batches/{batch_id}", tag="batches", result=Batch, errors=_refusals(401, 404, 507))
    async def retrieve_batch(request: Request) -> Response:
        job = await service.jobs.retrieve(tenant_of(request), request.path_params["batch_id"])
        return json_of(Batch.of(job, service.paused))

    @routes.post("/v1/batches/{batch_id}/cancel", tag="batches", result=Batch, errors=_refusals(401, 404, 409, 507))
    async def cancel_batch(request: Request) -> Response:
        """Cancel the job; what has been answered stays available in the output file."""
        job = await service.jobs.cancel(tenant_of(request), request.path_params["batch_id"])
        return json_of(Batch.of(job, service.paused))


def _refusals(*statuses: int) -> dict[str, tuple[type[Struct], str]]:
    return {str(status): (Error, _MEANINGS[status]) for status in sorted({*statuses, 503})}
