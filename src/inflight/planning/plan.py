"""The answer to a sizing question: replicas, settings, latencies, cost, uncertainty, and what would change them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from inflight.metrics.confidence import min_samples
from inflight.planning import outlook, sizing
from inflight.planning.autoscaling import Autoscaling
from inflight.planning.bottleneck import Bottleneck, bottleneck
from inflight.planning.candidate import Candidate
from inflight.planning.costs import Cost, autoscaling_of, cost_of, spot_of
from inflight.planning.energy import Energy, energy_of
from inflight.planning.engine_config import EngineConfig
from inflight.planning.engine_options import EngineOptions, engine_options, vllm_options
from inflight.planning.infeasible import Infeasible
from inflight.planning.layouts import LayoutOutlook
from inflight.planning.limits import LimitCost
from inflight.planning.load import expected_load, measured_load, too_few_gpus
from inflight.planning.long_trials import by_long_trials
from inflight.planning.misfit import does_not_fit, unfit_comparison
from inflight.planning.mixture import Mixed
from inflight.planning.planned_load import PlannedLoad, PlannedLoadTrials, planned_replicas
from inflight.planning.question import THOROUGHLY, Question
from inflight.planning.ranking import RankedPlan, rank, ranked, ranked_on
from inflight.planning.refinement import PlanError, Refined, refine
from inflight.planning.rendering import milliseconds, render, sentence
from inflight.planning.runner_up import Rivals, confirmed_others, running_ahead
from inflight.planning.sensitivity import Measurement
from inflight.planning.separation import SeparateClass
from inflight.planning.simulated_blocks import in_simulated_blocks
from inflight.planning.simulation import ROUTER, Trial, percentile_spans
from inflight.planning.spot import Spot
from inflight.planning.stages import Progress, Stages, quiet
from inflight.planning.traffic import Traffic
from inflight.planning.trial_cache import TrialCache
from inflight.planning.trial_runner import TrialRunner
from inflight.planning.warnings import warnings

CHEAPER_BY = 1.1  # times as cheap that another machine must be to be preferred to the one that looked best
PLANNED, LONG_TRIALS = "the planned load", "trials several times as long near its rate"
SEARCH_WORK, PLANNED_WORK, LONG_TRIALS_WORK = 5.0, 2.0, 8.0  # of stages, in usual trials


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer.

    replicas_low, replicas_high: needed if everything uncertain is at its fast end, and at its slow end, found by
    trials; high None: no number meets the SLOs there. trial: at the planned load. spans: latency → (low, high) for
    p50, p95, p99 in seconds, over both ends of what is uncertain; high is infinite where an end does not serve all
    requests, and low is then of the trials that do. utilisation: planned load over the highest one that meets the SLOs.
    others: machines that were simulated too (rate 0: none meets the SLOs). speculation, layouts: None where not asked
    for. rates: requests/s that the replicas serve at the slow and at the fast end. separate: classes on replicas of
    their own. runner_up: where no other plan was measured. router: before the replicas. autoscaling, spot: where the
    load varies, and where asked for. is_first: not refined: only the planned load was simulated, so that the interval,
    the spans, and what refines are not known.
    """

    question: Question
    traffic: Traffic
    chosen: Candidate
    config: EngineConfig
    replicas: int
    replicas_low: int
    replicas_high: int | None
    trial: Trial
    spans: Mapping[str, tuple[tuple[float, float], ...]]
    utilisation: float
    bottleneck: Bottleneck
    others: Sequence[Candidate]
    warnings: Sequence[str]
    cost: Cost | None
    changes: Sequence[outlook.Change] = ()
    limits: Sequence[LimitCost] = ()
    measurements: Sequence[Measurement] = ()
    strategies: Sequence[outlook.StrategyNeed] = ()
    speculation: outlook.SpeculationOutlook | None = None
    routers: Sequence[outlook.RouterNeed] = ()
    layouts: LayoutOutlook | None = None
    separate: Sequence[SeparateClass] = ()
    runner_up: Candidate | None = None
    rates: tuple[float, float] = (0.0, 0.0)
    router: str = ROUTER
    autoscaling: Autoscaling | None = None
    spot: Spot | None = None
    is_first: bool = False

    @property
    def sessions(self) -> float | None:
        """Return the conversations that are open at once; None where requests are single ones."""
        demand = self.question.demand
        if not isinstance(demand, Mixed) or not demand.waits_for_answers:
            return None
        return demand.sessions or demand.conversations.open_at(demand.rate, self.trial.summary.e2e.mean or 0.0)

    @property
    def gpus(self) -> int:
        return self.replicas * self.chosen.machine.gpus

    @property
    def highest_met(self) -> float:
        """Return the highest requests/s of a replica that met the SLOs, of those below any that missed them; without
        an SLO the highest that were served."""
        missed_at, rate = self.chosen.missed_at, self.chosen.rate
        if missed_at is None:
            return self.chosen.highest
        return rate if rate < missed_at else self.question.demand.rate / self.replicas

    @property
    def replicas_per_node(self) -> int:
        """Return how many replicas fit on a node; 0 where one spans several, or the machine is no GPU."""
        gpu = getattr(self.chosen.machine.model, "gpu", None)
        return 0 if gpu is None else gpu.node_gpus // self.chosen.machine.gpus

    @property
    def nodes_per_replica(self) -> int:
        """Return the nodes that one replica takes; 0 where the machine is no GPU."""
        gpu = getattr(self.chosen.machine.model, "gpu", None)
        return 0 if gpu is None else math.ceil(self.chosen.machine.gpus / gpu.node_gpus)

    @property
    def nodes(self) -> int | None:
        """Return the machines with GPUs in them; None where the machine is no GPU."""
        each, spanned = self.replicas_per_node, self.nodes_per_replica
        return math.ceil(self.replicas / each) if each else self.replicas * spanned or None

    @property
    def energy(self) -> Energy | None:
        """Return the energy at the planned load; None where the power of the boards is not known."""
        trial, tokens = self.trial, self.question.demand.rate * self.traffic.output_mean
        return energy_of(self.chosen.machine, trial.spent.by_bound, trial.busy[0], self.gpus, tokens)

    @property
    def vllm_options(self) -> EngineOptions:
        """Return vLLM's options of a replica."""
        return vllm_options(self.chosen.machine, self.config, self.traffic.longest)

    @property
    def engine_options(self) -> EngineOptions | None:
        """Return the options of a replica of the engine whose host costs the steps have; None where it is this one."""
        return engine_options(self.chosen.machine, self.config, self.traffic.longest)

    def ranked(self) -> list[RankedPlan]:
        """Return the plans that were found to meet the SLOs, the cheapest first."""
        strategies = (one.candidate for one in self.strategies)
        others = [one for one in (self.runner_up, *self.others, *strategies) if one is not None]
        if self.question.gpus is not None:
            return ranked_on(self.question, self.chosen, others)
        layouts = () if self.layouts is None else self.layouts.needs
        return ranked(self.chosen, self.replicas, others, layouts, self.question.demand)

    @property
    def simulated_block(self) -> int:
        """Return the tokens of a trial's blocks."""
        return in_simulated_blocks(self.chosen.machine, self.traffic, self.config).block_size

    @property
    def extrapolated(self) -> bool:
        """Whether there are more replicas than were simulated together."""
        return self.replicas > self.trial.replicas


