"""Files, batch jobs and stored responses, in the process that has them: what others are asked of them (`forwarder`).

Knows ASGI and frames. Who asks, those others have found out: nobody else can reach the socket.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Scope

from inflight.server.errors import ApiError
from inflight.server.json import error_response
from inflight.server.preprocessing.wire import Refused
from inflight.server.processes.forwarded import (
    Asked,
    Begun,
    Keep,
    Piece,
    Previous,
    Settled,
    decode_asked,
    decode_piece,
    encode,
)
from inflight.server.processes.frames import frame, next_frame
from inflight.server.responses.kept import KeptResponses
from inflight.server.tenants import Tenant

log = logging.getLogger(__name__)


class Owner:
    def __init__(self, tenant_of: Callable[[str], Tenant], responses: Callable[[], KeptResponses]):
        """responses: those of this process; may raise ApiError."""
        self._tenant_of, self._responses = tenant_of, responses
        self._routes: ASGIApp | None = None
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    def before(self, routes: ASGIApp) -> ASGIApp:
        """These are asked, here and for others."""
        self._routes = routes
        return routes

    async def listen(self, listening: socket.socket, app: ASGIApp) -> None:
        """app: what the routes are of, which they look at."""
        self._app = app
        self._server = await asyncio.start_unix_server(self._begin, sock=listening)

    async def close(self) -> None:
        """Before files and jobs are. Who is being answered is told to come back."""
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked = decode_asked(await next_frame(reader))
            if isinstance(asked, Asked):
                await self._answer(asked, reader, writer)
            else:
                writer.write(frame(encode(await self._settled(asked))))
                await writer.drain()
            while await reader.read(1 << 16):
                """A socket that is closed with something unread in it takes the answer along."""
        except (OSError, EOFError):
            """Whoever forwarded it has ended, or its client went away."""
        finally:
            writer.close()

    async def _settled(self, asked: Keep | Previous) -> Settled:
        tenant = self._tenant_of(asked.tenant)
        try:
            if isinstance(asked, Previous):
                return Settled(await self._responses().history(tenant, asked.response_id))
            await self._responses().keep(tenant, asked.response_id, asked.response, asked.input_items)
            return Settled()
        except ApiError as error:
            return Settled(error=Refused.of(error))

    async def _answer(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._routes is not None, "they are asked as soon as there is a loop"
        scope, has_begun = {"app": self._app, **_scope(asked, self._tenant_of(asked.tenant))}, False

        async def receive() -> Message:
            try:
                piece = decode_piece(await next_frame(reader))
            except (OSError, EOFError):
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": piece.data, "more_body": piece.more}

        async def send(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun, error = True, scope["state"].get("error")
                told = None if error is None else Refused.of(error)
                writer.write(frame(encode(Begun(message["status"], list(message["headers"]), told))))
            else:
                writer.write(frame(encode(Piece(message.get("body", b""), message.get("more_body", False)))))
                await writer.drain()

        try:
            await self._routes(scope, receive, send)
        except ConnectionError:
            raise
        except Exception as fault:
            log.exception("%s %s met a fault", asked.method, asked.path)
            told = f"The server made a mistake ({type(fault).__name__}); its log has the details."
            if not has_begun:
                error = ApiError(500, told, type="server_error", code="internal_error")
                await error_response(error, scope)(scope, receive, send)


def _scope(asked: Asked, tenant: Tenant) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": asked.method,
        "scheme": "http",
        "path": asked.path,
        "raw_path": asked.path.encode(),
        "query_string": asked.query,
        "root_path": "",
        "headers": asked.headers,
        "client": None,
        "server": None,
        "state": {"tenant": tenant, "request_id": asked.request_id},
    }
