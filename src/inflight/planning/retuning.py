"""Retuning: better settings for the very requests that a server recorded.

The recorded requests are simulated under the present settings, which must come out as they were measured, and under
others, one setting varied at a time (`tuning`). The best of them is compared with the present ones on the whole record,
by figures that are paired request by request, with the step model as fitted and at both ends of its error. A change is
proposed only where its interval leaves the present settings behind, and by more than the simulation was off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from msgspec import Struct, structs

from inflight.config.setting import SettingsError
from inflight.config.speculation import OFF
from inflight.metrics.confidence import min_samples
from inflight.metrics.observation import Observation
from inflight.metrics.slo import Slo, targets
from inflight.metrics.summary import Summary
from inflight.planning.decision import EvaluatedConfig
from inflight.planning.demand import busiest
from inflight.planning.engine_config import TOGETHER, EngineConfig
from inflight.planning.measured_run import judged_by
from inflight.planning.meter import Meter
from inflight.planning.paired_runs import ANSWERED, GOODPUT, Measure, PairedRuns
from inflight.planning.parallel import run_all
from inflight.planning.proposal import Overrides
from inflight.planning.recorded_traffic import RecordedTraffic
from inflight.planning.rendering import sentence
from inflight.planning.simulation import Topology, Trial, read_off, trial_of
from inflight.planning.stages import Progress, Stages, quiet
from inflight.planning.traffic import Traffic, analyze_traffic
from inflight.planning.tuning import BETTER, Dimension, Tuning, clearly_better, search_settings, tuned_dimensions
from inflight.simulate.simulation import Pool, Simulation, SimulationSetup, simulate
from inflight.simulate.steps import StepModel
from inflight.workload.workload import Workload

SEARCHED = 1_500  # requests of a trial; of a longer record its busiest stretch
MAX_OUTSIDE = 0.05  # of a trial's steps that may be larger than any that was recorded
ROOMY_SHARE = 0.5  # of an SLO: where the nearest one is no nearer, and goodput is alike, nothing is to be gained
MAX_SIMULATION_ERROR = 0.25  # of the simulation against the record, beyond which nothing is proposed
VARIED = ("fcfs", "sjf", "deadline", "prefix")  # policies that may be exchanged; others are about more than latency
NAMED_ENDS = ("at their slow end", "at their fast end")  # as `Machine.cases`
SHOWN = (
    ("goodput", GOODPUT),
    ("answered", ANSWERED),
    ("TTFT p50", Measure("ttft", 0.5, of_completed=True)),
    ("TTFT p99", Measure("ttft", 0.99, of_completed=True)),
    ("TPOT p50", Measure("tpot", 0.5, of_completed=True)),
    ("TPOT p99", Measure("tpot", 0.99, of_completed=True)),
    ("E2E p50", Measure("e2e", 0.5, of_completed=True)),
    ("E2E p99", Measure("e2e", 0.99, of_completed=True)),
)


class Figure(Struct, frozen=True, rename={"present": "simulated", "low": "ratio_from", "high": "ratio_to"}):
    """A figure of the record, of its simulation and under the proposed settings; seconds, or requests/s for goodput.
    low, high: the interval of proposed over present, both simulated; nan where there is none."""

    name: str
    measured: float
    present: float
    proposed: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Return by how much the simulation of the present settings is off, as a share of what was measured."""
        if self.present == self.measured:  # also where both are 0, or endless
            return 0.0
        return self.present / self.measured - 1 if self.measured else math.inf

    @property
    def change(self) -> float:
        return self.proposed / self.present - 1 if self.present else math.inf if self.proposed else 0.0

    @property
    def change_text(self) -> str:
        return _percent(self.change)

    @property
    def interval_text(self) -> str:
        """Return the interval of the change; empty where there is none."""
        ends = dict.fromkeys(_percent(end - 1) for end in (self.low, self.high))  # one, where both are from 0
        return "" if math.isnan(self.low) else " to ".join(ends)


