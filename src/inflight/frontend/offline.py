"""Offline generation: requests in a list (or a generator), driven in the caller's own thread.

Knows the loop, the collectors, and whether other engines compute the prompts; not where requests come from or where
outputs go.
"""

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
    """What one step added to one sample; `ends` with the last delta of the request. The collector holds it all."""

    collector: OutputCollector
    sample_index: int
    text: str
    ends: bool


class Offline:
    def __init__(self, loop: EngineLoop, tokenizer: Tokenizer | None, prefill: PrefillEngines = NO_PREFILL_ENGINES):
        self._loop, self._prefill = loop, prefill
        self._tokenizer = tokenizer
        self._collectors: dict[str, OutputCollector] = {}

    @property
    def unfinished(self) -> int:
        return len(self._collectors)

    def add(self, request: Request, prompt: str | None = None, parsing: AnswerParsing | None = None) -> OutputCollector:
        """Raises RequestRefused."""
        collector = OutputCollector(request, self._tokenizer, prompt, parsing=parsing)
        namesake = self._collectors.get(request.request_id)
        self._collectors[request.request_id] = collector  # first, or Ctrl-C could leave a request that nobody knows
        try:
            self._add(request)
        except RequestRefused:
            del self._collectors[request.request_id]
            if namesake is not None:
                self._collectors[request.request_id] = namesake
            raise
        return collector

    def _add(self, request: Request) -> None:
        """To the engine that decodes first, so that what is computed of the prompt travels while the rest is."""
        try:
            self._loop.add(self._prefill.taken_over(request))
        except BaseException:
            self._prefill.end(request.request_id)
            raise
        self._prefill.begin(request)

    def step(self) -> list[Delta]:
        """One round of the engine; finished requests are forgotten here (their last delta `ends` them)."""
        outcome = self._loop.advance()
        if isinstance(outcome, WaitUntil):
            self._loop.clock.wait_until(outcome.time)
            return []
        return [self._take(event) for event in outcome]

    def run(self) -> Iterator[Delta]:
        """Until nothing is left."""
        while self._collectors:
            yield from self.step()

    def forget(self, request_id: str) -> None:
        """End a request that nobody wants any more."""
        for event in self._loop.abort(request_id):
            self._take(event)

    def abort_all(self) -> list[Delta]:
        """Nothing is left of them afterwards, even of those whose end was lost when the engine was interrupted."""
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
