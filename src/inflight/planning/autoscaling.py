"""Autoscaling over a varying load: replicas over time with their start-up, what they cost, and the requests that come
before there are enough.

A fluid model in steps of ten seconds: what is beyond the rate at which replicas are saturated waits, and a request is
late where it waits longer than the SLO on TTFT. How many replicas are wanted follows from the rate of the
last minute and from what waits; one more takes requests after its start-up, and one less is wanted for as long as
`routing.autoscaling` asks, whose own rule looks at queues alone and so begins later. The busiest fleet is the planned
one, with the spare replicas.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import Struct

from inflight.planning.machine import Machine
from inflight.routing.autoscaling import DOWN_SECONDS
from inflight.workload.arrivals import Daily
from inflight.workload.workload import Workload

STEP_SECONDS = 10.0  # of the simulated load
AVERAGED_SECONDS = 60.0  # seconds over which the rate is averaged
MAX_SPARE = 4  # replicas kept beyond what the rate takes
BASE_SECONDS = 60.0  # of a start-up, beside loading the weights
LOAD_BYTES_PER_S = 2e9  # of weights, from a disk or a registry


@dataclass(frozen=True, slots=True)
class LoadProfile:
    """Requests/s of all replicas, in each step of STEP_SECONDS seconds."""

    rates: tuple[float, ...]

    @property
    def mean(self) -> float:
        return sum(self.rates) / len(self.rates)

    @property
    def hours(self) -> float:
        return len(self.rates) * STEP_SECONDS / 3600


def profile_of_trace(trace: Workload, factor: float) -> LoadProfile:
    """Return the load of a trace by about the minute, in parts of equal length, each request counted `factor` times;
    the rate that a replica is found to serve has faster variation."""
    times = [entry.arrival for entry in trace.entries]
    first, span = min(times), max(times) - min(times)
    seconds = max(span * len(times) / max(1, len(times) - 1), 1e-9)  # the last request has its gap, too
    counts = [0] * max(1, round(seconds / AVERAGED_SECONDS))
    each = seconds / len(counts)
    for time in times:
        counts[min(len(counts) - 1, math.floor((time - first) / each))] += 1
    middles = (STEP_SECONDS * (step + 0.5) for step in range(max(1, round(seconds / STEP_SECONDS))))
    return LoadProfile(tuple(factor * counts[min(len(counts) - 1, int(at / each))] / each for at in middles))


def daily_profile(day: Daily) -> LoadProfile:
    steps = max(1, round(day.hours * 3600 / STEP_SECONDS))
    return LoadProfile(tuple(day.rate_at(STEP_SECONDS * (step + 0.5)) for step in range(steps)))


def start_seconds(machine: Machine) -> float:
    """Return the seconds until a new replica takes requests: its weights are loaded at LOAD_BYTES_PER_S."""
    memory = machine.memory
    loaded = 0.0 if memory is None else memory.weight_bytes * machine.gpus
    return BASE_SECONDS + loaded / LOAD_BYTES_PER_S


class Autoscaling(Struct, frozen=True):
    """An autoscaled deployment. spare: replicas kept beyond what the rate takes. replicas_mean: with those that start.
    late: share of the requests that come before there are enough replicas; late_without_spare: the same with none kept.
    saved_per_hour: US dollars less than the planned replicas cost all the time; None: no price is known."""

    start_seconds: float
    spare: int
    replicas_least: int
    replicas_most: int
    replicas_mean: float
    late: float
    late_without_spare: float
    enough: bool
    per_hour: float | None
    saved_per_hour: float | None


def autoscaled(
    profile: LoadProfile,
    rate: float,
    replicas: int,
    patience: float,
    allowed: float,
    start: float,
    price: float | None,
    *,
    saturated: float | None = None,
) -> Autoscaling:
    """Return the deployment with the fewest spare replicas with which few enough requests are late.

    Args:
        profile: The load over time.
        rate: Requests/s that one replica is to get.
        replicas: That are planned for the peak.
        patience: Seconds that a request may wait.
        allowed: Share of the requests that may be late.
        start: Seconds until a new replica takes requests.
        price: Of a replica, in $ per hour.
        saturated: Requests/s beyond which a replica's queue grows; None: rate.
    """
    most = max(rate, saturated or rate)
    runs = [_Fluid(profile, rate, most, replicas, spare, patience, start).run() for spare in range(MAX_SPARE + 1)]
    best = next((one for one in runs if one.late <= allowed), min(runs, key=lambda one: one.late))
    mean = best.replica_seconds / (len(profile.rates) * STEP_SECONDS)
    return Autoscaling(
        start_seconds=start,
        spare=runs.index(best),
        replicas_least=best.least,
        replicas_most=best.most,
        replicas_mean=mean,
        late=best.late,
        late_without_spare=runs[0].late,
        enough=best.late <= allowed,
        per_hour=None if price is None else mean * price,
        saved_per_hour=None if price is None else (replicas - mean) * price,
    )


@dataclass(frozen=True, slots=True)
class _FluidRun:
    """replica_seconds: serving and starting. late: share of the requests."""

    replica_seconds: float
    least: int
    most: int
    late: float


class _Fluid:
    """One run of the fluid model."""

    def __init__(
        self,
        profile: LoadProfile,
        rate: float,
        saturated: float,
        replicas: int,
        spare: int,
        patience: float,
        start: float,
    ):
        self._rates, self._rate, self._spare, self._patience = profile.rates, rate, spare, patience
        self._saturated = saturated
        self._most, self._start_steps = replicas + spare, max(1, math.ceil(start / STEP_SECONDS))
        self._serving = self._wanted(self._rates[:1])
        self._starting: deque[tuple[int, int]] = deque()  # (step from which they serve, replicas)
        self._fewer_since: int | None = None  # step from which fewer are wanted

    def run(self) -> _FluidRun:
        seen = round(AVERAGED_SECONDS / STEP_SECONDS)
        counts, seconds, backlog, late, offered = [], 0.0, 0.0, 0.0, 0.0
        for step, rate in enumerate(self._rates):
            while self._starting and self._starting[0][0] <= step:
                self._serving += self._starting.popleft()[1]
            capacity = self._serving * self._saturated
            backlog = max(0.0, backlog + (rate - capacity) * STEP_SECONDS)
            offered += rate
            late += rate if backlog > capacity * self._patience else 0.0
            counts.append(self._serving)
            seconds += STEP_SECONDS * (self._serving + sum(number for _, number in self._starting))
            self._scale(step, self._wanted(self._rates[max(0, step + 1 - seen) : step + 1], backlog))
        return _FluidRun(seconds, min(counts), max(counts), late / max(offered, 1e-12))

    def _wanted(self, rates: Sequence[float], backlog: float = 0.0) -> int:
        needed = math.ceil((sum(rates) / len(rates) + backlog / AVERAGED_SECONDS) / self._rate * 0.999)
        return max(1, min(self._most, needed + self._spare))

    def _scale(self, step: int, wanted: int) -> None:
        there = self._serving + sum(number for _, number in self._starting)
        if wanted > there:
            self._starting.append((step + self._start_steps, wanted - there))
        if wanted >= there:
            self._fewer_since = None
        elif self._fewer_since is None:
            self._fewer_since = step
        elif (step - self._fewer_since) * STEP_SECONDS >= DOWN_SECONDS:
            self._serving = max(1, self._serving - 1)  # the youngest drains
            self._fewer_since = step