def _percent(share: float) -> str:
    """Return a change as text; of a figure that was 0 there is no share."""
    return "-" if math.isnan(share) else "from 0" if math.isinf(share) else f"{share:+.0%}"


@dataclass(frozen=True, slots=True)
class Retuning:
    """The outcome.

    Attributes:
        beyond: Settings that looked better still, but whose steps are larger than any that was recorded; None: none.
        figures: All that are shown. deciding: the one that decides.
        reason: Why the present settings stay, as a sentence; "": the proposed ones are better.
        is_measured: Whether the real engine decided it.
    """

    traffic: RecordedTraffic
    slos: tuple[Slo, ...]
    present: EngineConfig
    proposed: EngineConfig
    tuning: Tuning
    beyond: EvaluatedConfig | None
    figures: tuple[Figure, ...]
    deciding: Figure
    reason: str
    is_measured: bool = False

    @property
    def is_better(self) -> bool:
        return not self.reason

    @property
    def config(self) -> EngineConfig:
        """Return the settings to run with."""
        return self.proposed if self.is_better else self.present

    @property
    def requests(self) -> int:
        return len(self.traffic.measured)

    @property
    def changed(self) -> dict[str, tuple[object, object]]:
        """Return the options that differ, with both values."""
        before, after = self.present.options(), self.proposed.options()
        names = [*after, *(name for name in before if name not in after)]
        values = {name: tuple(one[name].value if name in one else None for one in (before, after)) for name in names}
        return {name: (old, new) for name, (old, new) in values.items() if old != new}


class SimulatedRecord:
    """Simulates the recorded requests on the recorded engine, with other settings."""

    def __init__(self, traffic: RecordedTraffic, slos: tuple[Slo, ...]):
        self.traffic, self.slos = traffic, slos
        self.workload = traffic.workload
        self.targets = targets(slos) if slos else None  # by which requests are measured; the engine knows their own
        self._topology = Topology(drafts=traffic.drafts)

    def observations(self, config: EngineConfig, model: StepModel | None = None) -> list[Observation]:
        """Return the observations of the measured requests."""
        run = self._run(config, self.workload, model or self.traffic.model)
        return self._held(run.observations)

    def measured(self) -> list[Observation]:
        """Return the recorded observations of these requests, with the same targets."""
        return self._held(self.traffic.observations)

    def _held(self, observations: Sequence[Observation]) -> list[Observation]:
        pairs = zip(judged_by(observations, self.targets), self.workload.entries, strict=True)
        return [one for one, entry in pairs if self.traffic.holds(entry)]

    def trial(self, config: EngineConfig) -> Trial:
        """Run the busiest stretch of the record."""
        workload, shares = self._busiest()
        meter = Meter(self.traffic.model)
        run = self._run(config, workload, meter)
        run = replace(run, observations=judged_by(run.observations, self.targets))
        return trial_of(run, meter, self.slos, self._topology, shares)

    def summary(self, config: EngineConfig, workload: Workload, shares: tuple[float, float]) -> Summary:
        """Simulate a part of the workload. shares: of its time that are measured."""
        run = self._run(config, workload, self.traffic.model)
        return read_off(judged_by(run.observations, self.targets), shares)[0]

    def _run(self, config: EngineConfig, workload: Workload, model: StepModel) -> Simulation:
        recorded, scheduling = self.traffic.settings, config.scheduling
        settings = replace(
            recorded.engine,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            enable_prefix_caching=config.enable_prefix_caching,
        )
        drafts = self.traffic.drafts
        pool = Pool(
            structs.replace(recorded.capacity, max_rows=config.max_num_seqs),
            settings,
            scheduling if drafts is not None else scheduling.drafting_from(OFF),
            lambda number: model,
            drafts=drafts,
            depth=recorded.depth,
        )
        return simulate(workload, SimulationSetup(pool))

    def _busiest(self) -> tuple[Workload, tuple[float, float]]:
        """Return the requests of a trial, and the shares of their time between which it is measured."""
        entries, traffic = self.workload.entries, self.traffic
        span = max(entries[-1].arrival, 1e-9)
        if len(entries) <= SEARCHED:
            return self.workload, (traffic.begin / span, traffic.end / span)
        first = busiest(entries, SEARCHED)
        taken, begin = entries[first : first + SEARCHED], entries[first].arrival
        moved = tuple(one.moved(one.arrival - begin, None) for one in taken)
        return replace(self.workload, entries=moved), (0.1, 1.0)


