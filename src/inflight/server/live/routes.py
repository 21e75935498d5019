"""Routes of the live page, its files and its feed: /, /ui/* and /live/*.

An operator sees everything, a tenant its own requests. Other origins are refused even where --cors-origin allows them,
keys travel in headers only, and the page loads nothing from elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from urllib.parse import quote

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from inflight.live.frames import encode_account
from inflight.live.page_files import PageFile, page_file, served_page
from inflight.records.recent import find_recent
from inflight.server.asgi import file_pieces
from inflight.server.errors import ApiError
from inflight.server.live.broadcaster import FeedBroadcaster
from inflight.server.routes import Routes, check_operator, read_query, tenant_of
from inflight.server.sending import ClientGone, until_gone
from inflight.server.tenants import Tenant

IS_RUNNING = "Ollama is running"  # what clients of ollama look for
EVENTS, ACCOUNT, RECORD, FILES = "/live/events", "/live/account", "/live/record", "/ui"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class Live:
    """record: the file that the engine writes its steps to, if it does."""

    broadcaster: FeedBroadcaster
    record: Path | None = None


class AccountQuery(Struct):
    id: str


class RecordQuery(Struct):
    """last: seconds at the record's end that are wanted, behind its header; None: all."""

    last: float | None = None


def page_routes() -> Routes:
    """Return the routes of the playground and of the files of all pages."""
    routes = Routes(is_documented=False)

    @routes.get("/playground")
    async def playground(request: Request) -> Response:
        return page_response(served_page("playground.html"), request)

    @routes.get(FILES + "/{name}")
    async def file(request: Request) -> Response:
        name = request.path_params["name"]
        try:
            return page_response(page_file(name), request)
        except KeyError:
            raise ApiError(404, f"The page has no file {name[:60]!r}.", code="not_found") from None

    return routes


def live_routes(live: Live | None) -> Routes:
    """Return the routes of the live page. live: None where the server has none."""
    routes = Routes(is_documented=False)

    @routes.get("/")
    async def page(request: Request) -> Response:
        if not _reads_pages(request):
            return PlainTextResponse(IS_RUNNING)
        return RedirectResponse("docs", 307) if live is None else page_response(served_page("index.html"), request)

    if live is None:
        return routes

    @routes.get(EVENTS)
    async def events(request: Request) -> Response:
        """Stream frames as server-sent events, from behind the one in Last-Event-ID where it is still stored."""
        check_origin(request)
        live.broadcaster.enter()
        return FeedResponse(live.broadcaster, tenant_of(request), request.headers.get("last-event-id"))

    @routes.get(RECORD)
    async def record(request: Request) -> Response:
        """Stream the record up to its present end, or its last seconds; the engine writes on meanwhile."""
        check_origin(request)
        check_operator(tenant_of(request), "download records")
        if live.record is None:
            raise ApiError(404, "This server writes no record; start it with --record FILE.", code="not_found")
        seconds = read_query(request, RecordQuery).last
        pieces, nbytes = await asyncio.to_thread(_record_pieces, live.record, seconds)
        headers = {
            **HEADERS,
            "Cache-Control": "no-store",
            "Content-Length": str(nbytes),
            "Content-Disposition": f"attachment; {_file_name(live.record.name)}",
        }
        return StreamingResponse(pieces, media_type="application/jsonl", headers=headers)

    @routes.get(ACCOUNT)
    async def account(request: Request) -> Response:
        """Return the account of a request in flight."""
        check_origin(request)
        found = await live.broadcaster.account(tenant_of(request), read_query(request, AccountQuery).id)
        headers = {**HEADERS, "Cache-Control": "no-store"}
        return Response(encode_account(found), media_type="application/json", headers=headers)

    return routes


def _record_pieces(path: Path, last: float | None) -> tuple[Iterator[bytes], int]:
    """Return a record piece by piece, and its bytes. last: seconds at its end; None: all of it."""
    file = path.open("rb")
    if last is None:
        nbytes = os.fstat(file.fileno()).st_size
        return file_pieces(file, nbytes), nbytes
    recent = find_recent(path, last)
    header = file.read(recent.header)
    file.seek(recent.begin)
    nbytes = max(0, recent.end - recent.begin)
    return chain((header,), file_pieces(file, nbytes)), len(header) + nbytes


def _file_name(name: str) -> str:
    """Return the parameter of Content-Disposition."""
    quoted = quote(name)
    return f'filename="{name}"' if quoted == name else f"filename*=utf-8''{quoted}"


def _reads_pages(request: Request) -> bool:
    """Return whether a client takes HTML; ollama's clients, which probe a server by this path, do not."""
    accepted = request.headers.get("accept", "")
    return any(one in accepted for one in ("text/html", "text/*", "*/*"))


def check_origin(request: Request) -> None:
    """Check that this server's own page calls, or no page at all. Raises ApiError 403."""
    headers = request.headers
    own = {f"{scheme}://{headers.get('host', '').lower()}" for scheme in ("http", "https")}
    origins, sites = headers.getlist("origin"), headers.getlist("sec-fetch-site")
    if any(one.lower() not in own for one in origins) or {"cross-site", "same-site"} & set(sites):
        raise ApiError(
            403,
            "What is seen live is for this server's own page; pages of other origins may not read it.",
            code="cross_origin",
        )


def page_response(file: PageFile, request: Request) -> Response:
    headers = {**HEADERS, "Cache-Control": "no-cache", "ETag": file.etag, "Vary": "Accept-Encoding"}
    if file.style:
        headers["Content-Security-Policy"] = _POLICY.replace("style-src 'self'", f"style-src 'self' {file.style}")
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(file.content, media_type=file.media_type, headers=headers)
    return Response(file.gzipped, media_type=file.media_type, headers={**headers, "Content-Encoding": "gzip"})


class FeedResponse(Response):
    """Streams the feed to a viewer that has entered, until the viewer or the feed ends."""

    media_type = "text/event-stream"

    def __init__(self, broadcaster: FeedBroadcaster, tenant: Tenant, last_event_id: str | None):
        super().__init__(headers={**HEADERS, "Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._broadcaster, self._tenant, self._last = broadcaster, tenant, last_event_id

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with contextlib.suppress(ClientGone, OSError):
                await until_gone(receive, self._send_all(send), asyncio.Event())
        finally:
            self._broadcaster.leave()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with contextlib.aclosing(self._broadcaster.stream(self._tenant, self._last)) as events:
            async for event in events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