def plan(
    question: Question,
    *,
    strategies: bool = False,
    fast: bool = False,
    workers: int = 1,
    progress: Progress = quiet,
    first: Callable[[Plan], None] | None = None,
    cache: TrialCache | None = None,
) -> Plan | Infeasible:
    """Size a deployment, and refine the answer.

    Args:
        question: What is asked.
        strategies: Whether to compare batching strategies, too.
        fast: Whether to return the first answer, from shorter trials, without what refines it.
        workers: Processes that refine at once; the answer does not depend on them.
        progress: Called at each stage.
        first: Called with the first answer, before it is refined.
        cache: Trials that were run before.

    Raises:
        PlanError: the model and the longest request fit on none of the machines, or what is to be compared has no
            meaning for the model.
    """
    question, traffic, found = _expected(question, strategies)
    runner = TrialRunner(question, traffic, cache)
    stages = _stages(question, found, fast, progress)
    with running_ahead(runner, found, 1 if fast or strategies else workers):
        measured = _measure(runner, found, stages, fast)
    usable = [one for one in measured if one.rate]
    if not usable:
        return Infeasible(question, traffic, measured)
    stages.begin(PLANNED)
    reads = 1.0 if fast or question.takes_long_trials else THOROUGHLY
    answer = _cheapest(PlannedLoadTrials(runner, reads, decides=not fast, workers=workers), measured)
    stages.end(PLANNED)
    if fast:
        return replace(answer, is_first=True)
    if first is not None:
        first(answer)
    seconds = stages.seconds_per_trial
    if answer.question.takes_long_trials:
        stages.begin(LONG_TRIALS)
        answer = _by_long_trials(runner, answer, workers)
    runner = runner.asking(answer.question)
    planned = PlannedLoad(answer.question, answer.chosen, answer.replicas, answer.trial)
    return _with(answer, refine(runner, planned, _rivals(answer, found), strategies, workers, progress, seconds))


