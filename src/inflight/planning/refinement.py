"""Refine a first answer: other seeds, both ends of what is uncertain, other traffic, and what else is compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from inflight.core.strategies.registry import STRATEGIES
from inflight.metrics.slo import Slo
from inflight.planning import outlook
from inflight.planning.candidate import Candidate, whole_engines
from inflight.planning.ends import rate_under
from inflight.planning.layouts import LayoutOutlook, best_need, confirmed_need, layout_needs
from inflight.planning.limits import LimitCost, limit_cost
from inflight.planning.load import asks_for_sessions
from inflight.planning.mixed_fleets import mixed_fleets
from inflight.planning.outlook import ROUTERS
from inflight.planning.parallel import run_all
from inflight.planning.planned_load import PlannedLoad, confirmed
from inflight.planning.question import Question
from inflight.planning.rendering import sentence
from inflight.planning.runner_up import Rivals, runner_up
from inflight.planning.sensitivity import Measurement, measurements
from inflight.planning.separation import SeparateClass, class_names, separate_class
from inflight.planning.simulation import Trial
from inflight.planning.stages import Progress, Stages
from inflight.planning.trial_runner import TrialRunner
from inflight.planning.yardstick import Yardstick, beside

ENDS = ("slow", "fast")  # as `Machine.cases`
# Of jobs, in usual trials.
LOAD_WORK, END_WORK, CHANGE_WORK, LIMIT_WORK, STRATEGY_WORK = 1.0, 3.5, 3.0, 7.0, 4.0
ROUTER_WORK, LAYOUTS_WORK, DRAFTS_WORK = 3.0, 18.0, 2.0
RUNNER_UP_WORK = 2.0  # beside the trials that ran ahead


class PlanError(ValueError):
    """No answer is possible; the message says what would make it so."""


@dataclass(frozen=True, slots=True)
class Refined:
    """Refinements of an answer, as in `plan.Plan`. rates: requests/s of each replica at the slow and at the fast end.
    trials: of the planned load, at both ends."""

    replicas_low: int
    replicas_high: int | None
    rates: tuple[float, float]
    trials: Sequence[Trial]
    changes: Sequence[outlook.Change]
    limits: Sequence[LimitCost]
    measurements: Sequence[Measurement]
    strategies: Sequence[outlook.StrategyNeed]
    routers: Sequence[outlook.RouterNeed]
    speculation: outlook.SpeculationOutlook | None
    layouts: LayoutOutlook | None
    separate: Sequence[SeparateClass]
    runner_up: Candidate | None


class _Jobs:
    """Jobs by name, with their work in usual trials, and the job whose result one is called with, if any."""

    def __init__(self) -> None:
        self.jobs: dict[str, Callable[..., Any]] = {}
        self.work: dict[str, float] = {}
        self.needs: dict[str, str] = {}

    def add(self, name: str, work: float, job: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        self.jobs[name], self.work[name] = partial(job, *arguments, **options), work


def refine(
    runner: TrialRunner,
    planned: PlannedLoad,
    rivals: Rivals,
    strategies: bool,
    workers: int,
    progress: Progress,
    seconds_per_trial: float | None,
) -> Refined:
    """Compute what refines an answer, several jobs at a time.

    Args:
        runner: Runs trials.
        planned: The answer.
        rivals: Machines that a runner-up is looked for among.
        strategies: Whether strategies are compared.
        workers: Processes at once; the result does not depend on them.
        progress: Called when a job ends.
        seconds_per_trial: Of a usual trial so far; None: not known.
    """
    made, best = _jobs(runner, planned, rivals, strategies), planned.chosen
    stages = Stages(made.work, progress, at_once=workers, seconds_per_trial=seconds_per_trial)
    longest_first = sorted(made.jobs, key=lambda name: (name != _YARDSTICK, -made.work[name]))
    jobs = {name: made.jobs[name] for name in longest_first}
    found = run_all(jobs, workers, partial(stages.end, reports=True), made.needs)
    at_ends = [found[_YARDSTICK].read(found[_at_end(end)]) for end in ENDS if _at_end(end) in found]
    slow, fast = (found.get(_rate_at(end), best.rate) for end in ENDS)
    low, high = _interval(planned, at_ends, slow, fast)
    rates = _slowest(slow, best, runner.question, high), max(fast, best.rate)
    return Refined(
        low,
        high,
        rates,
        at_ends,
        [found[_change(name)] for name in outlook.changes_of(best.machine, runner.question)],
        [found[_limit(slo)] for slo in runner.question.slos],
        measurements(runner, best, planned.replicas, planned.trial, low, high, rates),
        [_strategy(runner, best, name, found) for name in STRATEGIES] if strategies else (),
        [found[_router(name)] for name in ROUTERS if _router(name) in found],
        found.get(_SPECULATION),
        found.get(_LAYOUTS),
        [found[_alone(name)] for name in class_names(runner.question)],
        found.get(_RUNNER_UP),
    )


_SPECULATION, _LAYOUTS = "speculation at the planned load", "layouts"
_RUNNER_UP, _YARDSTICK = "the next plan", "the planned load in a short trial"


def _at_end(end: str) -> str:
    return f"the planned load at the {end} end of what is uncertain"


def _rate_at(end: str) -> str:
    return f"the highest rate at the {end} end"


def _change(name: str) -> str:
    return f"changed traffic: {name}"


def _limit(slo: Slo) -> str:
    return f"the cost of {slo}"


def _alone(name: str) -> str:
    return f"the class {name} on replicas of its own"


def _router(name: str) -> str:
    return f"router {name}"


def _jobs(runner: TrialRunner, planned: PlannedLoad, rivals: Rivals, strategies: bool) -> _Jobs:
    question, jobs = runner.question, _Jobs()
    best, replicas, share = planned.chosen, planned.replicas, planned.share
    jobs.add(_YARDSTICK, LOAD_WORK, _yardstick, runner, planned)
    for end, model in zip(ENDS, best.machine.cases, strict=False):
        jobs.add(_at_end(end), LOAD_WORK, beside, runner, best, share, model=model)
        jobs.add(_rate_at(end), END_WORK, rate_under, runner, best, model, planned.trial)
    for name in outlook.changes_of(best.machine, question):
        jobs.add(_change(name), CHANGE_WORK, outlook.find_change, runner, best, replicas, name)
        jobs.needs[_change(name)] = _YARDSTICK
    for slo in question.slos:
        jobs.add(_limit(slo), LIMIT_WORK, limit_cost, runner, best, replicas, slo)
    for name in STRATEGIES if strategies else ():
        if name != best.config.strategy and not outlook.untried(runner, name):
            jobs.add(f"strategy {name}", STRATEGY_WORK, _strategy_need, runner, best, name)
    for name in class_names(question):
        jobs.add(_alone(name), STRATEGY_WORK, separate_class, runner, best, name)
    for name in ROUTERS if outlook.compares_routers(runner, best) else ():
        jobs.add(_router(name), ROUTER_WORK, outlook.router_need, runner, best, name)
    if question.drafts is not None:
        jobs.add(_SPECULATION, DRAFTS_WORK, outlook.try_speculation, runner, best, replicas, question.drafts)
    if question.layouts is not None:
        jobs.add(_LAYOUTS, LAYOUTS_WORK, _layouts, runner, best)
    if rivals.measured or not (strategies or question.layouts):
        jobs.add(_RUNNER_UP, LOAD_WORK if rivals.measured else RUNNER_UP_WORK, runner_up, runner, best, rivals)
    return jobs


def _yardstick(runner: TrialRunner, planned: PlannedLoad) -> Yardstick:
    """Return how short trials are read, by one of the planned load; as they are where that misses the SLOs."""
    if not planned.trial.met:
        return Yardstick({}, {})
    return Yardstick.of(planned.trial, beside(runner, planned.chosen, planned.share))


def _interval(planned: PlannedLoad, at_ends: Sequence[Trial], slow: float, fast: float) -> tuple[int, int | None]:
    """Return the replicas with everything uncertain at its fast end, and at its slow end.

    at_ends: at the planned load, slow and fast: open conversations send fewer requests where answers are slow. slow,
    fast: the highest rates.
    """
    question, replicas = planned.question, planned.replicas
    if not at_ends:
        return replicas, replicas
    demands = [question.demand.rate] * 2
    if asks_for_sessions(question):
        demands = [replicas * one.rate for one in at_ends]
    low = min(replicas, whole_engines(demands[1] / max(fast, planned.chosen.rate)))
    if not slow:
        return low, None
    high = replicas if at_ends[0].met else replicas + 1
    return low, max(high, whole_engines(demands[0] / slow))


def _slowest(slow: float, best: Candidate, question: Question, high: int | None) -> float:
    """Return the requests/s of each replica at the slow end: where the planned load misses there what a shorter trial
    meets, those of the most replicas of the interval."""
    rate, demand = min(slow, best.rate), question.demand.rate
    if high is None or question.gpus is not None or not rate or whole_engines(demand / rate) >= high:
        return rate
    return demand / high


def _strategy_need(runner: TrialRunner, best: Candidate, name: str) -> outlook.StrategyNeed:
    need = outlook.strategy_need(runner, best, name)
    if need.candidate is None or not need.candidate.rate:
        return need
    return replace(need, candidate=confirmed(runner, need.candidate))


def _strategy(runner: TrialRunner, best: Candidate, name: str, found: dict[str, Any]) -> outlook.StrategyNeed:
    if name == best.config.strategy:
        return outlook.StrategyNeed(name, best)
    need: outlook.StrategyNeed | None = found.get(f"strategy {name}")
    return need or outlook.StrategyNeed(name, None, outlook.untried(runner, name))


def _layouts(runner: TrialRunner, best: Candidate) -> LayoutOutlook:
    question, machine = runner.question.layouts, best.machine
    assert question is not None, "the job is made where layouts are compared"
    link, tiers, no_tiers = question.link(machine), question.tiers(machine), ""
    moves = not machine.state_snapshots or machine.state_blocks > 0
    if not moves:
        link, tiers = None, ()
    elif tiers and runner.traffic.shared < outlook.MIN_SHARED:
        tiers, no_tiers = (), sentence("no_shared_prefixes")
    needs = layout_needs(runner, best, link, question.disagg_modes, tiers)
    if link is not None and (fleets := mixed_fleets(runner, best, link)):
        needs.append(best_need(runner, fleets))
    needs = [confirmed_need(runner, one) for one in needs]
    return LayoutOutlook(needs, runner.question.demand, runner.traffic, link, no_tiers, moves)
