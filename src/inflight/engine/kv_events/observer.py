"""The observer that gathers what a step has changed in the prefix cache, and hands it to the publisher.

Knows when there is something to gather: after a step and what it yielded, after transfers, and after what happens
between two steps. Makes no events of it, which is work for another thread.
"""

from __future__ import annotations

from inflight.core.kv.prefix_cache import KVEventQueue
from inflight.core.types.events import Event
from inflight.core.types.plan import BatchPlan, StepResult, Transferred
from inflight.engine.kv_events.publisher import KVEventPublisher
from inflight.engine.observers import EngineObserver


class KVEventObserver(EngineObserver):
    """An `EngineObserver`."""

    def __init__(self, journal: KVEventQueue, publisher: KVEventPublisher):
        """journal: of the engine that is observed; what it has at the start is told at once: that nothing is cached."""
        self._journal, self._publisher = journal, publisher
        publisher.begin()
        self._gather()

    def step(self, plan: BatchPlan, result: StepResult, planned: float, committed: float) -> None:
        self._gather()

    def transferred(self, ended: tuple[Transferred, ...], now: float) -> None:
        self._gather()

    def events(self, events: list[Event], now: float) -> None:
        self._gather()

    def close(self) -> None:
        self._gather()
        self._publisher.close()

    def _gather(self) -> None:
        changes = self._journal.take()
        if changes:
            self._publisher.publish(changes)
