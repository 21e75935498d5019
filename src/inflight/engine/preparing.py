"""Requests whose grammars are being compiled: the engine has not heard of them, and they wait.

Knows whose they are, since when, and which were aborted meanwhile; not what compiles, nor how a consumer is notified.
Its methods may be called in any thread.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from inflight.core.request_timings import QueueWaitMeter, RequestTimings
from inflight.core.types.events import Finish, FinishedEvent
from inflight.core.types.request import Request
from inflight.engine.grammar_gate import Preparation


class HasRequests(Protocol):
    @property
    def requests(self) -> tuple[Request, ...]: ...


C = TypeVar("C", bound=HasRequests)


@dataclass(slots=True)
class Prepared:
    """Requests of one consumer. since: when their waiting began. aborted: those that are to end at once. preparation:
    of their grammars, which are kept until it is cancelled."""

    since: float
    aborted: set[str] = field(default_factory=set)
    preparation: Preparation | None = None

    def cancel(self) -> None:
        if self.preparation is not None:
            self.preparation.cancel()


class Preparing(Generic[C]):
    def __init__(self) -> None:
        self._waiting: dict[C, Prepared] = {}
        self._lock = threading.Lock()

    def begin(self, consumer: C, now: float) -> None:
        with self._lock:
            self._waiting[consumer] = Prepared(now)

    def end(self, consumer: C) -> Prepared | None:
        """Return what to hand in; None: it waits no more."""
        with self._lock:
            return self._waiting.pop(consumer, None)

    def leave(self, consumer: C) -> bool:
        """Return whether it waited. What is not compiled yet is compiled for others alone."""
        one = self.end(consumer)
        if one is not None:
            one.cancel()
        return one is not None

    def awaits(self, consumer: C, preparation: Preparation) -> None:
        """Keep what is being compiled for it; cancel it at once where the consumer has gone meanwhile."""
        with self._lock:
            one = self._waiting.get(consumer)
            if one is not None:
                one.preparation = preparation
        if one is None:
            preparation.cancel()

    def abort(self, request_id: str, now: float) -> tuple[C, list[FinishedEvent]] | None:
        """Whose waiting is over by that, all of its requests being aborted, and their ends. None: this request waits
        for no grammar, or others have come with it, which wait all the same."""
        with self._lock:
            for consumer, one in self._waiting.items():
                names = {request.request_id for request in consumer.requests}
                if request_id not in names:
                    continue
                one.aborted.add(request_id)
                if one.aborted < names:
                    return None
                del self._waiting[consumer]
                one.cancel()
                return consumer, [_aborted(request, one.since, now) for request in consumer.requests]
        return None

    def clear(self) -> list[C]:
        """Let no consumer wait any more, and return those that did."""
        with self._lock:
            left, self._waiting = self._waiting, {}
        for one in left.values():
            one.cancel()
        return list(left)

    def sequences(self) -> Mapping[str, int]:
        """Count the sequences that wait, by lane."""
        counts: Counter[str] = Counter()
        with self._lock:
            for consumer in self._waiting:
                for request in consumer.requests:
                    counts[request.lane] += request.params.n
        return counts


def _aborted(request: Request, since: float, now: float) -> FinishedEvent:
    """The end of a request that the engine never heard of."""
    timings, clock = RequestTimings(), QueueWaitMeter()
    timings.arrive(request.arrival, now, clock)
    timings.add_compile_time(now - since, request.lane)
    timings.end(now, clock)
    account = timings.summary(request.arrival, len(request.prompt_token_ids), 0, request.lane)
    return FinishedEvent(request.request_id, (Finish("abort"),) * request.params.n, account)
