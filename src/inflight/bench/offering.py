"""The workload that is offered: from lengths, classes or a trace, at a load that a sweep or a search may set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from inflight.bench.client_types import BenchError
from inflight.metrics.observation import Targets
from inflight.workload import transform
from inflight.workload.arrivals import Arrivals, AtOnce, Constant, Gamma, Poisson
from inflight.workload.classes import TrafficClass
from inflight.workload.synthetic import synthesize
from inflight.workload.traces.rows import Trace
from inflight.workload.workload import Entry, Workload

REQUESTS, CONCURRENCY, SECONDS = 64, 8, 30.0  # defaults
_FEWEST = 100  # requests at a rate that a sweep or a search sets
_EACH = 8  # requests for each of a closed loop's concurrent ones, at least
_FASTEST = 200.0  # requests/s of one in a closed loop of a given time; a faster one ends before its time
_MAX_PREPARED = 200_000  # entries of such a loop


@dataclass(frozen=True, slots=True)
class Load:
    """Requests per second, or a closed loop's concurrency."""

    by: str  # "rate", "concurrency"
    value: float

    def __str__(self) -> str:
        return f"{self.value:.4g} requests/s" if self.by == "rate" else f"concurrency {self.value:.0f}"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a trace: `seconds` from start_s on, the first `requests`; speed: faster by that factor; spread: times
    within their raster drawn at random."""

    start_s: float = 0.0
    seconds: float = math.inf
    requests: int | None = None
    speed: float = 1.0
    spread: bool = False


@dataclass(frozen=True, slots=True)
class Offer:
    """classes, or a trace. arrivals None: the trace's own; of classes, and of a trace without times, a closed loop of
    `concurrency` or the default. requests, duration_s: whichever comes first. targets: of entries that state none.
    max_model_len: longer requests are left out. answers: whether answers are tokens.
    """

    classes: Sequence[TrafficClass] = ()
    trace: Trace | None = None
    trace_name: str = ""
    part: Part = field(default_factory=Part)
    arrivals: Arrivals | None = None
    concurrency: int | None = None
    requests: int | None = None
    duration_s: float | None = None
    targets: Targets = field(default_factory=Targets)
    max_model_len: int | None = None
    seed: int = 0
    answers: bool = True

    def workload(self, load: Load | None = None) -> Workload:
        """Make the workload. load: in place of the offer's own. Raises BenchError, WorkloadError."""
        found = self._of_trace(load) if self.trace is not None else self._of_classes(load)
        return self._fitted(self._with_targets(found if self.answers else _unanswered(found)))

    @property
    def rate(self) -> float | None:
        """Return the requests per second, where that is one number."""
        return self.arrivals.rate if isinstance(self.arrivals, Poisson | Gamma | Constant) else None

    def _of_classes(self, load: Load | None) -> Workload:
        arrivals, concurrency = self.arrivals, self.concurrency
        requests, duration = self.requests, self.duration_s
        own = all(one.arrivals is not None for one in self.classes)
        if load is not None and load.by == "rate":
            arrivals = at_rate(arrivals, load.value)
            if requests is None and duration is None:
                requests = max(_FEWEST, math.ceil(load.value * SECONDS))
        elif load is not None:
            arrivals, concurrency = None, round(load.value)
        elif arrivals is None and not own:
            concurrency = concurrency or CONCURRENCY
        if arrivals is None and not own:
            return self._closed(concurrency or CONCURRENCY, requests, duration)
        if isinstance(arrivals, AtOnce):
            requests, duration = requests or REQUESTS, None
        elif requests is None and duration is None:
            duration = SECONDS
        return synthesize(
            self.classes,
            arrivals=arrivals,
            requests=requests,
            duration_s=duration,
            seed=self.seed,
            concurrency=concurrency,
        )

    def _closed(self, concurrency: int, requests: int | None, duration: float | None) -> Workload:
        if requests is None and duration is not None:  # how many there will be is not known: until the time is over
            requests = min(_MAX_PREPARED, math.ceil(concurrency * duration * _FASTEST) + concurrency)
        drawn = synthesize(
            self.classes,
            requests=requests or max(REQUESTS, _EACH * concurrency),
            seed=self.seed,
            concurrency=concurrency,
        )
        return replace(drawn, until=duration)

    def _of_trace(self, load: Load | None) -> Workload:
        trace, part = self.trace, self.part
        assert trace is not None
        if part.spread:
            trace = transform.spread(trace, seed=self.seed)
        if part.start_s or part.seconds < math.inf:
            trace = transform.window(trace, part.start_s, part.seconds)
        trace = transform.speed(trace, part.speed)
        if self.arrivals is not None:
            trace = transform.retimed(trace, self.arrivals, self.seed)
        if load is not None and load.by == "rate":
            trace = transform.speed(trace, load.value / _rate_of(trace))
        if self.duration_s is not None and trace.span_s and (load is None or load.by == "rate"):
            trace = transform.window(trace, 0.0, self.duration_s)
        if self.requests is not None or part.requests is not None:
            trace = transform.limit(trace, min(self.requests or math.inf, part.requests or math.inf))  # type: ignore[arg-type]
        name = f"trace {self.trace_name} ({trace.format})"
        timeless = not trace.span_s and self.arrivals is None and load is None
        if timeless or (load is not None and load.by == "concurrency"):
            places = round(load.value) if load is not None else self.concurrency or CONCURRENCY
            at_once = tuple(replace(entry, arrival=0.0) for entry in trace.entries)
            closed = Workload(at_once, f"closed loop of {places}; {name}", places, True, trace.notes)
            return replace(closed, until=self.duration_s)
        return trace.workload(name, self.concurrency)

    def _with_targets(self, workload: Workload) -> Workload:
        if not self.targets:
            return workload
        entries = tuple(entry if entry.targets else replace(entry, targets=self.targets) for entry in workload.entries)
        return replace(workload, entries=entries)

    def _fitted(self, workload: Workload) -> Workload:
        """Leave out requests that the model cannot take, and the turns after them."""
        most = self.max_model_len
        if most is None or all(_length(entry) <= most for entry in workload.entries):
            return workload
        places: dict[int, int] = {}
        kept: list[Entry] = []
        for index, entry in enumerate(workload.entries):
            if _length(entry) > most or (entry.after is not None and entry.after not in places):
                continue
            places[index] = len(kept)
            kept.append(entry if entry.after is None else replace(entry, after=places[entry.after]))
        count = len(workload.entries)
        if not kept:
            raise BenchError(
                f"All {count:,} requests are longer than the model's {most:,} tokens (the shortest has "
                f"{min(map(_length, workload.entries)):,}); ask for shorter ones: --input-tokens, --output-tokens."
            )
        note = f"{count - len(kept):,} of {count:,} requests left out: longer than the model's {most:,} tokens."
        return replace(workload, entries=tuple(kept), notes=(*workload.notes, note))


