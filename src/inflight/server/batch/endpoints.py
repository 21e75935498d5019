"""HTTP of the Files and Batches API. Knows routes, statuses and what the OpenAPI document says of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, Protocol

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import StreamingResponse

from inflight.server.answers import Error
from inflight.server.batch.files import Files, too_large
from inflight.server.batch.jobs import Jobs
from inflight.server.batch.models import (
    BATCH,
    Batch,
    BatchBody,
    BatchPage,
    FileDeleted,
    FileObject,
    FilePage,
    UploadForm,
)
from inflight.server.batch.persistence import Pause
from inflight.server.batch.upload import MultipartUpload, declared_bytes
from inflight.server.json import body_of
from inflight.server.responses.kept import KeptResponses, Responses
from inflight.server.sending import file_pieces
from inflight.server.tenants import Tenant

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
_CONTENT: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
}
_FORM: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": UploadForm.model_json_schema()}}}
}


class Kept(Protocol):
    """What the routes ask; a `BatchService`. All raise ApiError while there is none."""

    @property
    def files(self) -> Files: ...

    @property
    def jobs(self) -> Jobs: ...

    @property
    def responses(self) -> Responses: ...

    @property
    def kept_responses(self) -> KeptResponses: ...

    @property
    def paused(self) -> Pause | None: ...


def router(service: Kept, tenant: Callable[..., Tenant]) -> APIRouter:
    """tenant: a dependency that says who asks, or raises ApiError. Refusals are raised as ApiError too."""
    routes = APIRouter()
    _add_files(routes, service, Depends(tenant))
    _add_batches(routes, service, Depends(tenant))
    return routes


def _add_files(routes: APIRouter, service: Kept, asking: Any) -> None:
    @routes.post("/v1/files", tags=["files"], responses=_refusals(400, 401, 413, 507), openapi_extra=_FORM)
    async def upload_file(request: Request, tenant: Tenant = asking) -> FileObject:
        """Upload a JSONL file for a batch."""
        declared = declared_bytes(request)
        files = service.files
        if declared is not None and declared > files.most_bytes + _FORM_BYTES:
            raise too_large(files.most_bytes)
        return FileObject.of(await files.receive(tenant, MultipartUpload(request)))

    @routes.get("/v1/files", tags=["files"], responses=_refusals(400, 401, 404, 507))
    async def list_files(
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
        purpose: str | None = None,
        order: Literal["asc", "desc"] = "desc",
        tenant: Tenant = asking,
    ) -> FilePage:
        """Files in the order they came, the newest first unless asked otherwise."""
        return FilePage.of(
            *await service.files.page(tenant, after=after, limit=limit, purpose=purpose, descending=order == "desc")
        )

    @routes.get("/v1/files/{file_id}", tags=["files"], responses=_refusals(401, 404, 507))
    async def retrieve_file(file_id: str, tenant: Tenant = asking) -> FileObject:
        return FileObject.of(await service.files.retrieve(tenant, file_id))

    @routes.get(
        "/v1/files/{file_id}/content",
        tags=["files"],
        response_class=StreamingResponse,
        responses={**_CONTENT, **_refusals(401, 404, 409, 507)},
    )
    async def file_content(file_id: str, tenant: Tenant = asking) -> StreamingResponse:
        file, content = await service.files.open(tenant, file_id)
        headers = {
            "Content-Length": str(file.bytes),
            "Content-Disposition": f'attachment; filename="{file.id}.jsonl"',
            "X-Content-Type-Options": "nosniff",
        }
        return StreamingResponse(
            file_pieces(content, file.bytes), media_type="application/octet-stream", headers=headers
        )

    @routes.delete("/v1/files/{file_id}", tags=["files"], responses=_refusals(401, 404, 409, 507))
    async def delete_file(file_id: str, tenant: Tenant = asking) -> FileDeleted:
        """Refused while a batch that has not ended reads the file."""
        await service.files.delete(tenant, file_id)
        return FileDeleted(id=file_id)


def _add_batches(routes: APIRouter, service: Kept, asking: Any) -> None:
    @routes.post(
        "/v1/batches",
        tags=["batches"],
        responses=_refusals(400, 401, 404, 413, 429, 507),
        openapi_extra=body_of(BatchBody),
    )
    async def create_batch(request: Request, tenant: Tenant = asking) -> Batch:
        """Answer every line of an uploaded file in the background."""
        body = BATCH.decode(await request.body())
        job = await service.jobs.create(
            tenant,
            input_file_id=body.input_file_id,
            endpoint=body.endpoint,
            window=body.completion_window,
            metadata=body.metadata,
        )
        return Batch.of(job, service.paused)

    @routes.get("/v1/batches", tags=["batches"], responses=_refusals(400, 401, 404, 507))
    async def list_batches(
        after: str | None = None, limit: Annotated[int, Query(ge=1, le=100)] = 20, tenant: Tenant = asking
    ) -> BatchPage:
        """Batches, the newest first."""
        return BatchPage.of(*await service.jobs.page(tenant, after=after, limit=limit), service.paused)

    @routes.get("/v1/batches/{batch_id}", tags=["batches"], responses=_refusals(401, 404, 507))
    async def retrieve_batch(batch_id: str, tenant: Tenant = asking) -> Batch:
        return Batch.of(await service.jobs.retrieve(tenant, batch_id), service.paused)

    @routes.post("/v1/batches/{batch_id}/cancel", tags=["batches"], responses=_refusals(401, 404, 409, 507))
    async def cancel_batch(batch_id: str, tenant: Tenant = asking) -> Batch:
        """Cancel the job; what has been answered stays available in the output file."""
        return Batch.of(await service.jobs.cancel(tenant, batch_id), service.paused)


def _refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": Error, "description": _MEANINGS[status]} for status in sorted({*statuses, 503})}
