"""EngineObservers: told of what the engine does. A record file is one, a server's metrics are another.

Knows whom to tell. A observer that fails is told nothing more, and the engine goes on: nobody's answer hangs on a full
disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from inflight.core.tenants import TenantUsage
from inflight.core.types.events import Event
from inflight.core.types.plan import BatchPlan, StepResult, Transferred
from inflight.core.types.request import Request, RequestRefused

log = logging.getLogger(__name__)


class EngineObserver(Protocol):
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

    def transferred(self, ended: tuple[Transferred, ...], now: float) -> None:
        """Transfers of blocks ended while none was computed; others come with a step's result."""

    def served_elsewhere(self, service: TenantUsage, now: float) -> None:
        """Other engines gave tenants so much."""

    def events(self, events: list[Event], now: float) -> None:
        """Tokens and ends."""

    def close(self) -> None:
        """Nothing comes any more."""


class EngineObservers:
    """Tells each, in the order in which they joined."""

    def __init__(self, observers: Iterable[EngineObserver] = ()):
        self._observers = list(observers)
        self.fault: Exception | None = None  # the first; for those to whom a record is the point of the run

    def join(self, observer: EngineObserver) -> None:
        self._observers.append(observer)

    def added(self, request: Request, now: float) -> None:
        self._tell(lambda one: one.added(request, now))

    def refused(self, request: Request, refusal: RequestRefused, now: float) -> None:
        self._tell(lambda one: one.refused(request, refusal, now))

    def planned(self, plan: BatchPlan) -> None:
        self._tell(lambda one: one.planned(plan))

    def step(self, plan: BatchPlan, result: StepResult, planned: float, committed: float) -> None:
        self._tell(lambda one: one.step(plan, result, planned, committed))

    def transferred(self, ended: tuple[Transferred, ...], now: float) -> None:
        self._tell(lambda one: one.transferred(ended, now))

    def served_elsewhere(self, service: TenantUsage, now: float) -> None:
        self._tell(lambda one: one.served_elsewhere(service, now))

    def events(self, events: list[Event], now: float) -> None:
        self._tell(lambda one: one.events(events, now))

    def close(self) -> None:
        self._tell(lambda one: one.close())

    def _tell(self, tell: Callable[[EngineObserver], None]) -> None:
        for observer in tuple(self._observers):
            try:
                tell(observer)
            except OSError as error:
                self._drop(observer, error)
                log.error("%s ends: %s; check the space that is left. The engine goes on.", _name(observer), error)
            except Exception as error:
                self._drop(observer, error)
                log.exception("%s ends by a fault; the engine goes on", _name(observer))

    def _drop(self, observer: EngineObserver, fault: Exception) -> None:
        self._observers.remove(observer)
        self.fault = self.fault or fault


def _name(observer: EngineObserver) -> str:
    return type(observer).__name__
