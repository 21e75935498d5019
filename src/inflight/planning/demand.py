"""Demand: the traffic that a deployment is sized for, as workloads of one replica at any rate, drawn or from a
trace."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Self

from inflight.counted import counted
from inflight.metrics.observation import Targets
from inflight.planning.mixture import Mixed
from inflight.planning.replica_workload import (
    MAX_CUT_SHARE,
    MAX_REQUEST_TOKENS,
    arrivals,
    at_rate,
    spread_variation,
    with_max_tokens,
)
from inflight.planning.traffic import Traffic, analyze_arrivals, analyze_traffic
from inflight.workload.lengths import Lengths, Stratified
from inflight.workload.workload import Entry, Workload, WorkloadError

MIN_GAP_VARIATION = 0.25  # that a trace is taken to have at least, where it is to become burstier
LANES = ("interactive", "batch")  # of an engine by default, as those that are planned have; the first for the rest
SAMPLE = 4000  # requests that a demand's figures are taken from


class SingleRequests:
    """A demand whose requests wait for no answer; of a trace also later turns, which come when they were recorded."""

    __slots__ = ()

    @property
    def slowest(self) -> float:
        """Return how many times the mean the answers of the slowest class take; all are of one, or as recorded."""
        return 1.0

    def started(self, e2e: float) -> Self:
        """Return the demand whose workloads begin with the conversations that are open; there are none."""
        return self

    def reached(self, rate: float, e2e: float, sent: float) -> float:
        """Return the requests/s of a workload that was drawn at a rate; they do not wait for answers."""
        return rate

    @property
    def cached_after(self) -> float:
        """Return the requests after which shared prefixes are cached; none are drawn."""
        return 0.0

    def warm_up_requests(self, rate: float, residents: float, cold: float) -> float:
        """Return the requests after which contexts grow no further."""
        return 0.0

    def sample_requests(self, most: int) -> int:
        """Return the requests that figures are taken from."""
        return most

    def max_rate(self, e2e: float) -> float:
        """Return the highest requests/s of a workload that is drawn: any."""
        return math.inf


@dataclass(frozen=True, slots=True)
class Drawn(SingleRequests):
    """Requests with lengths from distributions and gaps from a gamma distribution.

    rate: requests/s of all replicas together. gap_variation: squared coefficient of variation of the gaps; 1 is
    Poisson. Arrivals are stretched a little, so that a run has exactly the requested rate. longest: prompt and answer
    together; longer ones are cut. stretch, prompt_stretch: factors on the lengths of answers and prompts.
    """

    rate: float
    input: Lengths
    output: Lengths
    gap_variation: float = 1.0
    longest: int = MAX_REQUEST_TOKENS
    stretch: float = 1.0
    prompt_stretch: float = 1.0

    def __post_init__(self) -> None:
        _check_rate("--rate", self.rate)
        if not 0 < self.gap_variation < math.inf:
            raise WorkloadError(f"The gaps' variation is {self.gap_variation:g}; give a number above 0, 1 is Poisson.")

    @property
    def mean_rate(self) -> float:
        return self.rate

    def share_of(self, name: str) -> float:
        """Return the share of a class in the requests; all are of one."""
        return 1.0

    @property
    def max_requests(self) -> float:
        return math.inf

    def check_lengths(self) -> None:
        """Raise WorkloadError where many requests would be cut: the sizing would be for other traffic."""
        drawn = Random("lengths")
        lengths = sorted(self.input.draw(drawn) + self.output.draw(drawn) for _ in range(SAMPLE))
        longer = sum(length > self.longest for length in lengths) / SAMPLE
        if longer > MAX_CUT_SHARE:
            raise WorkloadError(
                f"{longer:.0%} of the requests have more than the {self.longest:,} tokens of prompt and answer that "
                f"the model takes (half of them {lengths[SAMPLE // 2]:,} or more), and the engine would refuse them; "
                "ask for shorter ones with --input-tokens and --output-tokens, or for a model that takes more."
            )

    def workload(self, rate: float, requests: int, seed: int) -> Workload:
        """Draw requests for one replica; raise WorkloadError for a rate that is not above 0."""
        drawn, coming = Random(f"{seed}/lengths"), arrivals(rate, self.gap_variation)
        prompts, outputs = Stratified(self.input), Stratified(self.output)
        times = at_rate(list(itertools.islice(coming.times(Random(f"{seed}/arrivals")), requests)), rate)
        entries, cut = [], 0
        for time in times:
            prompt = max(1, round(self.prompt_stretch * prompts.draw(drawn)))
            output = max(1, round(self.stretch * outputs.draw(drawn)))
            cut += prompt + output > self.longest
            output = min(output, self.longest // 2) if prompt + output > self.longest else output
            entries.append(Entry(time, min(prompt, self.longest - output), output))
        name = f"in {self.input}, out {self.output}, {coming}, seed {seed}"
        note = f"{cut / requests:.1%} of the requests were drawn longer than {self.longest:,} tokens and cut to that."
        return with_max_tokens(entries, name, (note,) if cut else ())

    def burstier(self, factor: float) -> Drawn:
        """Return the demand with gaps of larger variation."""
        return replace(self, gap_variation=self.gap_variation * factor)

    def spread(self, share: float) -> Drawn:
        """Return the demand whose workloads have the gaps of so large a share of its replicas."""
        return replace(self, gap_variation=spread_variation(self.gap_variation, share))


@dataclass(frozen=True, slots=True)
class Traced(SingleRequests):
    """Requests of a trace, in its order, with its times stretched to the rate.

    rate: requests/s of all replicas together. Each replica gets every k-th request of a long trace, as from a
    round-robin router; of a shorter one all of them with longer gaps, which keeps the whole trace's bursts for each
    replica (the safe side). retimed: gaps of this variation instead of the trace's. Later turns of conversations come
    at their recorded time. longest, stretch, prompt_stretch: as of `Drawn`. busiest_seed: of workloads that have the
    busiest stretch; those of other seeds begin at random.
    """

    trace: Workload
    rate: float
    stretch: float = 1.0
    retimed: float | None = None
    longest: int = MAX_REQUEST_TOKENS
    prompt_stretch: float = 1.0
    busiest_seed: int = 0

    def __post_init__(self) -> None:
        entries = self.trace.entries
        if len(entries) < 2 or entries[-1].arrival <= entries[0].arrival:
            raise WorkloadError(
                f"The trace {self.trace.name} has {counted(len(entries), 'request')} within 0 s, which is no rate; "
                "give one with requests at different times."
            )
        _check_rate("--rate", self.rate)

    @property
    def mean_rate(self) -> float:
        """Return the rate over the whole trace, where `rate` is that of its busiest minutes (`Traffic.peak_rate`)."""
        coming = analyze_arrivals(self.trace)
        return self.rate * coming.rate / coming.peak_rate

    def share_of(self, name: str) -> float:
        """Return the share of a class in the requests."""
        entries = self.trace.entries
        return sum(one.traffic == name for one in entries) / len(entries) if name else 1.0

    @property
    def max_requests(self) -> float:
        return len(self.trace.entries)

    def workload(self, rate: float, requests: int, seed: int) -> Workload:
        """Take requests for one replica from the trace; raise WorkloadError for a rate that is not above 0."""
        _check_rate("The rate", rate)
        entries = self.trace.entries
        step = max(1, min(round(self.rate / rate), len(entries) // (2 * requests)))  # room for seeds
        span = min(len(entries), requests * step)
        start = Random(f"{seed}/start").randrange(len(entries) - span + 1)
        start = busiest(entries, span) if seed == self.busiest_seed else start
        taken = [self._stretched(one) for one in entries[start : start + span : step]]
        times = [one.arrival for one in taken]
        if self.retimed is not None:
            drawn = arrivals(rate, self.retimed).times(Random(f"{seed}/arrivals"))
            times = list(itertools.islice(drawn, len(taken)))
        moved = [replace(one, arrival=at, after=None) for one, at in zip(taken, at_rate(times, rate), strict=True)]
        name = f"{self.trace.name}, every {step}. request from {start:,} on, {rate:g}/s"
        return with_max_tokens(moved, name, self.trace.notes)

    def _stretched(self, entry: Entry) -> Entry:
        """Scale the lengths, up to what the engine accepts."""
        prompt = min(self.longest - 1, max(1, round(entry.prompt_tokens * self.prompt_stretch)))
        output = min(self.longest - prompt, max(1, round(entry.output_tokens * self.stretch)))
        text = entry.prompt if prompt == entry.prompt_tokens else None
        return replace(entry, prompt_tokens=prompt, output_tokens=output, prompt=text)

    def burstier(self, factor: float) -> Traced:
        """Return the demand with gaps of larger variation."""
        return replace(self, retimed=max(MIN_GAP_VARIATION, analyze_arrivals(self.trace).gap_variation) * factor)

    def spread(self, share: float) -> Traced:
        """Return the demand whose workloads have the gaps of so large a share of its replicas; those that were recorded
        stay."""
        return self if self.retimed is None else replace(self, retimed=spread_variation(self.retimed, share))


Demand = Drawn | Traced | Mixed


def traffic_of(demand: Demand, *, caches: bool = True) -> Traffic:
    """Return the figures of the whole demand, from a sample at its own rate. caches: whether engines cache prefixes."""
    first = math.ceil(demand.cached_after)
    workload = demand.workload(demand.rate, first + demand.sample_requests(SAMPLE), 0)
    return analyze_traffic(workload, cached_after=first, caches=caches)


def fitting(trace: Workload, max_tokens: int) -> Workload:
    """Leave out the requests that the model cannot take, with a note. max_tokens: of prompt and answer."""
    kept = tuple(one for one in trace.entries if one.prompt_tokens + one.output_tokens <= max_tokens)
    left_out = len(trace.entries) - len(kept)
    if not left_out:
        return trace
    note = (
        f"{left_out:,} of {len(trace.entries):,} requests are longer than the {max_tokens:,} tokens that the model "
        "takes, and were left out: the engine would refuse them."
    )
    if not kept:
        raise WorkloadError(f"{trace.name}: {note}")
    return replace(trace, entries=kept, notes=(*trace.notes, note))


def in_planned_lanes(trace: Workload) -> Workload:
    """Return the trace with requests of lanes that planned engines lack, which would refuse them, in the default one,
    with a note."""
    others = sorted({one.lane for one in trace.entries if one.lane not in ("", *LANES)})
    if not others:
        return trace
    entries = tuple(replace(one, lane="") if one.lane in others else one for one in trace.entries)
    moved = sum(one.lane in others for one in trace.entries)
    note = f"{counted(moved, 'request')} of the lanes {', '.join(others)} are planned for in the lane {LANES[0]}."
    return replace(trace, entries=entries, notes=(*trace.notes, note))


def without_answers(trace: Workload) -> Workload:
    """Return the trace for a model that answers with vectors: each request ends with its text, and a note says so."""
    if all(one.output_tokens <= 1 for one in trace.entries):
        return trace
    note = "Recorded answers were left out: the model answers with vectors, so that a request ends with its text."
    entries = tuple(replace(one, output_tokens=1, max_tokens=None) for one in trace.entries)
    return replace(trace, entries=entries, notes=(*trace.notes, note))


def with_targets(workload: Workload, targets: Targets) -> Workload:
    """Return the workload with these targets for each request, for goodput."""
    return replace(workload, entries=tuple(replace(one, targets=targets) for one in workload.entries))


def _check_rate(name: str, rate: float) -> None:
    if not 0 < rate < math.inf:
        raise WorkloadError(f"{name} is {rate:g}; give requests per second, above 0.")


def busiest(entries: Sequence[Entry], count: int) -> int:
    """Return the index from which so many requests come within the shortest time."""
    starts = range(len(entries) - count + 1)
    return min(starts, key=lambda start: entries[start + count - 1].arrival - entries[start].arrival)