def span_of(workload: Workload) -> float:
    """Return the seconds in which its requests are sent, as far as known: of a closed loop, only a given time."""
    if workload.closed:
        return workload.until or 0.0
    return max((entry.arrival for entry in workload.entries), default=0.0)


def at_rate(arrivals: Arrivals | None, rate: float) -> Arrivals:
    """Return the same process at another rate; Poisson where none was given."""
    match arrivals:
        case Poisson() | Gamma() | Constant():
            return replace(arrivals, rate=rate)
        case None:
            return Poisson(rate)
    raise BenchError(f"Arrivals {arrivals} have no single rate that could be varied; give poisson, gamma or constant.")


def _rate_of(trace: Trace) -> float:
    if not trace.span_s:
        raise BenchError("All requests of the trace come at once, so that there is no rate to vary; give --arrivals.")
    return len(trace.entries) / trace.span_s


def _unanswered(workload: Workload) -> Workload:
    """Return the workload without answers; raise BenchError for conversations, which need them."""
    if any(entry.after is not None for entry in workload.entries):
        raise BenchError("--turns makes conversations, which vectors cannot answer; leave it out.")
    entries = tuple(replace(entry, output_tokens=0, max_tokens=None) for entry in workload.entries)
    return replace(workload, entries=entries)


def _length(entry: Entry) -> int:
    return entry.prompt_tokens + entry.output_tokens
