"""An answer that is sent while it is made, and work that ends when its client goes away.

Knows ASGI messages. The transport is asked to take one frame after the other: while a slow reader's connection is full,
nothing is taken from the engine's events, and the next frame holds them all.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from inflight.server.service import GONE, OpenCall

T = TypeVar("T")


class ClientGone(Exception):
    """Nobody is left to answer."""


class EventStreamResponse(Response):
    """Server-sent events of a call, which is closed when they end and when the client goes away."""

    media_type = "text/event-stream"

    def __init__(self, call: OpenCall, keep_alive: float):
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._call = call
        self._keep_alive = keep_alive

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, generation = 500, self._call.generation
        try:
            await until_gone(receive, self._send_all(send), generation.given_up)
            status = 200
        except (ClientGone, OSError, asyncio.CancelledError):
            status = GONE
        finally:
            error = generation.error  # told within the stream
            await self._call.close(*((status, None) if error is None else (error.status, error)))

    async def _send_all(self, send: Send) -> None:
        generation = self._call.generation
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with contextlib.aclosing(generation.frames(self._keep_alive)) as frames:
            async for frame in frames:
                await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def until_gone(receive: Receive, work: Coroutine[Any, Any, T], given_up: asyncio.Event) -> T:
    """The work's result; it is cancelled, and ClientGone raised, when the client goes away before, or has not even
    taken that its call was ended."""
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
