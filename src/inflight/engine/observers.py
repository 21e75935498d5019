"""Observers of an engine: a record file is one, a server's metrics are another.

An observer that fails is dropped and the engine goes on: no request depends on a full disk.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from inflight.core.scheduling.requests import Numbers
from inflight.core.tenants import TenantUsage
from inflight.core.types.events import Event
from inflight.core.types.plan import BatchPlan, StepResult, Transferred
from inflight.core.types.request import Request, RequestRefused

log = logging.getLogger(__name__)


class Recovery(Struct, frozen=True):
    """A reset of the scheduler.

    Attributes:
        now: When.
        numbers: From which it goes on.
        error: The sentence that all requests ended with.
    """

    now: float
    numbers: Numbers
    error: str


class EngineObserver:
    """Base class of observers, whose methods do nothing.

    They are called in the order of events, while no plan is made, and must be quick. Times are on the engine's clock.
    A call that Ctrl-C interrupts is repeated, with the same objects.
    """

    def added(self, request: Request, now: float) -> None:
        """Handle an accepted request."""

    def refused(self, request: Request, refusal: RequestRefused, now: float) -> None:
        """Handle a refused request."""

    def planned(self, plan: BatchPlan) -> None:
        """Handle a plan that is about to be computed."""

    def attempted(self, now: float, within: BatchPlan | None = None) -> None:
        """Handle an attempt at a plan that yielded none, while there is work. within: the suspended step, of an attempt
        at an interim step."""

    def step(self, plan: BatchPlan, result: StepResult, planned: float, committed: float) -> None:
        """Handle a committed step; its events follow."""

    def recovered(self, recovery: Recovery, lost: Sequence[tuple[BatchPlan, float]]) -> None:
        """Handle a reset after a verb of the scheduler was broken off; the ends of all requests follow.

        Args:
            recovery: The reset.
            lost: Steps in flight, which are not committed any more, each with the time when it was planned.
        """

    def transferred(self, ended: tuple[Transferred, ...], now: float) -> None:
        """Handle transfers that ended while no step was computed; others come with a step's result."""

    def served_elsewhere(self, service: TenantUsage, now: float) -> None:
        """Handle service that other engines gave to tenants."""

    def prefix_cache_reset(self, now: float) -> None:
        """Handle a reset of the prefix cache, while there is no work."""

    def events(self, events: list[Event], now: float) -> None:
        """Handle tokens and ends of requests."""

    def close(self) -> None:
        """Release what the observer has open: the engine is closed."""


class EngineObservers(EngineObserver):
    """Notifies each observer, in the order in which they were added.

    The loop queues a notice as soon as the scheduler's call has returned, and delivers it afterwards: an interruption
    in between, or of an observer, loses none.
    """

    def __init__(self, observers: Iterable[EngineObserver] = ()):
        self._observers = list(observers)
        self._notices: deque[Callable[[], None]] = deque()
        self.error: Exception | None = None  # the first; for runs whose purpose is the record

    def __len__(self) -> int:
        return len(self._observers)

    def add(self, observer: EngineObserver) -> None:
        self._observers.append(observer)

    def put(self, *notices: Callable[[], None]) -> None:
        """Queue calls of this object's methods."""
        self._notices += notices

    def deliver(self) -> None:
        """Do the queued calls; where one is interrupted, the next delivery begins with it."""
        while self._notices:
            self._notices[0]()
            self._notices.popleft()

    def added(self, request: Request, now: float) -> None:
        self._notify(lambda one: one.added(request, now))

    def refused(self, request: Request, refusal: RequestRefused, now: float) -> None:
        self._notify(lambda one: one.refused(request, refusal, now))

    def planned(self, plan: BatchPlan) -> None:
        self._notify(lambda one: one.planned(plan))

    def attempted(self, now: float, within: BatchPlan | None = None) -> None:
        self._notify(lambda one: one.attempted(now, within))

    def step(self, plan: BatchPlan, result: StepResult, planned: float, committed: float) -> None:
        self._notify(lambda one: one.step(plan, result, planned, committed))

    def recovered(self, recovery: Recovery, lost: Sequence[tuple[BatchPlan, float]]) -> None:
        self._notify(lambda one: one.recovered(recovery, lost))

    def transferred(self, ended: tuple[Transferred, ...], now: float) -> None:
        self._notify(lambda one: one.transferred(ended, now))

    def served_elsewhere(self, service: TenantUsage, now: float) -> None:
        self._notify(lambda one: one.served_elsewhere(service, now))

    def prefix_cache_reset(self, now: float) -> None:
        self._notify(lambda one: one.prefix_cache_reset(now))

    def events(self, events: list[Event], now: float) -> None:
        self._notify(lambda one: one.events(events, now))

    def close(self) -> None:
        self._notify(lambda one: one.close())

    def _notify(self, call: Callable[[EngineObserver], None]) -> None:
        for observer in tuple(self._observers):
            name = type(observer).__name__
            try:
                call(observer)
            except OSError as error:
                self._drop(observer, error)
                log.error("%s stopped: %s; check the free disk space. The engine continues.", name, error)
            except Exception as error:
                self._drop(observer, error)
                log.exception("%s stopped after an internal error; the engine continues", name)

    def _drop(self, observer: EngineObserver, error: Exception) -> None:
        self._observers.remove(observer)
        self.error = self.error or error
