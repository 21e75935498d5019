"""/v1/files: uploads for batch jobs and the files that jobs leave: schema, routes and the form of an upload."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from inflight.counted import shortened
from inflight.server.asgi import file_pieces, json_of
from inflight.server.errors import ApiError, Error, invalid
from inflight.server.jobs.files import StoredFile, too_large
from inflight.server.jobs.service import JobService
from inflight.server.routes import Routes, read_query, tenant_of

PIECE_BYTES = 1 << 20
_FORM_BYTES = 1 << 14  # what a form may hold beside its file
_MAX_VALUE = 1000  # bytes of a field that is no file
_MAX_BOUNDARY = 256  # RFC 2046 allows 70; the parser takes this much
_BOUNDARY = re.compile(rb"[0-9A-Za-z'()+_,\-./:=? ]*[0-9A-Za-z'()+_,\-./:=?]")
_CONTENT = {"application/octet-stream": {"type": "string", "format": "binary"}}
_MEANINGS = {
    400: "The request is malformed; `param` names the field.",
    401: "No API key, or an unknown one.",
    404: "There is no such file or batch.",
    409: "Not while it is in this state.",
    413: "The file is too large, or the tenant's storage quota is exceeded.",
    429: "A limit of this API key is reached.",
    503: "The server is checking its data directory.",
    507: "The server's disk is full or broken.",
}


class UploadForm(Struct, forbid_unknown_fields=True):
    """The form of an upload, which `MultipartUpload` reads; for the OpenAPI document."""

    file: Annotated[
        str,
        Meta(min_length=1, description="A JSONL file, one request a line.", extra_json_schema={"format": "binary"}),
    ]
    purpose: Literal["batch"]


class FileObject(Struct, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"] = "processed"

    @classmethod
    def of(cls, file: StoredFile) -> FileObject:
        fields = ("id", "bytes", "created_at", "filename", "purpose")
        return cls(**{name: getattr(file, name) for name in fields})


class FileDeleted(Struct, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class FilePage(Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool

    @classmethod
    def of(cls, files: list[StoredFile], has_more: bool) -> FilePage:
        return cls(data=[FileObject.of(file) for file in files], has_more=has_more, **ends_of(files))


def ends_of(rows: list[Any]) -> dict[str, Any]:
    """Return the ids of the first and the last entry of a page."""
    return {"first_id": rows[0].id if rows else None, "last_id": rows[-1].id if rows else None}


class FilesQuery(Struct):
    after: str | None = None
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 10_000
    purpose: str | None = None
    order: Literal["asc", "desc"] = "desc"


_FORM = msgspec.json.schema_components([UploadForm])[1]["UploadForm"]


def file_routes(service: JobService) -> Routes:
    """Return the routes of files. Refusals are raised as ApiError."""
    routes = Routes("files")

    @routes.post("/v1/files", form=_FORM, result=FileObject, errors=refusals(400, 401, 413, 507))
    async def upload_file(request: Request) -> Response:
        """Upload a JSONL file for a batch."""
        declared = declared_bytes(request)
        files = service.files
        if declared is not None and declared > files.max_bytes + _FORM_BYTES:
            raise too_large(files.max_bytes)
        return json_of(FileObject.of(await files.receive(tenant_of(request), MultipartUpload(request))))

    @routes.get("/v1/files", query=FilesQuery, result=FilePage, errors=refusals(400, 401, 404, 507))
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

    @routes.get("/v1/files/{file_id}", result=FileObject, errors=refusals(401, 404, 507))
    async def retrieve_file(request: Request) -> Response:
        return json_of(FileObject.of(await service.files.retrieve(tenant_of(request), request.path_params["file_id"])))

    @routes.get("/v1/files/{file_id}/content", content=_CONTENT, errors=refusals(401, 404, 409, 507))
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

    @routes.delete("/v1/files/{file_id}", result=FileDeleted, errors=refusals(401, 404, 409, 507))
    async def delete_file(request: Request) -> Response:
        """Refused while a batch that has not ended reads the file."""
        file_id = request.path_params["file_id"]
        await service.files.delete(tenant_of(request), file_id)
        return json_of(FileDeleted(id=file_id))

    return routes


def refusals(*statuses: int) -> dict[str, tuple[type[Struct], str]]:
    return {str(status): (Error, _MEANINGS[status]) for status in sorted({*statuses, 503})}


class MultipartUpload:
    """An upload that is parsed as it comes, so that no file is in memory whole."""

    def __init__(self, request: Request):
        """Read the form's headers. Raises ApiError where the request is no form."""
        kind, options = parse_options_header(request.headers.get("content-type"))
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise invalid("The request is no form; send multipart/form-data with `file` and `purpose`.")
        self.filename: str | None = None
        self.purpose: str | None = None
        self._request = request
        self._ended = False
        self._pieces = bytearray()  # of the file, not given out yet
        self._part: str | None = None
        self._value = bytearray()
        self._header, self._header_value, self._disposition = b"", b"", b""
        self._parser = MultipartParser(
            _boundary(options[b"boundary"]),
            {
                "on_part_begin": self._begin_part,
                "on_header_field": self._take_header,
                "on_header_value": self._take_header_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": self._take_data,
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
        )

    async def content(self) -> AsyncIterator[bytes]:
        """Yield the file in pieces. Raises ApiError where the upload breaks off or is malformed."""
        try:
            async for chunk in self._request.stream():
                if chunk:
                    self._parser.write(chunk)
                if len(self._pieces) >= PIECE_BYTES:
                    yield self._taken()
        except FormParserError as error:
            raise invalid(f"The form cannot be read: {error}; send multipart/form-data.") from None
        except ClientDisconnect:
            raise invalid("The upload broke off; send it again.", "file", "truncated_upload") from None
        if not self._ended:
            raise invalid("The upload ends before its form does; send it again.", "file", "truncated_upload")
        if self._pieces:
            yield self._taken()

    def _taken(self) -> bytes:
        taken = bytes(self._pieces)
        self._pieces.clear()
        return taken

    # -- the parser's calls --------------------------------------------------------------------------------------

    def _begin_part(self) -> None:
        self._part, self._disposition = None, b""
        self._value.clear()

    def _take_header(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _take_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._header_value
        self._header, self._header_value = b"", b""

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = _text(options.get(b"name", b""))
        if name not in ("file", "purpose"):
            raise invalid(
                f"The form field {shortened(name)!r} is unknown; send `file` and `purpose`.", shortened(name) or None
            )
        if (self.filename if name == "file" else self.purpose) is not None:
            raise invalid(f"The form field {name!r} is there twice; send it once.", name)
        if name == "file":
            if not options.get(b"filename"):
                raise invalid("The form field `file` is no file; send it with a file name.", "file")
            self.filename = _text(options[b"filename"])
        self._part = name

    def _take_data(self, data: bytes, start: int, end: int) -> None:
        if self._part == "file":
            self._pieces += data[start:end]
            return
        self._value += data[start:end]
        if len(self._value) > _MAX_VALUE:
            raise invalid(f"The form field {self._part!r} is too long; see what it may hold.", self._part)

    def _end_part(self) -> None:
        if self._part == "purpose":
            self.purpose = _text(bytes(self._value))

    def _end(self) -> None:
        self._ended = True


def _boundary(given: bytes) -> bytes:
    """Return the boundary. Raises ApiError where no form can have it."""
    if len(given) > _MAX_BOUNDARY:
        why = f"The multipart boundary has {len(given)} characters, and the maximum is {_MAX_BOUNDARY}; shorten it."
        raise invalid(why)
    if not _BOUNDARY.fullmatch(given):
        raise invalid("The multipart boundary contains an invalid character; take letters and digits.")
    return given


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def declared_bytes(request: Request) -> int | None:
    """Return the bytes that the client announces for the whole request. Raises ApiError where that is no number."""
    length = request.headers.get("content-length")
    if length is None:
        return None
    if not length.isascii() or not length.isdigit():
        raise ApiError(400, f"Content-Length is {shortened(length)!r}; send a number of bytes.")
    return int(length)
