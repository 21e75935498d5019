"""The traffic that a deployment is sized for, at any rate: drawn from distributions, or taken from a trace.

A demand makes workloads of so many requests at so many requests per second, as one of several replicas would see them.
Knows entries and times; not what serves them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random

from inflight.metrics.observation import Targets
from inflight.planning.traffic import analyze_traffic
from inflight.workload.arrivals import Arrivals, Gamma, Poisson
from inflight.workload.lengths import Lengths
from inflight.workload.workload import Entry, Workload, WorkloadError

EVEN = 0.25  # gap variation that a trace is taken to have at least, where it is to become burstier
MOST_CUT = 0.1  # share of requests that may be drawn longer than the model takes, and are cut
SAMPLE = 4000  # requests that a demand's figures are taken from
LONGEST = 2**20  # tokens of prompt and answer, where no model sets a limit


@dataclass(frozen=True, slots=True)
class Drawn:
    """Lengths from distributions, gaps from a gamma distribution.

    gap_variation: squared coefficient of variation of the gaps; 1 is Poisson. Arrivals are stretched a little, so that
    a run has exactly the rate that it is asked for. Every replica sees gaps of this kind: a router that deals requests
    out in turn would make them more even, so that this errs on the safe side. longest: prompt and answer together; what
    is drawn longer is cut. stretch, prompt_stretch: factors on the lengths of answers and prompts.
    """

    rate: float
    input: Lengths
    output: Lengths
    gap_variation: float = 1.0
    longest: int = LONGEST
    stretch: float = 1.0
    prompt_stretch: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.rate < math.inf:
            raise WorkloadError(f"--rate is {self.rate:g}; give requests per second, above 0.")
        if not 0 < self.gap_variation < math.inf:
            raise WorkloadError(f"The gaps' variation is {self.gap_variation:g}; give a number above 0, 1 is Poisson.")

    @property
    def mean_rate(self) -> float:
        return self.rate

    @property
    def most(self) -> float:
        return math.inf

    def check_lengths(self) -> None:
        """A sizing for requests that are cut is one for other traffic. Raises WorkloadError."""
        drawn = Random("lengths")
        lengths = sorted(self.input.draw(drawn) + self.output.draw(drawn) for _ in range(SAMPLE))
        longer = sum(length > self.longest for length in lengths) / SAMPLE
        if longer > MOST_CUT:
            raise WorkloadError(
                f"{longer:.0%} of the requests have more than the {self.longest:,} tokens of prompt and answer that "
                f"the model takes (half of them {lengths[SAMPLE // 2]:,} or more), and the engine would refuse them; "
                "ask for shorter ones with --input-tokens and --output-tokens, or for a model that takes more."
            )

    def workload(self, rate: float, requests: int, seed: int) -> Workload:
        """Raises WorkloadError for a rate that is not above 0."""
        lengths, coming = Random(f"{seed}/lengths"), arrivals(rate, self.gap_variation)
        times = _at_rate(list(itertools.islice(coming.times(Random(f"{seed}/arrivals")), requests)), rate)
        entries, cut = [], 0
        for time in times:
            prompt = max(1, round(self.prompt_stretch * self.input.draw(lengths)))
            output = max(1, round(self.stretch * self.output.draw(lengths)))
            cut += prompt + output > self.longest
            output = min(output, self.longest // 2) if prompt + output > self.longest else output
            entries.append(Entry(time, min(prompt, self.longest - output), output))
        name = f"in {self.input}, out {self.output}, {coming}, seed {seed}"
        notes = (
            f"{cut / requests:.1%} of the requests were drawn longer than {self.longest:,} tokens and cut to that.",
        )
        return _with_targets(entries, name, notes if cut else ())

    def burstier(self, factor: float) -> Drawn:
        return replace(self, gap_variation=self.gap_variation * factor)


@dataclass(frozen=True, slots=True)
class Traced:
    """Requests of a trace, in its order. rate: that is to be served; the trace's own times are stretched to it.

    Of a trace with enough requests each replica is dealt every k-th, as a router in turn would; where there are too
    few for that, all of them with longer gaps, which keeps the whole trace's bursts for each replica (the safe
    side). retimed: gaps of this variation instead of the trace's. Later turns of conversations come at their recorded
    time. longest, stretch, prompt_stretch: as of `Drawn`.
    """

    trace: Workload
    rate: float
    stretch: float = 1.0
    retimed: float | None = None
    longest: int = LONGEST
    prompt_stretch: float = 1.0

    def __post_init__(self) -> None:
        if len(self.trace.entries) < 2 or self.trace.entries[-1].arrival <= self.trace.entries[0].arrival:
            raise WorkloadError(
                f"The trace {self.trace.name} has {len(self.trace.entries)} requests within 0 s, which is no "
                "rate; give "
                "one with requests at different times."
            )
        if not 0 < self.rate < math.inf:
            raise WorkloadError(f"--rate is {self.rate:g}; give requests per second, above 0.")

    @property
    def mean_rate(self) -> float:
        """`rate` is that of the busiest minutes (`Traffic.peak_rate`); the whole trace is as much calmer as it was."""
        traffic = analyze_traffic(self.trace)
        return self.rate * traffic.rate / traffic.peak_rate

    @property
    def most(self) -> float:
        return len(self.trace.entries)

    def workload(self, rate: float, requests: int, seed: int) -> Workload:
        if not 0 < rate < math.inf:
            raise WorkloadError(f"The rate is {rate:g}; give requests per second, above 0.")
        entries = self.trace.entries
        step = max(1, min(round(self.rate / rate), len(entries) // (2 * requests)))  # room for seeds
        span = min(len(entries), requests * step)
        start = _busiest(entries, span) if seed == 0 else Random(f"{seed}/start").randrange(len(entries) - span + 1)
        dealt = entries[start : start + span : step]
        stretched = [self._stretched(one) for one in dealt]
        if self.retimed is not None:
            drawn = arrivals(rate, self.retimed).times(Random(f"{seed}/arrivals"))
            times = list(itertools.islice(drawn, len(dealt)))
        else:
            times = [one.arrival for one in dealt]
        moved = [
            replace(one, arrival=time, after=None) for one, time in zip(stretched, _at_rate(times, rate), strict=True)
        ]
        return _with_targets(
            moved, f"{self.trace.name}, every {step}. request from {start:,} on, {rate:g}/s", self.trace.notes
        )

    def _stretched(self, entry: Entry) -> Entry:
        """No longer than the engine takes, which would refuse it."""
        prompt = min(self.longest - 1, max(1, round(entry.prompt_tokens * self.prompt_stretch)))
        output = min(self.longest - prompt, max(1, round(entry.output_tokens * self.stretch)))
        text = entry.prompt if prompt == entry.prompt_tokens else None
        return replace(entry, prompt_tokens=prompt, output_tokens=output, prompt=text)

    def burstier(self, factor: float) -> Traced:
        return replace(self, retimed=max(EVEN, analyze_traffic(self.trace).gap_variation) * factor)


Demand = Drawn | Traced
"""rate: requests per second that all replicas have to serve together. mean_rate: over all of the time, which is what is
paid for; less than `rate` where that is the rate of the busiest minutes. most: requests of one workload. workload: what
one engine is offered: so many requests, up to `most`, `rate` per second on average. burstier: gaps between arrivals
whose squared coefficient of variation is larger by a factor."""


def faster(demand: Demand, factor: float) -> Demand:
    """More requests, alike."""
    return replace(demand, rate=demand.rate * factor)


def longer(demand: Demand, factor: float) -> Demand:
    """Answers longer by this factor."""
    return replace(demand, stretch=demand.stretch * factor)


def longer_prompts(demand: Demand, factor: float) -> Demand:
    """Prompts longer by this factor."""
    return replace(demand, prompt_stretch=demand.prompt_stretch * factor)


def arrivals(rate: float, gap_variation: float) -> Arrivals:
    """Gaps of this rate and squared coefficient of variation."""
    return Poisson(rate) if gap_variation == 1 else Gamma(rate, 1 / gap_variation)


def _at_rate(times: list[float], rate: float) -> list[float]:
    """From 0 on, stretched so that the mean gap is 1/rate."""
    span = times[-1] - times[0]
    scale = (len(times) - 1) / rate / span if span > 0 else 1.0
    return [(time - times[0]) * scale for time in times]


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


def _with_targets(entries: Iterable[Entry], name: str, notes: tuple[str, ...]) -> Workload:
    """Requests say that they may take as many tokens as the longest answer has: nobody knows better beforehand, and
    strategies that reserve memory must not be told the true length."""
    entries = tuple(entries)
    longest = max((one.output_tokens for one in entries), default=1)
    return Workload(tuple(replace(one, max_tokens=longest) for one in entries), name, notes=notes)
