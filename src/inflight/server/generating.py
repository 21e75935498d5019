"""A call on its way through the engine: opened, followed to its end, timed out.

Knows the bridge's streams; what the answer looks like, `assembly` knows. Not streaming is streaming, collected. A frame
holds all that happened since the last one was taken, so that a slow reader gets fewer and larger frames, and costs
nobody else anything.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any

from inflight.core.events import Event
from inflight.core.request import RequestRefused
from inflight.engine.bridge import AsyncBridge, EngineStopped, EventStream
from inflight.frontend.outputs import OutputCollector
from inflight.server.asking import Call
from inflight.server.assembly import Assembly, frame
from inflight.server.errors import ApiError, refused
from inflight.server.logprobs import TokenNames
from inflight.text import Tokenizer

DONE = b"data: [DONE]\n\n"
ALIVE = b": waiting\n\n"  # a comment, which readers pass over


class Generation:
    """One call that the engine has accepted. Close it, or the engine goes on."""

    def __init__(self, call: Call, stream: EventStream, assembly: Assembly, timeout: float | None):
        """timeout: seconds from now after which the call is ended; None: never."""
        self.call = call
        self.assembly = assembly
        self.error: ApiError | None = None  # told within the stream
        self._stream = stream
        self._timeout = timeout
        self._until = None if timeout is None else time.monotonic() + timeout

    async def close(self) -> None:
        await self._stream.aclose()

    async def answer(self) -> dict[str, Any]:
        """Everything at the end. Raises ApiError."""
        while not self._stream.ended:
            for event in await self._take(None):
                self.assembly.take(event)
        return self.assembly.answer()

    async def frames(self, keep_alive: float) -> AsyncGenerator[bytes, None]:
        """Server-sent events. What goes wrong is told in the stream, because its status is long gone."""
        try:
            while not self._stream.ended:
                events = await self._take(keep_alive)
                if frames := self.assembly.frames(events) if events else ALIVE:
                    yield frames
            if frames := self.assembly.last_frames():
                yield frames
        except ApiError as error:
            self.error = error
            yield frame(error.body)
        yield DONE

    async def _take(self, patience: float | None) -> list[Event]:
        """What has happened since; nothing, when there is no news for so long. Raises ApiError."""
        if self._until is not None:
            left = max(0.0, self._until - time.monotonic())
            patience = left if patience is None else min(patience, left)
        try:
            events = await self._stream.take(patience)
        except EngineStopped as fault:
            raise ApiError(500, str(fault), type="server_error", code="engine_stopped") from None
        if not events and self._until is not None and time.monotonic() >= self._until:
            await self.close()
            raise ApiError(
                408,
                f"The call took longer than {self._timeout:g} s, the server's limit (--request-timeout); ask for fewer "
                "tokens, or try again when less is going on.",
                type="timeout_error",
                code="request_timeout",
            )
        return events


async def open_generation(
    bridge: AsyncBridge, call: Call, tokenizer: Tokenizer | None, names: TokenNames, timeout: float | None
) -> Generation:
    """Hand the call to the engine. Raises ApiError when it is refused."""
    try:
        stream = await bridge.open(*call.requests)
    except RequestRefused as refusal:
        raise refused(refusal, call.prompt_field) from None
    except EngineStopped as fault:
        raise ApiError(500, str(fault), type="server_error", code="engine_stopped") from None
    collectors = {
        request.request_id: OutputCollector(request, tokenizer, prompt)
        for request, prompt in zip(call.requests, call.prompts, strict=True)
    }
    return Generation(call, stream, Assembly(call, collectors, names), timeout)
