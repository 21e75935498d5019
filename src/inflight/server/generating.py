"""A call on its way through the engine: opened, followed to its end, or ended before.

Knows the bridge's streams; what the answer looks like, `assembly` knows. Not streaming is streaming, collected. A frame
holds all that happened since the last one was taken, so that a slow reader gets fewer and larger frames, and costs
nobody else anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from inflight.core.events import Event
from inflight.core.request import RequestRefused
from inflight.engine.bridge import MANY, AsyncBridge
from inflight.engine.event_stream import EngineStopped, EventStream
from inflight.frontend.outputs import OutputCollector
from inflight.server.assembly import Assembly, frame
from inflight.server.delivery import Delivery
from inflight.server.errors import ApiError, refused, without_frames
from inflight.server.logprobs import TokenNames
from inflight.server.translating import Call
from inflight.text import Tokenizer

DONE = b"data: [DONE]\n\n"
ALIVE = b": waiting\n\n"  # a comment, which readers pass over
LARGE_ANSWER = 1000  # tokens and log-probabilities: from here on it is put together beside the event loop


class Generation(Delivery):
    """One call that the engine has accepted. Close it, or the engine goes on."""

    def __init__(self, call: Call, stream: EventStream, assembly: Assembly, timeout: float | None):
        """timeout: seconds from now after which the call is ended; None: never."""
        super().__init__(timeout)
        self.call = call
        self.assembly = assembly
        self._stream = stream

    @property
    def held(self) -> int:
        return self._stream.held + super().held

    def end(self, error: ApiError) -> None:
        """Whoever takes from it, now or later, is told this."""
        if self.error is None:
            super().end(error)
            self._stream.break_off(error)

    async def close(self) -> None:
        self.release()
        await self._stream.aclose()

    async def answer(self) -> bytes:
        """Everything at the end, as JSON. Raises ApiError."""
        while not self._stream.ended:
            for event in await self._take(None):
                self.assembly.take(event)
        try:
            large = self.assembly.size >= LARGE_ANSWER
            answer = await asyncio.to_thread(self.assembly.answer) if large else self.assembly.answer()
            if self.error is not None:  # meanwhile
                raise self.error
        except ApiError as error:
            self.error = error
            raise
        self.whole_bytes = len(answer)
        return answer

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
        try:
            return await self._stream.take(patience)
        except EngineStopped as fault:
            raise _broken(without_frames(fault)) from None


async def open_generation(
    bridge: AsyncBridge, call: Call, tokenizer: Tokenizer | None, names: TokenNames, timeout: float | None
) -> Generation:
    """Hand the call to the engine. Raises ApiError when it is refused."""

    def collecting() -> dict[str, OutputCollector]:
        pairs = zip(call.requests, call.prompts, strict=True)
        return {request.request_id: OutputCollector(request, tokenizer, prompt) for request, prompt in pairs}

    many = sum(request.params.n for request in call.requests) > MANY
    collectors = await asyncio.to_thread(collecting) if many else collecting()
    assembly = Assembly(call, collectors, names)
    try:
        stream = await bridge.open(*call.requests)
    except RequestRefused as refusal:
        raise refused(refusal, call.prompt_field) from None
    except EngineStopped as fault:
        raise _broken(fault) from None
    return Generation(call, stream, assembly, timeout)


def _broken(fault: EngineStopped) -> ApiError:
    return ApiError(500, str(fault), type="server_error", code="engine_stopped")
