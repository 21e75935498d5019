"""The live observer: keeps what the engine's loop tells while somebody looks, in a ring that is bounded.

An `inflight.engine.observers.EngineObserver`. In the engine's turn it keeps references, and computes one number: what
the scheduler's model makes of a step's time before it has learnt of it. Nobody looks: nothing is kept.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from inflight.core.estimation.latency import LatencyModel
from inflight.core.types.events import Event
from inflight.core.types.features import features
from inflight.core.types.plan import BatchPlan, StepResult
from inflight.core.types.request import Request
from inflight.engine.observers import EngineObserver

MOST = 4096  # things that are told; of an engine with 1,000 steps per second, those of more than a second


class Added(NamedTuple):
    request: Request


class Stepped(NamedTuple):
    plan: BatchPlan
    result: StepResult
    planned: float
    committed: float
    predicted: float


class Happened(NamedTuple):
    events: list[Event]
    now: float


Told = Added | Stepped | Happened


class LiveObserver(EngineObserver):
    def __init__(self, latency: LatencyModel):
        self._latency = latency
        self._ring: deque[Told] | None = None
        self._predicted: dict[int, float] = {}  # of the steps in flight
        self._told = 0

    @property
    def watching(self) -> bool:
        return self._ring is not None

    def watch(self, looked_at: bool) -> None:
        """Whether somebody looks; in the engine's turn."""
        self._ring = deque(maxlen=MOST) if looked_at else None
        self._predicted.clear()
        self._told = 0

    def drain(self) -> tuple[list[Told], int]:
        """What was told since the last call, and how much of it a full ring has dropped; in the engine's turn."""
        if self._ring is None:
            return [], 0
        kept = list(self._ring)
        lost = self._told - len(kept)
        self._ring.clear()
        self._told = 0
        return kept, lost

    def _keep(self, told: Told) -> None:
        assert self._ring is not None, "somebody looks"
        self._ring.append(told)
        self._told += 1

    # -- an EngineObserver --------------------------------------------------------------------------------------------

    def added(self, request: Request, now: float) -> None:
        if self._ring is not None:
            self._keep(Added(request))

    def planned(self, plan: BatchPlan) -> None:
        if self._ring is not None and self._latency.ready:
            self._predicted[plan.step] = self._latency.seconds(features(plan))

    def step(self, plan: BatchPlan, result: StepResult, planned: float, committed: float) -> None:
        if self._ring is not None:
            predicted = self._predicted.pop(plan.step, 0.0)
            self._keep(Stepped(plan, result, planned, committed, predicted))

    def events(self, events: list[Event], now: float) -> None:
        if self._ring is not None and events:
            self._keep(Happened(events, now))

    def close(self) -> None:
        """Nobody can look any more."""
        self._ring = None
