"""Foreground requests that an engine has: whether somebody waits for what it computes.

Knows lanes by their names; not where a request stands.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from inflight.core.tenants.service import Service
from inflight.core.types.events import Event, FinishedEvent
from inflight.core.types.plan import BatchPlan, StepResult, Transferred
from inflight.core.types.request import Request, RequestRefused


class ForegroundCount:
    """An `EngineObserver`."""

    def __init__(self, background_lanes: AbstractSet[str]):
        self._background_lanes = background_lanes
        self._alive: set[str] = set()

    @property
    def any(self) -> bool:
        """May be asked by any thread."""
        return bool(self._alive)

    def added(self, request: Request, now: float) -> None:
        if request.lane not in self._background_lanes:
            self._alive.add(request.request_id)

    def refused(self, request: Request, refusal: RequestRefused, now: float) -> None:
        pass

    def planned(self, plan: BatchPlan) -> None:
        pass

    def step(self, plan: BatchPlan, result: StepResult, planned: float, committed: float) -> None:
        pass

    def transferred(self, ended: tuple[Transferred, ...], now: float) -> None:
        pass

    def served_elsewhere(self, service: Service, now: float) -> None:
        pass

    def events(self, events: list[Event], now: float) -> None:
        for event in events:
            if isinstance(event, FinishedEvent):
                self._alive.discard(event.request_id)

    def close(self) -> None:
        self._alive.clear()
