"""Answers that are sent, and work that ends when its client goes away.

The transport is asked to take one piece after the other, so that what a client does not read stays where it is counted:
with its call.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from inflight.server.asgi import PIECE_BYTES, abandon
from inflight.server.generating import GONE, Delivery, Generation

T = TypeVar("T")


class ClientGone(Exception):
    """The client has left."""


class CallResponse(Response):
    """The answer to a call, which is closed when it is sent and when the client goes away."""

    def __init__(self, generation: Generation, headers: dict[str, str] | None = None):
        super().__init__(headers=headers)
        del self.headers["content-length"]
        self._generation = generation
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, generation = 500, self._generation
        try:
            await until_gone(receive, self._send_all(send), generation.given_up)
            status = 200
        except (ClientGone, OSError, asyncio.CancelledError):
            status = GONE
            if self._begun:
                abandon(scope)
            else:
                await Response(status_code=GONE)(scope, receive, send)
        finally:
            await generation.close(status)

    async def _send_all(self, send: Send) -> None:
        raise NotImplementedError


class WholeAnswer(CallResponse):
    """One JSON text at the end. Raises ApiError before anything is sent."""

    async def _send_all(self, send: Send) -> None:
        generation = self._generation
        answer = await generation.answer()
        self._begun = True
        await send_json(answer, send)
        generation.error = None  # were its time over meanwhile: it was taken


class EventStreamResponse(CallResponse):
    """Events or lines, sent while they are made. While a slow reader's connection is full, nothing is taken from the
    engine's events, and the next frames hold them all."""

    def __init__(self, generation: Generation, keep_alive: float, media_type: str):
        self.media_type = media_type
        super().__init__(generation, {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._keep_alive = keep_alive

    async def _send_all(self, send: Send) -> None:
        self._begun = True
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with contextlib.aclosing(self._generation.frames(self._keep_alive)) as frames:
            async for frame in frames:
                await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class PreparedResponse(Response):
    """JSON that needs no engine. It counts among its tenant's calls until it is taken."""

    def __init__(self, entered: AbstractContextManager[Delivery], made: Callable[[], Awaitable[bytes]]):
        """made: may raise ApiError, and ClientGone."""
        super().__init__()
        self._entered = entered
        self._made = made

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._entered as delivery:
            try:
                answer = await self._made()
            except ClientGone:
                return await Response(status_code=GONE)(scope, receive, send)
            delivery.hold_whole(len(answer))
            if delivery.error is not None:
                raise delivery.error
            if len(answer) <= PIECE_BYTES:  # who leaves costs less than to watch for it
                return await send_json(answer, send)
            try:
                await until_gone(receive, send_json(answer, send), delivery.given_up)
            except ClientGone:
                abandon(scope)


async def send_json(content: bytes, send: Send) -> None:
    """Send an answer that is JSON already."""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for end in range(PIECE_BYTES, len(content) + PIECE_BYTES, PIECE_BYTES):
        piece = content[end - PIECE_BYTES : end]
        await send({"type": "http.response.body", "body": piece, "more_body": end < len(content)})


async def until_gone(receive: Receive, work: Coroutine[Any, Any, T], given_up: asyncio.Event) -> T:
    """Return the work's result; it is cancelled, and ClientGone raised, when the client goes away before, or has not
    even taken that its call was ended."""
    task = asyncio.ensure_future(work)
    watches = [asyncio.ensure_future(_gone(receive)), asyncio.ensure_future(given_up.wait())]
    try:
        await asyncio.wait((task, *watches), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGone
        return task.result()
    finally:
        for one in (task, *watches):
            if not one.done():
                one.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await one


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
