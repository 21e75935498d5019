"""Plans and tunings as typed data, whose JSON `--json` prints: seconds, bytes, tokens; null where a value is not known
or not finite."""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import UNSET, Struct, UnsetType

from inflight.config.setting import Resolved
from inflight.planning.autoscaling import Autoscaling
from inflight.planning.bottleneck import Bottleneck
from inflight.planning.costs import Cost
from inflight.planning.decision import EvaluatedConfig
from inflight.planning.demand import Demand
from inflight.planning.energy import Energy
from inflight.planning.infeasible import Infeasible
from inflight.planning.layouts import LayoutsResult, layouts_result
from inflight.planning.limits import LimitCost
from inflight.planning.outlook import Change, SpeculationOutlook, StrategyNeed
from inflight.planning.plan import Plan
from inflight.planning.ranking import RankedPlan
from inflight.planning.rendering import sentence
from inflight.planning.sensitivity import Measurement
from inflight.planning.separation import SeparateClass
from inflight.planning.simulation import Trial
from inflight.planning.spot import Spot
from inflight.planning.tuning import Tuning
from inflight.simulate.parallelism import Parallelism


class Interval(Struct, rename={"low": "from", "high": "to"}):
    """A latency as planned, and at both ends of what is uncertain. high: None where one of them does not serve all
    requests, so that it is endless there, and, as low, where no end was simulated (`PlanResult.refined`)."""

    expected: float | None
    low: float | None
    high: float | None


class ChangeResult(Struct):
    """simulated: replicas that its trial had together."""

    name: str
    kept: bool
    replicas: int | None
    values: dict[str, float | None]
    simulated: int


class LimitResult(Struct):
    """The cost of an SLO, with a limit of relaxed_s in its place: replicas, the US dollars that they save, and the
    requests/s that as many replicas as planned serve then."""

    slo: str
    relaxed_s: float
    replicas: int
    saved_per_hour: float | None
    rate: float


class StrategyResult(Struct):
    strategy: str
    replicas: int | None
    rate_per_replica: float | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class RouterResult(Struct):
    router: str
    replicas: int | None
    cached_share: float


class WithAndWithout(Struct, rename={"with_drafts": "with"}):
    without: float | None
    with_drafts: float | None


class SpeculationResult(Struct):
    acceptance: list[float]
    tpot_s: WithAndWithout
    output_tokens_per_busy_s: WithAndWithout
    steps_with_drafts: float
    tokens_with_drafts: float
    worth_it: bool


class ParallelismResult(Struct):
    """served: whether inflight itself divides a model so."""

    tensor: int
    expert: int
    data_attention: int
    pipeline: int
    vllm_options: str
    served: bool

    @classmethod
    def of(cls, parallelism: Parallelism, vllm_options: str) -> ParallelismResult:
        degrees = (parallelism.tensor, parallelism.expert, parallelism.data_attention, parallelism.pipeline)
        return cls(*degrees, vllm_options=vllm_options, served=parallelism.is_tensor_alone)


class PlanResult(Struct, kw_only=True, rename={"bottleneck": "binds", "warnings": "mistakes"}):
    """refined: whether more than the planned load was simulated; else there is no interval, and nothing to compare.
    engine: whose host costs steps have; None: they were measured. engine_options: the settings in its own options,
    where it is another one; engine_notes: on settings that those cannot have. values: percentiles that the SLOs bound.
    undecided: SLOs that are kept, by fewer requests than decide that. highest_rate_per_replica: that met the SLOs, or,
    without one, was served. missed_at: requests/s of a replica at which the planned load, or 20 % more, missed one;
    None: at none. utilisation: the planned rate over missed_at, or else over highest_rate_per_replica."""

    possible: bool = True
    refined: bool = True
    calibrated: bool
    machine: str
    device: str
    steps_in_flight: int
    engine: str | None
    engine_options: str | None
    engine_notes: list[str]
    replicas: int
    replicas_interval: tuple[int, int | None] | None
    rate: float
    rate_interval: tuple[float, float] | None
    sessions: float | None
    latency_by_class_s: dict[str, dict[str, dict[str, float | None]]]
    separate_classes: list[SeparateClass]
    autoscaling: Autoscaling | None
    spot: Spot | None
    gpus: int
    nodes: int | None
    tensor_parallel: int
    parallelism: ParallelismResult
    settings: dict[str, Resolved]
    kv_bytes_per_sequence: float | None
    kv_bytes_per_gpu: float | None
    max_concurrent_sequences: int
    kept: bool
    values: dict[str, float | None]
    undecided: list[str]
    rate_per_replica: float
    highest_rate_per_replica: float
    missed_at: float | None
    utilisation: float
    output_tokens_per_s: float
    input_tokens_per_s: float
    latency_s: dict[str, dict[str, Interval]]
    bottleneck: Bottleneck
    cost: Cost | None
    energy: Energy | None
    changes: list[ChangeResult]
    limits: list[LimitResult]
    measurements: list[Measurement]
    plans: list[RankedPlan]
    strategies: list[StrategyResult]
    routers: list[RouterResult]
    layouts: LayoutsResult | None
    speculation: SpeculationResult | None
    warnings: list[str]
    notes: list[str]
    discarded: list[str]


