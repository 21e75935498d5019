"""Engines that take turns in virtual time: the accounts and the rule as processes use them, without any process."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field

from inflight.engine.turns.accounts import Accounts
from inflight.engine.turns.cells import Cells


@dataclass
class Engine:
    """One that computes step after step, from `begins` on. gap: seconds between two of its steps. steps: how many there
    are before a `pause` of so many seconds."""

    weight: float = 1.0
    urgent: bool = True
    layer_seconds: float = 0.001
    layers: int = 20
    gap: float = 0.0
    begins: float = 0.0
    steps: int = 10**9
    pause: float = 0.0
    computed: float = 0.0  # seconds
    waited: list[float] = field(default_factory=list)  # seconds, before each turn
    done: int = 0  # steps
    layers_left: int = 0
    wants_at: float = 0.0
    wanted_since: float | None = None


class Simulation:
    def __init__(self, engines: list[Engine], floor: float = 0.01):
        self.accounts = Accounts(Cells(array("d", bytes(8 * Cells.numbers(len(engines))))))
        self.accounts.set_floor(floor)
        self.engines = engines
        self.now = 0.0
        for place, engine in enumerate(engines):
            self.accounts.attach(place, engine.weight)
            engine.wants_at = engine.begins

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self._arrivals()
            if self.accounts.holder is None:
                self._passed()
            holder = self.accounts.holder
            if holder is None:
                self._wait(until)
            else:
                self._compute(holder)

    def _arrivals(self) -> None:
        for place in sorted(range(len(self.engines)), key=lambda place: self.engines[place].wants_at):
            engine = self.engines[place]
            if engine.wants_at <= self.now:
                self.accounts.want(place, engine.urgent, engine.wants_at)
                engine.wanted_since, engine.wants_at, engine.layers_left = engine.wants_at, math.inf, engine.layers

    def _passed(self) -> None:
        self.accounts.pass_turn(self.now)
        self._has(self.accounts.holder)

    def _has(self, place: int | None) -> None:
        if place is not None and (since := self.engines[place].wanted_since) is not None:
            self.engines[place].waited.append(self.now - since)
            self.engines[place].wanted_since = None

    def _wait(self, until: float) -> None:
        moments = [until, *(one.wants_at for one in self.engines)]
        if (free_at := self.accounts.free_at(self.now)) > self.now:
            moments.append(free_at)
        assert min(moments) > self.now, "nobody has the turn although somebody may have it"
        self.now = min(moments)

    def _compute(self, place: int) -> None:
        """One layer."""
        engine = self.engines[place]
        self.now += engine.layer_seconds
        engine.computed += engine.layer_seconds
        engine.layers_left -= 1
        self._arrivals()
        if not engine.layers_left:
            engine.done += 1
            self.accounts.end(place, engine.layer_seconds, engine.urgent, self.now)
            engine.wants_at = self.now + (engine.gap if engine.done % engine.steps else engine.pause)
            self._passed()
        elif self.now >= self.accounts.look_at:
            following = self.accounts.displaced(place, engine.urgent, engine.layer_seconds, self.now)
            if following is not None:
                engine.wanted_since = self.now
                self._has(following)