def _rivals(answer: Plan, found: Sequence[Candidate]) -> Rivals:
    """Return the machines that a runner-up is looked for among. found: all that hold the longest request."""
    known = [answer.chosen.machine, *(one.machine for one in answer.others if one.capacity.met is not None)]
    untried = [one for one in found if all(one.machine is not machine for machine in known)]
    return Rivals([one for one in answer.others if one.rate], untried)


def _expected(question: Question, strategies: bool) -> tuple[Question, Traffic, list[Candidate]]:
    """Return the question with the load that the closed form expects, where it names none, its traffic, and the
    machines that hold it. Raises PlanError, also for a comparison that the model has no use for."""
    compared = {"drafts": question.drafts is not None, "layouts": question.layouts is not None}
    if unfit := unfit_comparison(question.machines, strategies=strategies, **compared):
        raise PlanError(unfit)
    traffic = question.traffic_of(question.demand)
    found = sizing.candidates(question, traffic)
    if not found:
        raise PlanError(too_few_gpus(question) or does_not_fit(question.machines, traffic.longest))
    expected = expected_load(question, found, traffic)
    if expected is question:
        return question, traffic, found
    traffic = expected.traffic_of(expected.demand)
    return expected, traffic, sizing.candidates(expected, traffic)


def _best(usable: Sequence[Candidate], question: Question) -> Candidate:
    """Return the machine that takes the fewest GPUs, or of which as many as there are serve the most. Of those that
    take equally many, one that serves more is chosen, and among about equal ones one that inflight itself serves."""
    demand = question.demand
    if question.gpus is None:
        fewest = min(one.gpus(demand) for one in usable)
        served = [(one.rate * one.replicas(demand), one) for one in usable if one.gpus(demand) == fewest]
        most = max(rate for rate, _ in served) / (1 + sizing.TOLERANCE)
        good = (one for rate, one in served if rate >= most)
        return min(good, key=lambda one: (not one.machine.parallelism.is_tensor_alone, one.machine.gpus))
    return min(usable, key=lambda one: (rank(one, question), one.machine.gpus))


def _cheapest(trials: PlannedLoadTrials, measured: Sequence[Candidate]) -> Plan:
    """Return the first answer. Where the planned load took more GPUs than the search had found, or as many serve fewer
    requests, machines that the search found better than that are tried under the planned load, too."""
    usable = [one for one in measured if one.rate]
    best = _best(usable, trials.runner.question)
    answer = _answer(trials, best, measured)
    for rival in sorted(usable, key=lambda one: rank(one, answer.question)):
        if rival.machine is best.machine or (answer.trial.met and rank(rival, answer.question) >= _rank_of(answer)):
            continue
        other = _answer(trials, rival, _with_rate_of(answer, measured))
        if other.trial.met and (not answer.trial.met or _rank_of(other) < _rank_of(answer)):
            measured = _with_rate_of(answer, measured)
            answer = other
        else:
            measured = _with_rate_of(other, measured)
            answer = replace(answer, others=_with_rate_of(other, answer.others))
    return answer


def _rank_of(answer: Plan) -> float:
    return answer.gpus if answer.question.gpus is None else -answer.question.demand.rate


def _with_rate_of(answer: Plan, machines: Sequence[Candidate]) -> list[Candidate]:
    """Return the machines, the one of an answer with the rate that the planned load left it; 0: it meets the SLOs at
    none that was tried."""
    rate = answer.question.demand.rate / answer.replicas if answer.trial.met else 0.0
    return [replace(one, rate=rate) if one.machine is answer.chosen.machine else one for one in machines]


def _answer(trials: PlannedLoadTrials, best: Candidate, measured: Sequence[Candidate]) -> Plan:
    """Return the answer on a machine: the planned load was simulated, and nothing beside it."""
    trials = trials.asking(measured_load(trials.runner.question, best))
    others = [one for one in measured if one.machine is not best.machine]
    return _answer_of(trials.runner, planned_replicas(trials, best), others)


def _with(answer: Plan, refined: Refined) -> Plan:
    answer = _no_higher_than(answer, refined.changes)
    return replace(
        answer,
        rates=(answer.replicas * refined.rates[0], answer.replicas * refined.rates[1]),
        replicas_low=refined.replicas_low,
        replicas_high=refined.replicas_high,
        spans=percentile_spans([answer.trial, *refined.trials]),
        changes=refined.changes,
        limits=refined.limits,
        measurements=refined.measurements,
        strategies=refined.strategies,
        routers=refined.routers,
        speculation=refined.speculation,
        layouts=refined.layouts,
        separate=refined.separate,
        others=confirmed_others(answer.others, refined.runner_up, answer.question),
        runner_up=refined.runner_up,
    )


