"""Bodies of requests: bounded in size and time, inflated where they are compressed, and counted in one budget.

The application is called when the body is here, and gets it in one piece. Files are the exception: they go to the disk
as they come, and have a limit of their own.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterator

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inflight.counted import shortened
from inflight.server.asgi import closing, has_body, header, refuse, state_of
from inflight.server.errors import ApiError, invalid
from inflight.server.ingress.addresses import address_key
from inflight.server.ingress.body_budget import BodyBudget, BodyLease
from inflight.server.tenants import Tenant

UPLOADS = "/v1/files"
INFLATED_BYTES = 1 << 18  # that one step inflates: a fraction of a millisecond
_WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # as zlib names its formats


class _Gone(Exception):
    """The client went away before its body was here."""


class BodyLimits:
    """Puts the body's lease into the request's state as `body_lease`: who has used the body may release it early; what
    is left is released when the request ends."""

    def __init__(self, app: ASGIApp, budget: BodyBudget, seconds: float, upload_seconds: float):
        """Wrap `app`.

        Args:
            app: The application behind the limits.
            budget: Of all bodies in memory.
            seconds: In which a body must come.
            upload_seconds: In which an uploaded file must come.
        """
        self._app, self._budget = app, budget
        self._seconds, self._upload_seconds = seconds, upload_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        lease = state_of(scope)["body_lease"] = self._budget.lease(_owner(scope))
        if not has_body(scope):
            return await self._app(scope, receive, send)
        if scope["method"] == "POST" and scope["path"].rstrip("/") == UPLOADS:
            return await self._upload(scope, receive, send)
        try:
            try:
                parts = [await self._read(scope, _Deadline(self._seconds, "--body-timeout", receive), lease)]
            except ApiError as error:
                return await refuse(error, scope, receive, send)
            except _Gone:
                return

            async def once() -> Message:
                if parts:
                    return {"type": "http.request", "body": parts.pop(), "more_body": False}
                return await receive()

            await self._app(scope, once, send)
        finally:
            lease.release()

    async def _read(self, scope: Scope, receive: _Deadline, lease: BodyLease) -> bytes:
        announced, inflater = header(scope, b"content-length"), _inflater_for(scope)
        if announced is not None and int(announced) > self._budget.longest:
            raise self._too_large(int(announced))
        await lease.reserve(None if announced is None or inflater is not None else int(announced))
        body, compressed, is_last = bytearray(), 0, False
        try:
            while not is_last:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise _Gone
                piece, is_last = message.get("body", b""), not message.get("more_body", False)
                compressed += len(piece)
                if compressed > self._budget.longest:  # which may inflate to nothing
                    raise self._too_large(compressed)
                for one in (piece,) if inflater is None else inflater.inflate(piece):
                    if len(body) + len(one) > self._budget.longest:
                        raise self._too_large(len(body) + len(one))
                    await lease.grow(len(one))
                    body += one
                    if inflater is not None:
                        await asyncio.sleep(0)
            if inflater is not None:
                inflater.check_ended()
            lease.complete()
            return bytes(body)
        finally:
            body.clear()  # an error's traceback would keep it

    async def _upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a file through, piece by piece; an answer before the last one ends the connection."""
        if header(scope, b"content-encoding") not in (None, b"identity"):
            sentence = "Uploads do not support Content-Encoding; leave the header out, and send the file uncompressed."
            error = ApiError(415, sentence, code="unsupported_encoding", accepts="identity")
            return await refuse(error, scope, receive, send)
        deadline, ended = _Deadline(self._upload_seconds, "--upload-timeout", receive), False

        async def piece() -> Message:
            nonlocal ended
            message = await (receive() if ended else deadline())
            ended = ended or not message.get("more_body", False)
            return message

        await self._app(scope, piece, closing(receive, send, lambda: ended))

    def _too_large(self, size: int) -> ApiError:
        most = self._budget.longest
        sentence = f"The body has at least {size:,} bytes, and the maximum is {most:,} (--max-body-mb); send less."
        return ApiError(413, sentence, code="body_too_large")


class _Deadline:
    """Receives a body within a time, of which only what was spent waiting for the client counts."""

    def __init__(self, seconds: float, option: str, receive: Receive):
        self._seconds, self._left, self._option, self._receive = seconds, seconds, option, receive

    async def __call__(self) -> Message:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(self._left):
                message = await self._receive()
        except TimeoutError:
            sentence = (
                f"The body did not arrive within {self._seconds:g} s ({self._option}); send a smaller one, or faster."
            )
            raise ApiError(408, sentence, code="body_timeout") from None
        self._left = max(0.0, self._left - (loop.time() - began))
        return message


class Inflater:
    """Inflates one body, no more at a time than is asked for."""

    def __init__(self, encoding: str):
        self._encoding = encoding
        self._library = zlib.decompressobj(_WINDOWS[encoding])
        self._begun = False

    def inflate(self, piece: bytes) -> Iterator[bytes]:
        """Yield what a piece of the compressed body holds, at most INFLATED_BYTES at a time. Raises ApiError 400."""
        while piece:
            if self._library.eof:  # files of gzip may be several, one behind the other
                self._library = zlib.decompressobj(_WINDOWS[self._encoding])
            try:
                inflated = self._library.decompress(piece, INFLATED_BYTES)
            except zlib.error as error:
                raise self._damaged(str(error).rpartition(": ")[2]) from None
            self._begun = True
            piece = self._library.unused_data if self._library.eof else self._library.unconsumed_tail
            if inflated:
                yield inflated

    def check_ended(self) -> None:
        """Raises ApiError 400 where the body is cut off."""
        if not (self._begun and self._library.eof):
            raise self._damaged("it is cut off")

    def _damaged(self, why: str) -> ApiError:
        sentence = f"The body cannot be decompressed as {self._encoding} ({why}); compress it as Content-Encoding says."
        return invalid(sentence, code="invalid_encoding")


def _inflater_for(scope: Scope) -> Inflater | None:
    """Return what inflates the request's body; None where it is not compressed. Raises ApiError 415."""
    encoding = (header(scope, b"content-encoding") or b"").decode("latin-1").strip().lower()
    if encoding in ("", "identity"):
        return None
    if encoding not in _WINDOWS:
        given = shortened(encoding)
        sentence = f"Content-Encoding {given!r} is not supported; send gzip, deflate or no compression."
        raise ApiError(415, sentence, code="unsupported_encoding", accepts="gzip, deflate")
    return Inflater(encoding)


def _owner(scope: Scope) -> str:
    tenant, client = state_of(scope).get("tenant"), scope.get("client")
    if isinstance(tenant, Tenant) and tenant.name:
        return f"tenant {tenant.name}"
    return address_key(client[0] if client else "")
