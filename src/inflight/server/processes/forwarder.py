"""Files, batch jobs and stored responses, in a process that does not have them: what is asked about them goes to the
one that does (`owner`).

Stands between the ingress and the routes: who asks, limits and logs are this process's, what is answered is not. Keeps
nothing: pieces of bodies pass as fast as the other side takes them.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from pathlib import Path

from starlette.types import ASGIApp, Receive, Scope, Send

from inflight.server.batch.files import Files
from inflight.server.batch.jobs import Jobs
from inflight.server.errors import ApiError
from inflight.server.ingress.answering import refuse, state_of
from inflight.server.ingress.authentication import CREDENTIALS
from inflight.server.processes.forwarded import (
    Asked,
    Begun,
    Keep,
    Piece,
    Previous,
    Settled,
    decode_answer,
    decode_settled,
    encode,
    is_about_stored,
)
from inflight.server.processes.frames import frame, next_frame
from inflight.server.responses.kept import KeptResponses, Responses
from inflight.server.tenants import Tenant


class Forwarder:
    def __init__(self, address: Path):
        """address: the socket of the process that has files and jobs."""
        self._address = address

    def before(self, routes: ASGIApp) -> ASGIApp:
        return partial(self._forward, routes)

    async def _forward(self, routes: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_about_stored(scope["path"]):
            return await routes(scope, receive, send)
        try:
            reader, writer = await asyncio.open_unix_connection(str(self._address))
        except OSError:
            return await refuse(_away(), scope, receive, send)
        exchange = _Exchange(scope, receive, send, reader, writer)
        try:
            await exchange.run()
        except ApiError as error:
            await refuse(error, scope, receive, send)
        finally:
            writer.close()

    # -- what the routes' document knows; no request comes so far ---------------------------------------------------

    @property
    def files(self) -> Files:
        raise _away()

    @property
    def jobs(self) -> Jobs:
        raise _away()

    @property
    def responses(self) -> Responses:
        raise _away()

    @property
    def kept_responses(self) -> KeptResponses:
        """Asked by answers that are made here."""
        return RemoteResponses(self._address)

    @property
    def paused(self) -> None:
        raise _away()


class RemoteResponses:
    """`KeptResponses` that another process has."""

    def __init__(self, address: Path):
        self._address = address

    async def keep(self, tenant: Tenant, response_id: str, response: bytes, input_items: bytes) -> None:
        await self._ask(Keep(tenant.name, response_id, response, input_items))

    async def history(self, tenant: Tenant, response_id: str) -> bytes:
        return (await self._ask(Previous(tenant.name, response_id))).history

    async def _ask(self, question: Keep | Previous) -> Settled:
        """Raises ApiError."""
        try:
            reader, writer = await asyncio.open_unix_connection(str(self._address))
            try:
                writer.write(frame(encode(question)))
                settled = decode_settled(await next_frame(reader))
            finally:
                writer.close()
        except (OSError, EOFError):
            raise _away() from None
        if settled.error is not None:
            raise settled.error.error()
        return settled


class _Exchange:
    """One request and its answer."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ):
        self._scope, self._receive, self._send = scope, receive, send
        self._reader, self._writer = reader, writer
        self._has_begun = False

    async def run(self) -> None:
        """Until all is answered, or the client has gone away. Raises ApiError, while nothing is answered."""
        asking, answering = asyncio.ensure_future(self._ask()), asyncio.ensure_future(self._answer())
        try:
            await asyncio.wait((asking, answering), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                if not self._has_begun:
                    await asking
                return
            await answering
        except (OSError, EOFError):
            if not self._has_begun:
                raise _away() from None
            return  # the web server closes the connection: an answer that is cut off must not look whole
        finally:
            for task in (asking, answering):
                task.cancel()
            await asyncio.gather(asking, answering, return_exceptions=True)

    async def _ask(self) -> None:
        """Ends when the client goes away. Raises what becomes of a body that is late or too large (ApiError)."""
        scope, state = self._scope, state_of(self._scope)
        headers = [one for one in scope["headers"] if one[0] not in CREDENTIALS]
        asked = Asked(
            scope["method"], scope["path"], scope["query_string"], headers, state["tenant"].name, state["request_id"]
        )
        with contextlib.suppress(OSError):  # as whoever waits for the answer finds out, which may have come before
            self._writer.write(frame(encode(asked)))
            while (message := await self._receive())["type"] == "http.request":
                piece = Piece(message.get("body", b""), message.get("more_body", False))
                self._writer.write(frame(encode(piece)))
                await self._writer.drain()
            return
        await asyncio.Event().wait()

    async def _answer(self) -> None:
        """Raises EOFError or OSError, where the other side ends before its answer does."""
        more = True
        while more:
            message = decode_answer(await next_frame(self._reader))
            if isinstance(message, Begun):
                if message.error is not None:
                    state_of(self._scope)["error"] = message.error.error()
                self._has_begun = True
                await self._send({"type": "http.response.start", "status": message.status, "headers": message.headers})
            else:
                more = message.more
                await self._send({"type": "http.response.body", "body": message.data, "more_body": more})


def _away() -> ApiError:
    return ApiError(
        503,
        "The process that has files, batch jobs and stored responses has ended; try again in a moment.",
        type="server_error",
        code="jobs_away",
        retry_after=1.0,
    )
