"""Requests whose grammars are being compiled, which the engine does not have yet. Any thread may call the methods."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from inflight.core.request_timings import QueueWaitMeter, RequestTimings
from inflight.core.types.events import Finish, FinishedEvent
from inflight.core.types.request import Request
from inflight.engine.protocols import Preparation


class HasRequests(Protocol):
    @property
    def requests(self) -> tuple[Request, ...]: ...


C = TypeVar("C", bound=HasRequests)


@dataclass(slots=True)
class Prepared:
    """Requests of one consumer.

    Attributes:
        since: When their waiting began.
        aborted: Ids of those that end as soon as they are submitted.
        preparation: Of their grammars, which are retained until it is cancelled.
    """

    since: float
    aborted: set[str] = field(default_factory=set)
    preparation: Preparation | None = None

    def cancel(self) -> None:
        if self.preparation is not None:
            self.preparation.cancel()


class Preparing(Generic[C]):
    """The requests that wait, by consumer."""

    def __init__(self) -> None:
        self._waiting: dict[C, Prepared] = {}
        self._lock = threading.Lock()

    def begin(self, consumer: C, now: float) -> None:
        with self._lock:
            self._waiting[consumer] = Prepared(now)

    def end(self, consumer: C) -> Prepared | None:
        """Remove a consumer, and return its requests; None if it does not wait."""
        with self._lock:
            return self._waiting.pop(consumer, None)

    def cancel(self, consumer: C) -> bool:
        """Remove a consumer, and return whether it waited. Its grammars are compiled only if others wait for them."""
        one = self.end(consumer)
        if one is not None:
            one.cancel()
        return one is not None

    def set_preparation(self, consumer: C, preparation: Preparation) -> None:
        """Note what is being compiled for a consumer; cancel it if the consumer does not wait any more."""
        with self._lock:
            one = self._waiting.get(consumer)
            if one is not None:
                one.preparation = preparation
        if one is None:
            preparation.cancel()

    def abort(self, request_id: str, now: float) -> tuple[C, list[FinishedEvent]] | None:
        """Abort a request.

        Returns:
            The consumer and the ends of its requests, once all of these are aborted; None where the request does not
            wait, or others of the same consumer do.
        """
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
        """Remove all consumers, and return them."""
        with self._lock:
            left, self._waiting = self._waiting, {}
        for one in left.values():
            one.cancel()
        return list(left)

    def sequences(self) -> Mapping[str, int]:
        """Return the number of sequences that wait, by lane."""
        counts: Counter[str] = Counter()
        with self._lock:
            for consumer in self._waiting:
                for request in consumer.requests:
                    counts[request.lane] += request.params.n
        return counts


def _aborted(request: Request, since: float, now: float) -> FinishedEvent:
    """Return the end of a request that was aborted before the engine had it."""
    timings, clock = RequestTimings(), QueueWaitMeter()
    timings.arrive(request.arrival, now, clock)
    timings.add_compile_time(now - since, request.lane)
    timings.end(now, clock)
    account = timings.summary(request.arrival, len(request.prompt_token_ids), 0, request.lane)
    return FinishedEvent(request.request_id, (Finish("abort"),) * request.params.n, account)
