"""How slowly a body may come: by when it must be there, and how much of it in every few seconds.

The connection hands a body on in gulps, so a client that is too slow is one whose next gulp does not come in time. Only
time that was spent waiting for the client counts.
"""

from __future__ import annotations

import asyncio

from starlette.types import Message, Receive

from inflight.server.errors import ApiError

WINDOW_SECONDS = 5.0
LEAST_RATE = 1024  # bytes a second, within each window
GULP_BYTES = int(WINDOW_SECONDS * LEAST_RATE)  # of a body: nobody is called for less, but at its end


class Pace:
    def __init__(self, seconds: float, option: str):
        """seconds: for the whole body. option: by which that is set."""
        self._most = seconds
        self._left = seconds
        self._option = option

    async def message(self, receive: Receive) -> Message:
        """The next one. Raises ApiError 408 when it comes too late."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            async with asyncio.timeout(max(0.0, min(self._left, WINDOW_SECONDS))):
                message = await receive()
        except TimeoutError:
            raise self._late() from None
        self._left -= loop.time() - started
        return message

    def _late(self) -> ApiError:
        if self._left <= WINDOW_SECONDS:
            why = f"The body did not come within {self._most:g} s ({self._option})"
        else:
            why = f"The body came at less than {LEAST_RATE:,} bytes a second for {WINDOW_SECONDS:g} s"
        return ApiError(408, f"{why}; send it again, faster or in parts.", code="body_timeout")