class BestResult(Struct):
    machine: str
    values: dict[str, float | None]


class MissedResult(Struct):
    slo: str
    machine: str
    value: float
    times_the_limit: float


class InfeasibleResult(Struct, kw_only=True):
    """missed: the worst SLO on the machine that misses it by the least. best: the lowest latencies of each machine."""

    possible: bool = False
    slos: list[str]
    missed: MissedResult | None
    best: list[BestResult]


def plan_result(answer: Plan | Infeasible) -> PlanResult | InfeasibleResult:
    return _infeasible(answer) if isinstance(answer, Infeasible) else _plan(answer)


def _infeasible(answer: Infeasible) -> InfeasibleResult:
    best = [BestResult(one.machine.name, _values(one.capacity.missed)) for one in answer.tried]
    missed = None
    if answer.nearest is not None:
        one, slo, value = answer.nearest
        missed = MissedResult(str(slo), one.machine.name, value, value / slo.limit)
    return InfeasibleResult(slos=[str(slo) for slo in answer.question.slos], missed=missed, best=best)


def _plan(answer: Plan) -> PlanResult:
    machine, traffic, demand = answer.chosen.machine, answer.traffic, answer.question.demand
    memory, options = machine.memory, answer.engine_options
    return PlanResult(
        calibrated=machine.calibrated,
        machine=machine.name,
        device=machine.device,
        steps_in_flight=machine.depth,
        engine=None if machine.engine is None else machine.engine.name,
        engine_options=None if options is None else options.line,
        engine_notes=[] if options is None else list(options.notes),
        replicas=answer.replicas,
        refined=not answer.is_first,
        replicas_interval=None if answer.is_first else (answer.replicas_low, answer.replicas_high),
        rate=demand.rate,
        rate_interval=None if answer.is_first else answer.rates,
        sessions=answer.sessions,
        latency_by_class_s=_by_class(answer.trial),
        separate_classes=list(answer.separate),
        autoscaling=answer.autoscaling,
        spot=answer.spot,
        gpus=answer.gpus,
        nodes=answer.nodes,
        tensor_parallel=machine.parallelism.tensor,
        parallelism=ParallelismResult.of(machine.parallelism, answer.vllm_options.line),
        settings=answer.config.options(),
        kv_bytes_per_sequence=None if memory is None else memory.kv_bytes_per_token * traffic.mean_context,
        kv_bytes_per_gpu=None if memory is None else memory.kv_bytes,
        max_concurrent_sequences=int(machine.sequences(traffic.mean_context)),
        kept=answer.trial.met,
        values=_values(answer.trial),
        undecided=[str(slo) for slo in answer.trial.undecided],
        rate_per_replica=demand.rate / answer.replicas,
        highest_rate_per_replica=answer.highest_met,
        missed_at=answer.chosen.missed_at,
        utilisation=answer.utilisation,
        output_tokens_per_s=demand.rate * traffic.output_mean,
        input_tokens_per_s=demand.rate * traffic.input_mean,
        latency_s={name: _latency(answer, name) for name in answer.trial.percentiles},
        bottleneck=answer.bottleneck,
        cost=answer.cost,
        energy=answer.energy,
        changes=[_change(one) for one in answer.changes],
        limits=[_limit(one, answer) for one in answer.limits],
        measurements=list(answer.measurements),
        plans=answer.ranked(),
        strategies=[_strategy(one, demand) for one in answer.strategies],
        routers=[RouterResult(one.router, one.replicas, one.cached) for one in answer.routers],
        layouts=None if answer.layouts is None else layouts_result(answer.layouts),
        speculation=None if answer.speculation is None else _speculation(answer.speculation),
        warnings=list(answer.warnings),
        notes=list(traffic.notes),
        discarded=list(answer.question.discarded),
    )