def _no_higher_than(answer: Plan, changes: Sequence[outlook.Change]) -> Plan:
    """Return the answer without a highest rate at which changed traffic, in trials of its own, misses the SLOs."""
    more = next((one.trial for one in changes if one.name == outlook.MORE and not one.trial.met), None)
    rate = outlook.CHANGES[outlook.MORE](answer.question.demand).rate / answer.replicas
    if more is None or answer.chosen.highest <= rate or not (answer.trial.met and answer.question.slos):
        return answer
    chosen = replace(
        answer.chosen, missed_at=rate, capacity=replace(answer.chosen.capacity, missed=replace(more, rate=rate))
    )
    return replace(
        answer,
        chosen=chosen,
        utilisation=1 / outlook.MORE_BY,
        bottleneck=bottleneck(chosen, answer.trial, answer.traffic),
        warnings=warnings(answer.question, answer.traffic, chosen, answer.trial, answer.replicas),
    )


def _stages(question: Question, found: Sequence[Candidate], fast: bool, progress: Progress) -> Stages:
    """Return the stages before the answer is refined."""
    work = dict.fromkeys(map(_search_of, found[: sizing.SIMULATED]), SEARCH_WORK) | {PLANNED: PLANNED_WORK}
    if question.takes_long_trials and not fast:
        work[LONG_TRIALS] = LONG_TRIALS_WORK
    return Stages(work, progress)


def _search_of(candidate: Candidate) -> str:
    return f"{candidate.machine.name}: the highest rate that meets the SLOs"


def _measure(runner: TrialRunner, found: Sequence[Candidate], stages: Stages, fast: bool) -> list[Candidate]:
    """Measure the cheapest by the closed form; more of them only while none meets the SLOs."""
    demand = runner.question.demand
    measured: list[Candidate] = []
    for candidate in found:
        gpus = min((one.gpus(demand) for one in measured if one.rate), default=math.inf)
        if gpus < math.inf and (len(measured) >= sizing.SIMULATED or candidate.machine.gpus * CHEAPER_BY > gpus):
            stages.skip(_search_of(candidate))  # enough were measured, or not even one of these replicas is cheaper
            continue
        worth = CHEAPER_BY * candidate.machine.gpus * demand.rate / gpus
        if worth >= candidate.ceiling:  # no trial could make it cheaper
            stages.skip(_search_of(candidate))
            measured.append(candidate)
            continue
        stages.begin(_search_of(candidate), SEARCH_WORK)
        candidate = sizing.measure(runner, candidate, worth=worth, is_rough=fast)
        measured.append(sizing.widen(runner, candidate) if candidate.rate and not fast else candidate)
        stages.end(_search_of(candidate))
    return measured


def _by_long_trials(runner: TrialRunner, answer: Plan, workers: int) -> Plan:
    """Return the answer as long trials of its planned load have it."""
    found = by_long_trials(runner.asking(answer.question), answer.chosen, answer.replicas, workers)
    return answer if found is None else _answer_of(runner, found, answer.others)


def _answer_of(runner: TrialRunner, planned: PlannedLoad, others: Sequence[Candidate]) -> Plan:
    traffic, (question, best, replicas, trial) = runner.traffic, planned
    return Plan(
        question=question,
        traffic=traffic,
        chosen=best,
        config=best.config,
        replicas=replicas,
        replicas_low=replicas,
        replicas_high=replicas,
        trial=trial,
        spans=percentile_spans([trial]),
        utilisation=min(1.0, question.demand.rate / replicas / best.highest),
        bottleneck=bottleneck(best, trial, traffic),
        others=others,
        warnings=warnings(question, traffic, best, trial, replicas),
        cost=cost_of(best, replicas, question, traffic),
        router=runner.topology(replicas).router,
        autoscaling=autoscaling_of(question, best, replicas),
        spot=spot_of(question, best, replicas, trial),
    )


def as_text(answer: Plan | Infeasible) -> str:
    """Return the whole answer, in paragraphs."""
    if isinstance(answer, Infeasible):
        return render("infeasible", answer=answer)
    trial = answer.trial
    shown = [name for name in trial.percentiles if name in ("ttft", "e2e") or not answer.chosen.machine.is_pooled]
    undecided = [(slo, trial.samples_of(slo), min_samples(slo.of_requests)) for slo in trial.undecided]
    return render("plan", plan=answer, metrics=shown, undecided=undecided)


def first_sentence(answer: Plan) -> str:
    """Return the first answer in a sentence."""
    values = answer.trial.values.items()
    reached = [f"{slo.name} {milliseconds(value, slo.limit)}" for slo, value in values if value < math.inf]
    return sentence("first_answer", plan=answer, reached=reached)
