"""A call on its way through the engine: opened, followed to its end, or ended before.

A whole answer is a stream
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
from inflight.server.answer_memory import BYTES_PER_ENTRY
from inflight.server.call import Call
from inflight.server.common.answers import ResponseBuilder
from inflight.server.common.logprobs import TokenNames
from inflight.server.errors import ApiError, refused, without_frames
from inflight.server.registry import ENDPOINTS
from inflight.text import Tokenizer

Keep = Callable[[bytes], Awaitable[None]]  # stores an answer, as JSON; may raise ApiError
LAST_WORDS = 2.0  # seconds in which a client may still take why its call was ended


class Delivery:
    """An answer on its way to its client: what is buffered for it, and why it was ended. Release it."""

    def __init__(self, timeout: float | None, since: float | None = None):
        """timeout: seconds after which it is ended; None: never. since: from when on they count, on the event loop's
        clock; None: from now."""
        self.error: ApiError | None = None  # why it was ended, or the error within a stream
        self.given_up = asyncio.Event()  # it was ended, and its client had time to hear so
        self._whole_bytes = 0  # of an answer that is made, and that its client has not taken yet
        self._report: Callable[[int], None] = lambda entries: None
        self._loop = asyncio.get_running_loop()
        self._timers: list[asyncio.TimerHandle] = []
        if timeout is not None:
            when = (self._loop.time() if since is None else since) + timeout
            self._timers.append(self._loop.call_at(when, self.end, _took_too_long(timeout)))

    @property
    def held(self) -> int:
        """Return what the server holds for it, in entries of `answer_memory`."""
        return self._whole_bytes // BYTES_PER_ENTRY

    def report_to(self, report: Callable[[int], None]) -> None:
        """Call `report` with the entries that are held from now on, when they come."""
        self._report = report

    def hold_whole(self, nbytes: int) -> None:
        """Count an answer that is made."""
        self._whole_bytes = nbytes
        self._report(self.held)

    def end(self, error: ApiError) -> None:
        """End it before its time. error: for its client, if it can be sent still."""
        if self.error is None:
            self.error = error
            self._timers.append(self._loop.call_later(LAST_WORDS, self.given_up.set))

    def release(self) -> None:
        """Stop its timers, and keep no frames of its error."""
        for timer in self._timers:
            timer.cancel()
        if self.error is not None:
            without_frames(self.error)


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
        """Return everything at the end, as JSON. Raises ApiError."""
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
        """Return the events since the last ones; none, when nothing happens for so long. Raises ApiError."""
        try:
            return await self._stream.take(patience)
        except EngineStopped as fault:
            raise _broken(without_frames(fault)) from None


async def _put_together(work: Callable[[], bytes], size: int) -> bytes:
    """Return what `work` makes; beside the event loop, where `size` tokens and log-probabilities are many."""
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
    """Open the call's requests at the engine. Raises ApiError when they are refused."""
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


def _took_too_long(timeout: float) -> ApiError:
    return ApiError(
        408,
        f"The call took longer than {timeout:g} s, the server's limit (--request-timeout); ask for fewer tokens, or "
        "try again when less is going on.",
        type="timeout_error",
        code="request_timeout",
    )