def _change(change: Change) -> ChangeResult:
    return ChangeResult(change.name, change.trial.met, change.replicas, _values(change.trial), change.trial.replicas)


def _limit(cost: LimitCost, answer: Plan) -> LimitResult:
    price, rate = answer.chosen.machine.price_per_hour, answer.replicas * cost.rate
    saved = None if price is None else price * cost.saved
    return LimitResult(str(cost.slo), cost.relaxed.limit, cost.replicas, saved, rate)


def _speculation(outlook: SpeculationOutlook) -> SpeculationResult:
    return SpeculationResult(
        acceptance=list(outlook.drafts.acceptance.chances),
        tpot_s=WithAndWithout(*map(_finite, outlook.tpot)),
        output_tokens_per_busy_s=WithAndWithout(outlook.plain.busy_tokens_per_s, outlook.trial.busy_tokens_per_s),
        steps_with_drafts=outlook.drafted.steps_share,
        tokens_with_drafts=outlook.drafted.tokens,
        worth_it=outlook.is_worth_it,
    )


def _by_class(trial: Trial) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return p50, p95 and p99 of each latency, by class."""
    shares = ("p50", "p95", "p99")
    return {
        name: {metric: dict(zip(shares, map(_finite, values), strict=True)) for metric, values in found.items()}
        for name, found in trial.by_class.items()
    }


def _latency(plan: Plan, name: str) -> dict[str, Interval]:
    found = zip(("p50", "p95", "p99"), plan.trial.percentiles[name], plan.spans[name], strict=True)
    if plan.is_first:
        return {label: Interval(_finite(value), None, None) for label, value, _ in found}
    return {label: Interval(*map(_finite, (value, *span))) for label, value, span in found}


def _strategy(need: StrategyNeed, demand: Demand) -> StrategyResult:
    if need.candidate is None or not need.candidate.rate:
        reason = sentence("strategy_need", need=need, demand=demand)
        return StrategyResult(need.strategy, None, reason=reason)
    return StrategyResult(need.strategy, need.candidate.replicas(demand), need.candidate.rate)


def _values(trial: Trial | None) -> dict[str, float | None]:
    return {} if trial is None else {str(slo): _finite(value) for slo, value in trial.values.items()}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


class EvaluatedResult(Struct, kw_only=True):
    """measured_goodput: on the real engine. reasons: of the best settings."""

    settings: dict[str, str | int | float | bool]
    goodput: float
    attainment: float
    saturated: bool
    measured_goodput: float | None
    reasons: Mapping[str, str] | UnsetType = UNSET


class TuneResult(Struct):
    """loss, rank_correlation: of the simulator's choice, where settings ran on the real engine."""

    best: EvaluatedResult
    start: EvaluatedResult
    tried: list[EvaluatedResult]
    verified: list[EvaluatedResult]
    loss: float | None
    rank_correlation: float | None


def tune_result(tuning: Tuning) -> TuneResult:
    best, decision = _evaluated(tuning.best), tuning.decision
    best.reasons = tuning.best.config.reasons
    return TuneResult(
        best=best,
        start=_evaluated(tuning.start),
        tried=[_evaluated(one) for one in tuning.tried],
        verified=[] if decision is None else [_evaluated(one) for one in decision.judged],
        loss=None if decision is None else decision.loss,
        rank_correlation=None if decision is None else decision.rank_correlation,
    )


def _evaluated(evaluated: EvaluatedConfig) -> EvaluatedResult:
    return EvaluatedResult(
        settings={name: entry.value for name, entry in evaluated.config.options().items()},
        goodput=evaluated.trial.summary.attained_per_s,
        attainment=evaluated.trial.summary.attainment,
        saturated=evaluated.trial.saturated,
        measured_goodput=evaluated.goodput if evaluated.measured else None,
    )