def present_config(traffic: RecordedTraffic) -> EngineConfig:
    """Return the settings that were in force."""
    recorded = traffic.settings
    config = EngineConfig(
        max_num_seqs=recorded.capacity.max_rows,
        max_num_batched_tokens=None if recorded.scheduling.strategy in TOGETHER else recorded.token_budget,
        scheduling=recorded.scheduling,
        enable_prefix_caching=recorded.engine.enable_prefix_caching,
    )
    return replace(config, reasons=dict.fromkeys(config.options(), "as it was"))


def retune(
    traffic: RecordedTraffic,
    slos: tuple[Slo, ...],
    *,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    beyond: bool = False,
    workers: int = 1,
    progress: Progress = quiet,
) -> Retuning:
    """Find better settings for recorded requests.

    Args:
        traffic: The record.
        slos: The limits that decide; empty where requests state their own.
        max_num_seqs, max_num_batched_tokens: Not varied, where given.
        beyond: Whether settings may win whose steps are larger than any that was recorded.
        workers: Processes at once for the whole record; the answer does not depend on them.
        progress: Called with a sentence about each trial.
    """
    record, present = SimulatedRecord(traffic, slos), present_config(traffic)
    start = replace(
        present,
        max_num_seqs=max_num_seqs or present.max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens or present.max_num_batched_tokens,
    )
    overrides = Overrides(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens)
    figures_of_traffic = _traffic(traffic)
    dimensions = _dimensions(traffic, figures_of_traffic, slos, overrides, present)
    tuning = search_settings(start, dimensions, record.trial, progress, lambda trial: beyond or not _is_beyond(trial))
    return _judged(record, present, tuning, workers, progress)


def _is_beyond(trial: Trial) -> bool:
    """Return whether a trial rests on steps that are larger than any that was recorded."""
    return sum(trial.outside.values()) > MAX_OUTSIDE


def _best_beyond(tuning: Tuning) -> EvaluatedConfig | None:
    """Return the best settings that only the real engine can decide on, if they look better than the chosen ones."""
    best = max(filter(lambda one: _is_beyond(one.trial), tuning.tried), key=lambda one: one.score, default=None)
    return best if best is not None and clearly_better(best, tuning.best) else None


def _traffic(traffic: RecordedTraffic) -> Traffic:
    """Return the figures of the workload; shared prefixes as the server found them."""
    found, measured = analyze_traffic(traffic.workload), traffic.measured
    cached = sum(one.cached_tokens for one in measured) / max(1, sum(one.prompt_tokens for one in measured))
    return replace(found, shared=cached)


def _dimensions(
    traffic: RecordedTraffic, figures: Traffic, slos: tuple[Slo, ...], overrides: Overrides, present: EngineConfig
) -> Iterator[Dimension]:
    """Yield what is varied: what the present settings have nothing against."""
    policies = present.scheduling.policy in VARIED and not present.scheduling.lanes
    deadlines = any(entry.targets for entry in traffic.workload.entries)  # of their own, which the engine knows
    for name, others in tuned_dimensions(traffic.machine, figures, slos, overrides):
        if name != "policy" or policies:
            yield name, partial(_possible, others, deadlines)


def _possible(
    others: Callable[[EngineConfig], Iterator[EngineConfig]], deadlines: bool, config: EngineConfig
) -> Iterator[EngineConfig]:
    """Yield variants up to the first that does not go with the other settings. deadlines: whether requests have any."""
    try:
        yield from (one for one in others(config) if deadlines or one.scheduling.policy != "deadline")
    except SettingsError:
        return


