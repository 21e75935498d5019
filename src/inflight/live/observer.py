"""Observe an engine for the live page: store its events in a bounded ring while a viewer is connected.

In the engine's thread it stores references, and computes one number: the step time that the scheduler's latency model
predicts, before the model has observed the step. Without a viewer it stores nothing.
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

MAX_ENTRIES = 4096  # in the ring; more than a second of an engine with 1,000 steps per second


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


Entry = Added | Stepped | Happened


class LiveObserver(EngineObserver):
    """The ring of entries, which exists while a viewer is connected."""

    def __init__(self, latency: LatencyModel):
        self._latency = latency
        self._ring: deque[Entry] | None = None
        self._predicted: dict[int, float] = {}  # of the steps in flight
        self._num_entries = 0

    @property
    def watching(self) -> bool:
        return self._ring is not None

    def watch(self, watched: bool) -> None:
        """Start or stop storing entries. Call it in the engine's thread."""
        self._ring = deque(maxlen=MAX_ENTRIES) if watched else None
        self._predicted.clear()
        self._num_entries = 0

    def drain(self) -> tuple[list[Entry], int]:
        """Remove and return the entries, and how many a full ring has dropped. Call it in the engine's thread."""
        if self._ring is None:
            return [], 0
        entries = list(self._ring)
        lost = self._num_entries - len(entries)
        self._ring.clear()
        self._num_entries = 0
        return entries, lost

    def _store(self, entry: Entry) -> None:
        assert self._ring is not None, "a viewer is connected"
        self._ring.append(entry)
        self._num_entries += 1

    # -- an EngineObserver --------------------------------------------------------------------------------------------

    def added(self, request: Request, now: float) -> None:
        if self._ring is not None:
            self._store(Added(request))

    def planned(self, plan: BatchPlan) -> None:
        if self._ring is not None and self._latency.ready:
            self._predicted[plan.step] = self._latency.seconds(features(plan))

    def step(self, plan: BatchPlan, result: StepResult, planned: float, committed: float) -> None:
        if self._ring is not None:
            predicted = self._predicted.pop(plan.step, 0.0)
            self._store(Stepped(plan, result, planned, committed, predicted))

    def events(self, events: list[Event], now: float) -> None:
        if self._ring is not None and events:
            self._store(Happened(events, now))

    def close(self) -> None:
        """Drop the entries: the engine has stopped."""
        self._ring = None
