"""Run requests offline: drive the engine's loop in the caller's thread and collect the outputs."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from inflight.core.types.events import Event
from inflight.core.types.plan import WaitUntil
from inflight.core.types.request import Request, RequestRefused
from inflight.engine.loop import EngineLoop
from inflight.frontend.answers import AnswerParsing
from inflight.frontend.outputs import OutputCollector
from inflight.frontend.prefill_engines import NO_PREFILL_ENGINES, PrefillEngines
from inflight.text import Tokenizer


class Delta(Struct, frozen=True):
    """The text that one step added to one sample.

    Attributes:
        collector: Has the whole output of the request.
        ends: Whether this is the request's last delta.
    """

    collector: OutputCollector
    sample_index: int
    text: str
    ends: bool


class Offline:
    """The requests of one engine loop."""

    def __init__(self, loop: EngineLoop, tokenizer: Tokenizer | None, prefill: PrefillEngines = NO_PREFILL_ENGINES):
        self._loop, self._prefill = loop, prefill
        self._tokenizer = tokenizer
        self._collectors: dict[str, OutputCollector] = {}

    @property
    def unfinished(self) -> int:
        return len(self._collectors)

    def add(self, request: Request, prompt: str | None = None, parsing: AnswerParsing | None = None) -> OutputCollector:
        """Add a request and return its collector. Raises RequestRefused."""
        collector = OutputCollector(request, self._tokenizer, prompt, parsing=parsing)
        namesake = self._collectors.get(request.request_id)
        self._collectors[request.request_id] = collector  # first: Ctrl-C must not leave a request without a collector
        try:
            self._add(request)
        except RequestRefused:
            del self._collectors[request.request_id]
            if namesake is not None:
                self._collectors[request.request_id] = namesake
            raise
        return collector

    def _add(self, request: Request) -> None:
        """Add the request to the decode engine first, so that blocks are transferred while the prompt is computed."""
        try:
            self._loop.add(self._prefill.assign(request))
        except BaseException:
            self._prefill.end(request.request_id)
            raise
        self._prefill.begin(request)

    def step(self) -> list[Delta]:
        """Advance the engine once; return the deltas. A request is removed with its last delta."""
        outcome = self._loop.advance()
        if isinstance(outcome, WaitUntil):
            self._loop.clock.wait_until(outcome.time)
            return []
        return [self._take(event) for event in outcome]

    def run(self) -> Iterator[Delta]:
        """Yield deltas until all requests have ended."""
        while self._collectors:
            yield from self.step()

    def forget(self, request_id: str) -> None:
        """Abort a request and drop its last delta."""
        for event in self._loop.abort(request_id):
            self._take(event)

    def abort_all(self) -> list[Delta]:
        """Abort and remove all requests, also those whose last event was lost to an interrupt."""
        open_requests = list(self._collectors)
        deltas = [self._take(event) for request_id in open_requests for event in self._loop.abort(request_id)]
        for request_id in open_requests:
            self._prefill.end(request_id)
        self._collectors.clear()
        return deltas

    def _take(self, event: Event) -> Delta:
        self._prefill.end(event.request_id)
        collector = self._collectors[event.request_id]
        sample_index, text = collector.take(event)
        if collector.finished:
            del self._collectors[event.request_id]
        return Delta(collector, sample_index, text, collector.finished)
