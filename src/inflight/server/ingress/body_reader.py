"""Bodies on their way in: bounded in size, in time and, all of them together, in memory.

Compressed bodies are inflated as they come, and count as what they hold. A body for which its owner's share of memory
has no room is not read from its connection until it has its turn.

The application is called when the body is here, and gets it in one piece. Files are the exception: they go to the disk
as they come, and have a limit of their own.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inflight.server.errors import ApiError
from inflight.server.ingress.answering import CLOSE, has_body, header, piece_seconds, refuse, state_of
from inflight.server.ingress.body_budget import SMALL_BYTES, BodyBudget, BodyLease
from inflight.server.ingress.content_encoding import inflater_for
from inflight.server.ingress.pace import Pace
from inflight.server.ingress.request_share import client_key
from inflight.server.ingress.turns import PIECE_SECONDS, Turns
from inflight.server.tenants import Tenant

UPLOADS = "/v1/files"


class _Gone(Exception):
    """The client went away before its body was here."""


class BodyReader:
    """Puts the body's lease into the request's state as `body_lease`: who has used the body may release it early; what
    is left is released when the request ends."""

    def __init__(
        self, app: ASGIApp, budget: BodyBudget, turns: Turns, most: int, seconds: float, upload_seconds: float
    ):
        """turns: that the second and further pieces of a body wait for. most: bytes of one body. seconds,
        upload_seconds: until it must be here."""
        self._app = app
        self._budget = budget
        self._turns = turns
        self._most = most
        self._seconds, self._upload_seconds = seconds, upload_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        lease = state_of(scope)["body_lease"] = self._budget.lease(_owner(scope))
        if not has_body(scope):
            return await self._app(scope, receive, send)
        if scope["method"] == "POST" and scope["path"].rstrip("/") == UPLOADS:
            if header(scope, b"content-encoding") not in (None, b"identity"):
                return await refuse(_compressed_upload(), scope, receive, send)
            return await self._stream(scope, receive, send)
        try:
            try:
                parts = [await self._read(scope, receive, lease)]
            except ApiError as error:
                await self._turns.wait(client_key(scope))  # the time of hundreds may be over in the same moment
                return await refuse(error, scope, receive, send)
            except _Gone:
                return
            await self._app(scope, _whole(parts, receive), send)
        finally:
            lease.release()

    async def _read(self, scope: Scope, receive: Receive, lease: BodyLease) -> bytes:
        announced, inflater = int(header(scope, b"content-length") or 0), inflater_for(scope)
        if announced > self._most:
            raise self._too_large(announced)
        if inflater is not None:
            announced = 0  # what it holds is not known
        body, pace, address = bytearray(), Pace(self._seconds, "--body-timeout"), client_key(scope)
        compressed = 0  # bytes, which may inflate to none
        await lease.reserve(announced)
        try:
            while True:
                message = await pace.message(receive)
                if message["type"] == "http.disconnect":
                    raise _Gone
                piece: bytes = message.get("body", b"")
                last = not message.get("more_body", False)
                if inflater is not None:
                    compressed += len(piece)
                    if compressed > self._most:
                        raise self._too_large(compressed)
                    for inflated in inflater.inflate(piece):
                        await self._take(body, inflated, lease, announced=False)
                        await self._turns.wait(address, seconds=PIECE_SECONDS)
                    if last:
                        inflater.check_ended()
                else:
                    await self._take(body, piece, lease, announced=last or bool(announced))
                if last:
                    lease.complete()
                    return bytes(body)
                await self._turns.wait(address, seconds=_seconds_of_piece(scope))
        finally:
            body.clear()  # an error's traceback would keep it

    async def _take(self, body: bytearray, piece: bytes, lease: BodyLease, *, announced: bool) -> None:
        """Append a piece. announced: its size was known before it came. Raises ApiError where it has no room."""
        size = len(body) + len(piece)
        if size > self._most:
            raise self._too_large(size)
        if not announced and size > SMALL_BYTES:
            await lease.reserve(None)
        await lease.grow(len(piece))
        body += piece

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Piece by piece, at the pace of whoever asks for them; an answer before the last one ends the connection."""
        pace, ended, address = Pace(self._upload_seconds, "--upload-timeout"), False, client_key(scope)

        async def paced() -> Message:
            nonlocal ended
            if ended:
                return await receive()
            await self._turns.wait(address, seconds=_seconds_of_piece(scope))
            message = await pace.message(receive)
            ended = not message.get("more_body", False)
            return message

        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start" and not ended:
                message["headers"].append(CLOSE)
            await send(message)

        await self._app(scope, paced, closing)

    def _too_large(self, size: int) -> ApiError:
        return ApiError(
            413,
            f"The body has {size:,} bytes or more, and {self._most:,} are allowed (--max-body-mb); send less.",
            code="body_too_large",
        )


def _compressed_upload() -> ApiError:
    sentence = "Files are uploaded without Content-Encoding; leave that header out, and send the file uncompressed."
    return ApiError(415, sentence, code="unsupported_encoding", accepts="identity")


def _seconds_of_piece(scope: Scope) -> float:
    """Return the seconds that the next piece will take, if it is like the last."""
    return max(PIECE_SECONDS, piece_seconds(scope))


def _whole(parts: list[bytes], receive: Receive) -> Receive:
    """Gives the body once, keeping nothing of it, and then what else becomes of the connection."""

    async def once() -> Message:
        if parts:
            return {"type": "http.request", "body": parts.pop(), "more_body": False}
        return await receive()

    return once


def _owner(scope: Scope) -> str:
    tenant = state_of(scope).get("tenant")
    if isinstance(tenant, Tenant) and tenant.name:
        return f"tenant {tenant.name}"
    return client_key(scope)
