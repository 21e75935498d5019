"""What is under way at a replica, by what comes and happens, and how many seconds a newcomer would therefore wait.

Knows requests and events, and tells of the first of a request's and of those that come to no end; how seconds are made
of them, `routing.autoscaling` knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.events import Event, FinishedEvent, TokensEvent
from inflight.core.types.request import Request
from inflight.routing.autoscaling import ReplicaQueue
from inflight.routing.replica_view import ServingCosts


class ReplicaLoad:
    def __init__(
        self,
        scheduling: SchedulingSettings,
        begun: Callable[[str], None] = lambda request_id: None,
        gone: Callable[[Request], None] = lambda request: None,
    ):
        """begun: told of each request of which something has come, by its id, once. gone: told of those that were
        refused or left."""
        self._queue, self._begun, self._gone = ReplicaQueue(scheduling), begun, gone
        self._tokens: dict[str, int] = {}  # that each request has had
        self._silent: set[str] = set()  # of which nothing has come

    def came(self, request: Request) -> None:
        self._tokens[request.request_id] = 0
        self._silent.add(request.request_id)
        taken_over = request.kv_transfer is not None and request.kv_transfer.take is not None
        self._queue.add(request, len(request.prompt_token_ids) - 1 if taken_over else 0)

    def happened(self, events: Iterable[Event]) -> None:
        for event in events:
            request_id = event.request_id
            if request_id not in self._tokens:  # it has left
                continue
            if request_id in self._silent:
                self._silent.remove(request_id)
                self._queue.first_token(request_id)
                self._begun(request_id)
            if isinstance(event, TokensEvent):
                self._tokens[request_id] += len(event.token_ids)
            elif isinstance(event, FinishedEvent):
                self._queue.ended(request_id, self._tokens.pop(request_id))

    def left(self, request: Request) -> None:
        """It was refused, or nobody wants to hear of it any more."""
        if self._tokens.pop(request.request_id, None) is not None:
            self._silent.discard(request.request_id)
            self._queue.ended(request.request_id, None)
        self._gone(request)

    def seconds(self, costs: ServingCosts | None) -> float:
        """That a newcomer would wait here. costs: None: not known yet."""
        return self._queue.seconds(costs)
