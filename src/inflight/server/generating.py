"""A call on its way through the engine: opened, followed to its end, or ended before.

Knows the bridge's streams; the form of its answer is the serializer's (`common.answers`). A whole answer is a stream
that is collected. A frame holds what happened since the last one was taken, so that a slow reader gets fewer and larger
frames; a large one is put together in a thread, so that other calls do not wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from inflight.core.types.events import Event
from inflight.core.types.request import RequestRefused
from inflight.engine.event_stream import PIECE, EngineStopped, EventStream
from inflight.engine.protocols import EngineClient
from inflight.frontend.outputs import OutputCollector
from inflight.server.call import Call
from inflight.server.common.answers import ResponseBuilder
from inflight.server.common.logprobs import TokenNames
from inflight.server.delivery import Delivery
from inflight.server.errors import ApiError, refused, without_frames
from inflight.server.registry import ENDPOINTS
from inflight.text import Tokenizer

Keep = Callable[[bytes], Awaitable[None]]  # stores an answer, as JSON; may raise ApiError


class Generation(Delivery):
    """One call that the engine has accepted. Close it, or the engine goes on."""

    def __init__(
        self,
        call: Call,
        stream: EventStream,
        response: ResponseBuilder,
        timeout: float | None,
        keep: Keep | None = None,
        since: float | None = None,
    ):
        """timeout, since: see `Delivery`. keep: the answer, before its end is sent."""
        super().__init__(timeout, since)
        self.call = call
        self.response = response
        self._stream, self._keep = stream, keep
        self._kept = 0  # of what was taken, tokens and log-probabilities that the response keeps

    @property
    def held(self) -> int:
        return self._stream.buffered + self._kept + super().held

    def report_to(self, report: Callable[[int], None]) -> None:
        super().report_to(report)
        self._stream.on_put = report

    def end(self, error: ApiError) -> None:
        """End the stream: taking from it, now or later, raises this error."""
        if self.error is None:
            super().end(error)
            self._stream.fail(error)

    async def close(self) -> None:
        self.release()
        await self._stream.aclose()

    async def answer(self) -> bytes:
        """Everything at the end, as JSON. Raises ApiError."""
        while not self._stream.ended:
            for event in await self._take(None):
                self.response.take(event)
            self._kept = self._stream.taken
        try:
            answer = await _put_together(self.response.answer, self._kept)
            if self._keep is not None:
                await self._keep(answer)
            if self.error is not None:  # meanwhile
                raise self.error
        except ApiError as error:
            self.error = error
            raise
        self.response.forget()
        self._kept = 0
        self.hold_whole(len(answer))
        return answer

    async def frames(self, keep_alive: float) -> AsyncGenerator[bytes, None]:
        """Return server-sent events. Errors are events too: the status was sent before the first of them."""
        try:
            while not self._stream.ended:
                taken = self._stream.taken
                events = await self._take(keep_alive)
                size = self._stream.taken - taken + self._kept  # which the first of a choice shows
                response = self.response
                frames = await _put_together(partial(response.frames, events), size) if events else response.alive
                self._kept = self.response.prompt_scores
                if frames:
                    yield frames
            if self._keep is not None:
                await self._keep(self.response.kept())
            yield self.response.last_frames()
        except ApiError as error:
            self.error = error
            yield self.response.failed(error)

    async def _take(self, patience: float | None) -> list[Event]:
        """Return the events since; none, when there are no news for so long. Raises ApiError."""
        try:
            return await self._stream.take(patience)
        except EngineStopped as fault:
            raise _broken(without_frames(fault)) from None


async def _put_together(work: Callable[[], bytes], size: int) -> bytes:
    """size: tokens and log-probabilities. Beside the event loop, where they are many."""
    return work() if size <= PIECE else await asyncio.to_thread(work)


class Opening(Delivery):
    """A call that the engine has not accepted yet: its grammar may have to be compiled first. Its time limit counts,
    and a server that shuts down ends it like any other."""

    def __init__(self, timeout: float | None, opening: Coroutine[Any, Any, Generation]):
        super().__init__(timeout)
        self._task = asyncio.ensure_future(opening)

    def end(self, error: ApiError) -> None:
        super().end(error)
        self._task.cancel()

    async def generation(self) -> Generation:
        """Wait until the engine has accepted the call. Raises ApiError when it is refused, or ended before. A call that
        was accepted at the very moment in which its client left, or it was ended, is closed."""
        try:
            generation = await self._task
        except asyncio.CancelledError:
            if self._is_accepted:
                await self._task.result().close()
            if self.error is not None:
                raise self.error from None
            raise
        if self.error is not None:
            await generation.close()
            raise self.error
        return generation

    @property
    def _is_accepted(self) -> bool:
        return self._task.done() and not self._task.cancelled() and self._task.exception() is None


async def open_generation(
    bridge: EngineClient,
    call: Call,
    tokenizer: Tokenizer | None,
    names: TokenNames,
    timeout: float | None,
    keep: Keep | None = None,
) -> Generation:
    """Hand the call to the engine. Raises ApiError when it is refused."""
    since = asyncio.get_running_loop().time()

    collectors = {
        request.request_id: OutputCollector(request, tokenizer, prompt, call.stream, call.parsing)
        for request, prompt in zip(call.requests, call.prompts, strict=True)
    }
    response = ResponseBuilder(call, collectors, names)
    try:
        stream = await bridge.open(*call.requests)
    except RequestRefused as refusal:
        raise refused(refusal, ENDPOINTS[call.kind].prompt_field, call.form_field) from None
    except EngineStopped as fault:
        raise _broken(fault) from None
    return Generation(call, stream, response, timeout, keep, since)


def _broken(fault: EngineStopped) -> ApiError:
    return ApiError(500, str(fault), type="server_error", code="engine_stopped")
