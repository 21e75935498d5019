"""Serves the live page over records of runs, on this machine alone.

It takes calls under its own host names only, and refuses pages of other origins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from inflight.live.frames import encode
from inflight.live.page_files import page_file, served_page
from inflight.live.replays import Replay
from inflight.server.asgi import error_response
from inflight.server.errors import ApiError
from inflight.server.ingress.guard import BrowserGuard
from inflight.server.live.routes import HEADERS, check_origin, page_response


def replay_app(replays: Sequence[Replay]) -> BrowserGuard:
    """Return an ASGI application."""
    page = served_page("index.html", f'<meta name="inflight-replay" content="{len(replays)}">')

    async def front_page(request: Request) -> Response:
        return page_response(page, request)

    async def file(request: Request) -> Response:
        try:
            return page_response(page_file(request.path_params["name"]), request)
        except KeyError:
            return Response(status_code=404)

    async def frames(request: Request) -> Response:
        try:
            check_origin(request)
        except ApiError as error:
            return error_response(error, request.scope)
        number = request.path_params["number"]
        if number >= len(replays):
            return Response(status_code=404)
        headers = {**HEADERS, "Cache-Control": "no-store"}
        lines = _lines(replays[number])
        if "from" in request.query_params:
            try:
                start, end = (float(request.query_params[name]) for name in ("from", "to"))
            except (KeyError, ValueError):
                return Response(status_code=400)
            if not -1e9 < start < end < 1e9:
                return Response(status_code=400)
            lines = (encode(frame) + b"\n" for frame in replays[number].between(start, end))
        return StreamingResponse(lines, media_type="application/jsonl", headers=headers)

    routes = [Route("/", front_page), Route("/ui/{name}", file), Route("/frames/{number:int}", frames)]
    return BrowserGuard(Starlette(routes=routes), (), ())


def _lines(replay: Replay) -> Iterator[bytes]:
    """Yield lines, made in a thread while they are sent: a long record is never in memory whole."""
    yield encode(replay.hello) + b"\n"
    for frame in replay.frames():
        yield encode(frame) + b"\n"
