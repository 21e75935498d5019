"""The traffic that a deployment is sized for, at any rate: drawn from distributions, or taken from a trace.

A demand makes workloads of so many requests at so many requests per second, as one of several replicas would see them.
Knows entries and times; not what serves them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random
from typing import Protocol

from inflight.metrics.observation import Targets
from inflight.planning.traffic import analyze_traffic
from inflight.workload.arrivals import Arrivals, Gamma, Poisson
from inflight.workload.entry import Entry
from inflight.workload.errors import WorkloadError
from inflight.workload.lengths import Lengths
from inflight.workload.workload import Workload

EVEN = 0.25  # burstiness that a trace is taken to have at least, where it is to become burstier
SAMPLE = 4000  # requests that a demand's figures are taken from


class Demand(Protocol):
    """rate: requests per second that all replicas have to serve together."""

    @property
    def rate(self) -> float: ...

    def workload(self, rate: float, requests: int, seed: int) -> Workload:
        """What one engine is offered: so many requests, `rate` per second on average."""

    def faster(self, factor: float) -> Demand:
        """More requests, alike."""

    def longer(self, factor: float) -> Demand:
        """Answers longer by this factor."""

    def burstier(self, factor: float) -> Demand:
        """Gaps between arrivals whose squared coefficient of variation is larger by this factor."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Lengths from distributions, gaps from a gamma distribution. burstiness: squared coefficient of variation of the
    gaps; 1 is Poisson. Every replica sees gaps of this kind: a router that deals requests out in turn would make them
    more even, so that this errs on the safe side. longest: prompt and answer together; what is drawn longer is cut.
    stretch: factor on the answers' lengths.
    """

    rate: float
    input: Lengths
    output: Lengths
    burstiness: float = 1.0
    longest: int = 2**20
    stretch: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.rate < math.inf:
            raise WorkloadError(f"--rate is {self.rate:g}; give requests per second, above 0.")
        if not 0 < self.burstiness < math.inf:
            raise WorkloadError(f"--burstiness is {self.burstiness:g}; give a number above 0, 1 for Poisson arrivals.")

    def workload(self, rate: float, requests: int, seed: int) -> Workload:
        lengths, times = Random(f"{seed}/lengths"), arrivals(rate, self.burstiness).times(Random(f"{seed}/arrivals"))
        entries, cut = [], 0
        for _ in range(requests):
            prompt = self.input.draw(lengths)
            output = max(1, round(self.stretch * self.output.draw(lengths)))
            cut += prompt + output > self.longest
            output = min(output, self.longest // 2) if prompt + output > self.longest else output
            entries.append(Entry(next(times), min(prompt, self.longest - output), output))
        name = f"in {self.input}, out {self.output}, {arrivals(rate, self.burstiness)}, seed {seed}"
        notes = (
            f"{cut / requests:.1%} of the requests were drawn longer than {self.longest:,} tokens and cut to that.",
        )
        return _promised(entries, name, notes if cut else ())

    def faster(self, factor: float) -> Drawn:
        return replace(self, rate=self.rate * factor)

    def longer(self, factor: float) -> Drawn:
        return replace(self, stretch=self.stretch * factor)

    def burstier(self, factor: float) -> Drawn:
        return replace(self, burstiness=self.burstiness * factor)


@dataclass(frozen=True, slots=True)
class Traced:
    """Requests of a trace, in its order. rate: that is to be served; the trace's own times are stretched to it.

    Of a trace with enough requests each replica is dealt every k-th, as a router in turn would; where there are too
    few for that, all of them with longer gaps, which keeps the whole trace's burstiness for each replica (the safe
    side). retimed: gaps of this burstiness instead of the trace's. Later turns of conversations come at their recorded
    time.
    """

    trace: Workload
    rate: float
    stretch: float = 1.0
    retimed: float | None = None

    def __post_init__(self) -> None:
        if len(self.trace.entries) < 2 or self.trace.entries[-1].arrival <= self.trace.entries[0].arrival:
            raise WorkloadError(
                f"The trace {self.trace.name} has {len(self.trace.entries)} requests within 0 s, which is no "
                "rate; give "
                "one with requests at different times."
            )
        if not 0 < self.rate < math.inf:
            raise WorkloadError(f"--rate is {self.rate:g}; give requests per second, above 0.")

    def workload(self, rate: float, requests: int, seed: int) -> Workload:
        entries = self.trace.entries
        step = max(1, min(round(self.rate / rate), len(entries) // (2 * requests)))  # room for seeds
        span = min(len(entries), requests * step)
        start = _busiest(entries, span) if seed == 0 else Random(f"{seed}/start").randrange(len(entries) - span + 1)
        dealt = entries[start : start + span : step]
        stretched = [replace(one, output_tokens=max(1, round(one.output_tokens * self.stretch))) for one in dealt]
        if self.retimed is not None:
            times = arrivals(rate, self.retimed).times(Random(f"{seed}/arrivals"))
            moved = [replace(one, arrival=next(times), after=None) for one in stretched]
        else:
            first, length = dealt[0].arrival, max(1e-9, dealt[-1].arrival - dealt[0].arrival)
            scale = (len(dealt) - 1) / rate / length
            moved = [replace(one, arrival=(one.arrival - first) * scale, after=None) for one in stretched]
        return _promised(
            moved, f"{self.trace.name}, every {step}. request from {start:,} on, {rate:g}/s", self.trace.notes
        )

    def faster(self, factor: float) -> Traced:
        return replace(self, rate=self.rate * factor)

    def longer(self, factor: float) -> Traced:
        return replace(self, stretch=self.stretch * factor)

    def burstier(self, factor: float) -> Traced:
        return replace(self, retimed=max(EVEN, analyze_traffic(self.trace).burstiness) * factor)


def arrivals(rate: float, burstiness: float) -> Arrivals:
    """Gaps of this rate and squared coefficient of variation."""
    return Poisson(rate) if burstiness == 1 else Gamma(rate, 1 / burstiness)


def sample(demand: Demand) -> Workload:
    """Of the whole demand at its own rate, for its figures."""
    return demand.workload(demand.rate, SAMPLE, 0)


def fitting(trace: Workload, max_tokens: int) -> Workload:
    """Without the requests that the model cannot hold, with a note of how many. max_tokens: of prompt and answer."""
    kept = tuple(one for one in trace.entries if one.prompt_tokens + one.output_tokens <= max_tokens)
    left_out = len(trace.entries) - len(kept)
    if not left_out:
        return trace
    note = (
        f"{left_out:,} of {len(trace.entries):,} requests are longer than the {max_tokens:,} tokens that the "
        "model takes, "
        "and were left out: the engine would refuse them."
    )
    if not kept:
        raise WorkloadError(f"{trace.name}: {note}")
    return replace(trace, entries=kept, notes=(*trace.notes, note))


def with_targets(workload: Workload, targets: Targets) -> Workload:
    """Each request promised these, for goodput."""
    return replace(workload, entries=tuple(replace(one, targets=targets) for one in workload.entries))


def _busiest(entries: tuple[Entry, ...], span: int) -> int:
    """Where so many requests come within the shortest time."""
    starts = range(len(entries) - span + 1)
    return min(starts, key=lambda start: entries[start + span - 1].arrival - entries[start].arrival)


def _promised(entries: Iterable[Entry], name: str, notes: tuple[str, ...]) -> Workload:
    """Requests say that they may take as many tokens as the longest answer has: nobody knows better beforehand, and
    strategies that reserve memory must not be told the true length."""
    entries = tuple(entries)
    longest = max((one.output_tokens for one in entries), default=1)
    return Workload(tuple(replace(one, max_tokens=longest) for one in entries), name, notes=notes)