def _judged(
    record: SimulatedRecord, present: EngineConfig, tuning: Tuning, workers: int, progress: Progress
) -> Retuning:
    traffic, proposed = record.traffic, tuning.best.config
    runs = _whole(record, (present, proposed), workers, progress)
    measured = record.measured()
    pairs = PairedRuns([one.intended for one in measured], *_span(traffic, measured))

    def figure(name: str, measure: Measure) -> Figure:
        first, second = runs[0]
        ends = [pairs.ratio(after, before, measure) for before, after in runs]
        recorded, before, after = (pairs.value(run, measure) for run in (measured, first, second))
        is_known = not any(math.isnan(low) for low, _ in ends)
        low, high = (min(low for low, _ in ends), max(high for _, high in ends)) if is_known else (math.nan, math.nan)
        return Figure(name, recorded, before, after, low, high)

    goodput = figure("goodput", GOODPUT)
    slo = _nearest(record.slos, pairs, runs[0][0])
    deciding = goodput
    if slo is not None and abs(goodput.change) < BETTER / 2:
        deciding = figure(slo.name, Measure(slo.latency, slo.of_requests, slo.share))
    retuning = Retuning(
        traffic,
        record.slos,
        present,
        proposed,
        tuning,
        None if _is_beyond(tuning.best.trial) else _best_beyond(tuning),
        tuple(figure(*one) for one in SHOWN),
        deciding,
        "",
    )
    return replace(retuning, reason=_reason(retuning, pairs, slo))


def _whole(
    record: SimulatedRecord, configs: tuple[EngineConfig, EngineConfig], workers: int, progress: Progress
) -> list[tuple[list[Observation], list[Observation]]]:
    """Simulate the whole record under both settings, with the step model as fitted, and at each end of its error."""
    models = {"as fitted": record.traffic.model, **dict(zip(NAMED_ENDS, record.traffic.machine.cases, strict=True))}
    names = ("the present settings", "the proposed ones")
    jobs = {
        f"the whole record under {name}, step times {end}": partial(record.observations, config, model)
        for end, model in models.items()
        for name, config in zip(names, configs, strict=True)
    }
    stages = Stages(dict.fromkeys(jobs, 1.0), progress, at_once=workers)
    found = list(run_all(jobs, workers, partial(stages.end, reports=True)).values())
    return list(zip(found[::2], found[1::2], strict=True))


def _span(traffic: RecordedTraffic, measured: Sequence[Observation]) -> tuple[float, float]:
    """Return the measured time on the record's clock."""
    origin = traffic.observations[0].intended - traffic.workload.entries[0].arrival
    return origin + traffic.begin, origin + traffic.end


def _nearest(slos: tuple[Slo, ...], pairs: PairedRuns, run: Sequence[Observation]) -> Slo | None:
    """Return the SLO that is nearest to being missed, or missed most."""
    found = [(pairs.value(run, Measure(slo.latency, slo.of_requests, slo.share)) / slo.limit, slo) for slo in slos]
    known = [one for one in found if not math.isnan(one[0])]
    return max(known, key=lambda one: one[0])[1] if known else None


def _reason(retuning: Retuning, pairs: PairedRuns, slo: Slo | None) -> str:
    """Return why the present settings stay; "" where the proposed ones are better."""
    one, is_goodput = retuning.deciding, retuning.deciding.name == "goodput"
    if not retuning.changed:
        return sentence("retune_best", tried=len(retuning.tuning.tried), beyond=retuning.beyond is not None)
    if not is_goodput and slo is not None and one.present <= ROOMY_SHARE * slo.limit:
        return sentence("retune_room", figure=one, limit=slo.limit)
    needed = 0 if is_goodput or slo is None else min_samples(slo.of_requests)
    if not pairs.has_interval or retuning.requests < needed:
        return sentence("retune_few", requests=retuning.requests, needed=needed, figure=one)
    least, gain = (one.low - 1, one.change) if is_goodput else (1 - one.high, -one.change)
    if not least > 0:  # nan, too
        return sentence("retune_interval", figure=one)
    if not abs(one.error) <= MAX_SIMULATION_ERROR or abs(one.error) >= gain:  # nan, too
        return sentence("retune_error", figure=one)
    return ""
