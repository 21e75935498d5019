"""An answer that is sent while it is made: server-sent events.

While a slow reader's connection is full, nothing is taken from the engine's events, and the next frames hold them all.
"""

from __future__ import annotations

import contextlib

from starlette.types import Send

from inflight.server.sending import CallResponse
from inflight.server.service import OpenCall


class EventStreamResponse(CallResponse):
    media_type = "text/event-stream"

    def __init__(self, call: OpenCall, keep_alive: float):
        super().__init__(call, {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._keep_alive = keep_alive

    async def _send_all(self, send: Send) -> None:
        self._begun = True
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with contextlib.aclosing(self._call.generation.frames(self._keep_alive)) as frames:
            async for frame in frames:
                await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
