"""Track the requests in flight at a replica, estimate its queue in seconds, and scale the replicas by it.

The rule is `routing.autoscaling`'s. Ray averages the reports of the replicas and waits before it follows the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.events import Event, FinishedEvent, TokensEvent
from inflight.core.types.request import Request
from inflight.routing.autoscaling import ReplicaQueue, target_replicas
from inflight.routing.replica_view import ServingCosts

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext


QUEUED_SECONDS = "queued_seconds"  # Ray's name of the reported queue


class ReplicaLoad:
    """The requests in flight at one replica."""

    def __init__(
        self,
        scheduling: SchedulingSettings,
        begun: Callable[[str], None] = lambda request_id: None,
        gone: Callable[[Request], None] = lambda request: None,
    ):
        """Start with no requests.

        Args:
            scheduling: Its background lanes do not count.
            begun: Called once for each request with its id, on its first event.
            gone: Called with each request that was refused or aborted.
        """
        self._queue, self._begun, self._gone = ReplicaQueue(scheduling), begun, gone
        self._tokens: dict[str, int] = {}  # output tokens of each request
        self._silent: set[str] = set()  # requests without an event yet

    def add(self, request: Request) -> None:
        self._tokens[request.request_id] = 0
        self._silent.add(request.request_id)
        taken_over = request.kv_transfer is not None and request.kv_transfer.take is not None
        self._queue.add(request, len(request.prompt_token_ids) - 1 if taken_over else 0)

    def observe(self, events: Iterable[Event]) -> None:
        """Count the tokens and ends of requests."""
        for event in events:
            request_id = event.request_id
            if request_id not in self._tokens:  # it was aborted
                continue
            if request_id in self._silent:
                self._silent.remove(request_id)
                self._queue.first_token(request_id)
                self._begun(request_id)
            if isinstance(event, TokensEvent):
                self._tokens[request_id] += len(event.token_ids)
            elif isinstance(event, FinishedEvent):
                self._queue.ended(request_id, self._tokens.pop(request_id))

    def remove(self, request: Request) -> None:
        """Remove a request that was refused or aborted."""
        if self._tokens.pop(request.request_id, None) is not None:
            self._silent.discard(request.request_id)
            self._queue.ended(request.request_id, None)
        self._gone(request)

    def seconds(self, costs: ServingCosts | None) -> float:
        """Return the seconds that a new request would wait here; 0 while `costs` is None."""
        return self._queue.seconds(costs)


def wanted_replicas(context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
    """Return the number of replicas, as a Ray autoscaling policy; the policy keeps no state."""
    queues = list((context.aggregated_metrics or {}).get(QUEUED_SECONDS, {}).values())
    return target_replicas(context.target_num_replicas, queues), {}
