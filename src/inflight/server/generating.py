"""A call on its way through the engine and to its client: opened, followed to its end, or ended before.

A whole answer is a stream that is collected. A frame holds what happened since the last one was taken, so that a slow
reader gets fewer and larger frames; a large one is put together in a thread, so that other calls do not wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from inflight.core.types.events import Event
from inflight.core.types.request import RequestRefused
from inflight.engine.event_stream import PIECE, EngineStopped, EventStream
from inflight.engine.protocols import EngineClient
from inflight.frontend.outputs import OutputCollector
from inflight.server.answer_memory import BYTES_PER_ENTRY
from inflight.server.common.answers import ResponseBuilder
from inflight.server.common.logprobs import TokenNames
from inflight.server.common.prepared import Call
from inflight.server.errors import ApiError, refused, without_frames
from inflight.server.registry import ENDPOINTS
from inflight.text import Tokenizer

Keep = Callable[[bytes], Awaitable[None]]  # stores an answer, as JSON; may raise ApiError
LAST_WORDS = 2.0  # seconds in which a client may still take why its call was ended
GONE = 499  # what logs write as the status of a client that has left


class Delivery:
    """An answer on its way to its client: what is buffered for it, and why it was ended. Release it."""

    def __init__(self, timeout: float | None):
        """timeout: seconds from now after which it is ended; None: never."""
        self.error: ApiError | None = None  # why it was ended, or the error within a stream
        self.given_up = asyncio.Event()  # it was ended, and its client had time to read why
        self._whole_bytes = 0  # of an answer that is made, and that its client has not taken yet
        self._report: Callable[[int], None] = lambda entries: None
        self._loop = asyncio.get_running_loop()
        self._timers: list[asyncio.TimerHandle] = []
        if timeout is not None:
            self._timers.append(self._loop.call_later(timeout, self.end, _took_too_long(timeout)))

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
    """One call. Open it, and close it when it was accepted, or the engine goes on."""

    def __init__(
        self,
        call: Call,
        tokenizer: Tokenizer | None,
        names: TokenNames,
        timeout: float | None = None,
        keep: Keep | None = None,
    ):
        """keep: stores the answer before its end is sent. timeout: as `Delivery`; it counts while the call opens."""
        super().__init__(timeout)
        collectors = {
            request.request_id: OutputCollector(request, tokenizer, prompt, call.stream, call.parsing)
            for request, prompt in zip(call.requests, call.prompts, strict=True)
        }
        self.call, self.response = call, ResponseBuilder(call, collectors, names)
        self.on_close: Callable[[int, ApiError | None], None] = lambda status, error: None
        self._keep = keep
        self._opening: asyncio.Future[EventStream] | None = None
        self._opened: EventStream | None = None
        self._kept = 0  # of what was taken, tokens and log-probabilities that the response keeps
        self._began: float | None = None  # when the first token came, of a call that has a time for its lines
        self._waits_since = 0.0  # when the last wait for events began
        self._silence: asyncio.TimerHandle | None = None  # one for a stream: one for each wait would cost a tenth of it

    async def open(self, engine: EngineClient) -> None:
        """Submit the call, and wait until the engine has accepted it, whose grammar may have to be compiled first.
        Raises ApiError where it is refused, or was ended meanwhile; then the engine has nothing of it."""
        opening = self._opening = asyncio.ensure_future(engine.open(*self.call.requests))
        try:
            stream = await opening
        except asyncio.CancelledError:
            if opening.done() and not opening.cancelled() and opening.exception() is None:
                await opening.result().aclose()  # it was accepted as its client left, or it was ended
            if self.error is not None:
                raise self.error from None
            raise
        except RequestRefused as refusal:
            raise refused(refusal, ENDPOINTS[self.call.kind].prompt_field, self.call.form_field) from None
        except EngineStopped as fault:
            raise _broken(fault) from None
        if self.error is not None:
            await stream.aclose()
            raise self.error
        self._opened, stream.on_put = stream, self._report

    @property
    def held(self) -> int:
        buffered = 0 if self._opened is None else self._opened.buffered
        return buffered + self._kept + super().held

    def end(self, error: ApiError) -> None:
        """End the call: taking from its stream, now or later, raises this error."""
        if self.error is None:
            super().end(error)
            if self._opened is not None:
                self._opened.fail(error)
            elif self._opening is not None:
                self._opening.cancel()

    def release(self) -> None:
        super().release()
        if self._silence is not None:
            self._silence.cancel()

    async def close(self, status: int = GONE) -> None:
        """End what is left of it, and report how it ended: by its error, if it has one, else with a HTTP status."""
        self.release()
        await self._stream.aclose()
        self.on_close(*((status, None) if self.error is None else (self.error.status, self.error)))

    async def answer(self) -> bytes:
        """Return everything at the end, as JSON. Raises ApiError."""
        while not (self._stream.ended or self._check_line()):
            for event in await self._take():
                self.response.take(event)
            self._kept = self._stream.taken
        try:
            make = self.response.answer
            answer = make() if self._kept <= PIECE else await asyncio.to_thread(make)
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
        stream, response = self._stream, self.response
        self._silence = self._loop.call_later(keep_alive, self._end_silence, keep_alive)
        try:
            while not (stream.ended or self._check_line()):
                taken = stream.taken
                self._waits_since = self._loop.time()
                events = await self._take()
                size = stream.taken - taken + self._kept  # which the first of a choice shows
                if not events:
                    frames = response.alive
                elif size <= PIECE:
                    frames = response.frames(events)
                else:
                    frames = await asyncio.to_thread(response.frames, events)
                self._kept = response.prompt_scores
                if frames:
                    yield frames
            if self._keep is not None:
                await self._keep(response.kept())
            yield response.last_frames()
        except ApiError as error:
            self.error = error
            yield response.failed(error)

    def _check_line(self) -> bool:
        """Begin the time that a call has for its tokens, if it has one; return whether it is over, and there is a whole
        line: it is closed then."""
        limit = self.call.line_seconds
        if limit is None or not self.response.output_tokens:
            return False
        now = self._loop.time()
        self._began = now if self._began is None else self._began
        return now - self._began >= limit and self.response.has_line

    @property
    def _stream(self) -> EventStream:
        assert self._opened is not None, "the call is open"
        return self._opened

    def _end_silence(self, keep_alive: float) -> None:
        """Have a wait end without events if it has lasted so long, and look again when the next one may have."""
        left = self._waits_since + keep_alive - self._loop.time()
        if left <= 0:
            self._stream.put([])
        self._silence = self._loop.call_later(left if left > 0 else keep_alive, self._end_silence, keep_alive)

    async def _take(self) -> list[Event]:
        """Return the events since the last ones; none, at the end of a long silence. Raises ApiError."""
        try:
            return await self._stream.take()
        except EngineStopped as fault:
            raise _broken(without_frames(fault)) from None


def _broken(fault: EngineStopped) -> ApiError:
    return ApiError(500, str(fault), type="server_error", code="engine_stopped")


def _took_too_long(timeout: float) -> ApiError:
    return ApiError(
        408,
        f"The call exceeded {timeout:g} s (--request-timeout); request fewer tokens, or try again when the server is "
        "less busy.",
        type="timeout_error",
        code="request_timeout",
    )
