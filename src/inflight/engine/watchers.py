"""Watchers: told of what the engine does. A record file is one, a server's metrics are another.

Knows whom to tell. A watcher that fails is told nothing more, and the engine goes on: nobody's answer hangs on a full
disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from inflight.core.events import Event
from inflight.core.plan import BatchPlan, StepResult
from inflight.core.request import Request, RequestRefused

log = logging.getLogger(__name__)


class Watcher(Protocol):
    """Told of what happens, in the order in which it happens, in the engine's turn: it must be quick. Times are the
    engine's clock."""

    def added(self, request: Request, now: float) -> None:
        """A request was accepted."""

    def refused(self, request: Request, refusal: RequestRefused, now: float) -> None:
        """A request was not."""

    def planned(self, plan: BatchPlan) -> None:
        """A plan is about to be computed."""

    def step(self, plan: BatchPlan, result: StepResult, planned: float, committed: float) -> None:
        """It was computed; its events follow."""

    def events(self, events: list[Event], now: float) -> None:
        """Tokens and ends."""

    def close(self) -> None:
        """Nothing comes any more."""


class Watchers:
    """Tells each, in the order in which they joined."""

    def __init__(self, watchers: Iterable[Watcher] = ()):
        self._watchers = list(watchers)
        self.fault: Exception | None = None  # the first; for those to whom a record is the point of the run

    def join(self, watcher: Watcher) -> None:
        self._watchers.append(watcher)

    def added(self, request: Request, now: float) -> None:
        self._tell(lambda one: one.added(request, now))

    def refused(self, request: Request, refusal: RequestRefused, now: float) -> None:
        self._tell(lambda one: one.refused(request, refusal, now))

    def planned(self, plan: BatchPlan) -> None:
        self._tell(lambda one: one.planned(plan))

    def step(self, plan: BatchPlan, result: StepResult, planned: float, committed: float) -> None:
        self._tell(lambda one: one.step(plan, result, planned, committed))

    def events(self, events: list[Event], now: float) -> None:
        self._tell(lambda one: one.events(events, now))

    def close(self) -> None:
        self._tell(lambda one: one.close())

    def _tell(self, tell: Callable[[Watcher], None]) -> None:
        for watcher in tuple(self._watchers):
            try:
                tell(watcher)
            except OSError as error:
                self._drop(watcher, error)
                log.error("%s ends: %s; check the space that is left. The engine goes on.", _name(watcher), error)
            except Exception as error:
                self._drop(watcher, error)
                log.exception("%s ends by a fault; the engine goes on", _name(watcher))

    def _drop(self, watcher: Watcher, fault: Exception) -> None:
        self._watchers.remove(watcher)
        self.fault = self.fault or fault


def _name(watcher: Watcher) -> str:
    return type(watcher).__name__
