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
from inflight.server.errors import ApiError, refused
from inflight.server.logprobs import TokenNames
from inflight.server.translating import Call
from inflight.text import Tokenizer

DONE = b"data: [DONE]\n\n"
ALIVE = b": waiting\n\n"  # a comment, which readers pass over
LARGE_ANSWER = 1000  # tokens and log-probabilities: from here on it is put together beside the event loop
LAST_WORDS = 2.0  # seconds in which a client may still take why its call was ended


class Generation:
    """One call that the engine has accepted. Close it, or the engine goes on."""

    def __init__(self, call: Call, stream: EventStream, assembly: Assembly, timeout: float | None):
        """timeout: seconds from now after which the call is ended; None: never."""
        self.call = call
        self.assembly = assembly
        self.error: ApiError | None = None  # why it was ended, or what was told within the stream
        self.given_up = asyncio.Event()  # it was ended, and its client had time to hear so
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._timers: list[asyncio.TimerHandle] = []
        if timeout is not None:
            self._timers.append(self._loop.call_later(timeout, self.end, _took_too_long(timeout)))

    @property
    def held(self) -> int:
        """Tokens and log-probabilities that the server holds for it."""
        return self._stream.held

    def end(self, error: ApiError) -> None:
        """Before its time: whoever takes from it, now or later, is told this."""
        if self.error is None and not self._stream.ended:
            self.error = error
            self._stream.break_off(error)
            self._timers.append(self._loop.call_later(LAST_WORDS, self.given_up.set))

    async def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        await self._stream.aclose()

    async def answer(self) -> bytes:
        """Everything at the end, as JSON. Raises ApiError."""
        while not self._stream.ended:
            for event in await self._take(None):
                self.assembly.take(event)
        if self.assembly.size < LARGE_ANSWER:
            return self.assembly.answer()
        return await asyncio.to_thread(self.assembly.answer)

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
            raise _broken(fault) from None


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


def _took_too_long(timeout: float) -> ApiError:
    return ApiError(
        408,
        f"The call took longer than {timeout:g} s, the server's limit (--request-timeout); ask for fewer tokens, or "
        "try again when less is going on.",
        type="timeout_error",
        code="request_timeout",
    )
