"""The runs of a plan's page: a grid of loads and layouts, each load simulated as typical and at both ends of what is
uncertain.

Limits need no runs of their own, since a run has its latencies' percentiles; demand needs none, since a replica's share
of it decides. Prices neither. Step sizes do: a limit between tokens wants smaller steps than one on first tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from inflight.counted import counted
from inflight.metrics.slo import METRICS
from inflight.planning.bottleneck import FULL
from inflight.planning.candidate import Candidate
from inflight.planning.engine_config import WHOLE_PROMPTS
from inflight.planning.infeasible import Infeasible
from inflight.planning.parallel import run_all
from inflight.planning.plan import Plan
from inflight.planning.proposal import BUDGETS
from inflight.planning.refinement import ENDS
from inflight.planning.rendering import number, sentence
from inflight.planning.simulation import SHARES, Trial
from inflight.planning.stages import Progress, Stages, quiet
from inflight.planning.trial_cache import TrialCache
from inflight.planning.trial_runner import TrialRunner
from inflight.report.page.explorer import Explored, ExploredLayout, ExploredRun

LOADS = (0.04, 0.2, 0.35, 0.5, 0.62, 0.74, 0.86, 1.0)  # of the highest that is simulated
HIGHEST_LOAD = 1.15  # times the rate that meets the SLOs, where that is more than the closed form serves
PAGE_MACHINES = 2
STEPS = (1.0, 0.25)  # times the tokens of a step that the plan chose


def explore(
    answer: Plan | Infeasible,
    *,
    fast: bool = False,
    workers: int = 1,
    progress: Progress = quiet,
    cache: TrialCache | None = None,
) -> Explored:
    """Simulate the grid of a plan's page.

    Args:
        answer: The plan, whose machines and settings it has.
        fast: Whether to leave the ends of what is uncertain out, and other machines than the chosen one.
        workers: Processes at once; the runs do not depend on them.
        progress: Called when a run ends.
        cache: Trials that were run before.
    """
    question, runner = answer.question, TrialRunner(answer.question, answer.traffic, cache)
    cells = list(_cells(answer, fast))
    jobs = {one.name: partial(_run, runner, one) for one in cells}
    stages = Stages(dict.fromkeys(jobs, 1.0), progress, at_once=workers)
    found = run_all(jobs, workers, partial(stages.end, reports=True))
    layouts = [_layout(one, cells, found) for one in _layouts(answer, fast)]
    asked, share = _limits(answer)
    return Explored(
        rate=question.demand.rate,
        limits=asked,
        share=share,
        input_tokens=answer.traffic.input_mean,
        output_tokens=0.0 if _is_pooled(answer) else answer.traffic.output_mean,
        layouts=layouts,
        about=list(_about(answer, len(cells))),
        unit=question.machines[0].unit,
    )


@dataclass(frozen=True, slots=True)
class _Cell:
    """A run of the grid. end: of what is uncertain; "": typical."""

    candidate: Candidate
    rate: float
    end: str

    @property
    def name(self) -> str:
        end = f", {self.end} end" if self.end else ""
        return f"{_name(self.candidate)}: {number(self.rate, ',.3g')} requests/s of each replica{end}"


def _run(runner: TrialRunner, cell: _Cell) -> Trial:
    machine = cell.candidate.machine
    model = machine.cases[ENDS.index(cell.end)] if cell.end else None
    return runner.run(cell.candidate, cell.rate, model=model)


def _layouts(answer: Plan | Infeasible, fast: bool) -> Iterator[Candidate]:
    """Yield machines with their settings, the chosen one first; each with the planned steps and with smaller ones."""
    if isinstance(answer, Plan):
        machines = [replace(answer.chosen, config=answer.config), *answer.others]
    else:
        machines = list(answer.tried)
    for candidate in machines[: 1 if fast else PAGE_MACHINES]:
        budget = candidate.config.max_num_batched_tokens
        whole = candidate.config.strategy in WHOLE_PROMPTS  # whose steps are as long as their prompts
        fixed = whole or answer.question.overrides.max_num_batched_tokens is not None
        seen = set[int]()
        for times in STEPS if budget is not None and not fixed else (1.0,):
            tokens = None if budget is None else max(BUDGETS[0], candidate.config.max_num_seqs, round(budget * times))
            if tokens not in seen:
                seen.add(tokens or 0)
                yield replace(candidate, config=replace(candidate.config, max_num_batched_tokens=tokens))


def _cells(answer: Plan | Infeasible, fast: bool) -> Iterator[_Cell]:
    for candidate in _layouts(answer, fast):
        highest = max(candidate.proposal.steady.requests_per_s, HIGHEST_LOAD * candidate.rate)
        for load in LOADS:
            yield _Cell(candidate, load * highest, "")
            for end in ENDS if candidate.machine.cases and not fast else ():
                yield _Cell(candidate, load * highest, end)


def _name(candidate: Candidate) -> str:
    config, name = candidate.config, candidate.machine.name
    if config.max_num_batched_tokens is None or config.strategy in WHOLE_PROMPTS:
        return name
    return f"{name}, steps of {config.max_num_batched_tokens:,} tokens"


def _layout(candidate: Candidate, cells: list[_Cell], found: Mapping[str, Trial]) -> ExploredLayout:
    own = [one for one in cells if one.candidate == candidate]
    trials = {(one.rate, one.end): found[one.name] for one in own}
    price, gpus = candidate.machine.price_per_hour, candidate.machine.gpus
    settings = {name: str(one.value) for name, one in candidate.config.options().items()}
    rates = sorted({one.rate for one in own})
    return ExploredLayout(
        name=_name(candidate),
        gpus=gpus,
        settings=settings,
        pooled=candidate.pooled,
        price=None if price is None else price / gpus,
        runs=[
            _explored(candidate, trials[rate, ""], trials.get((rate, "slow")), trials.get((rate, "fast")), rate)
            for rate in rates
        ],
    )


def _explored(candidate: Candidate, typical: Trial, slow: Trial | None, fast: Trial | None, rate: float) -> ExploredRun:
    context = typical.summary.prompt_tokens / max(1, typical.summary.requests)
    return ExploredRun(
        rate=rate,
        saturated=typical.is_exhausted,
        latency=_latencies(typical),
        low=_latencies(fast),
        high=_latencies(slow),
        slow_saturated=slow is not None and slow.is_exhausted,
        fast_saturated=fast is not None and fast.is_exhausted,
        shares={name: float(f"{share:.3g}") for name, share in typical.spent.by_bound.items()},
        rows=typical.spent.rows,
        step_seconds=typical.spent.step_seconds,
        is_full=typical.spent.rows > FULL * candidate.machine.sequences(context),
        requests=typical.summary.offered,
    )


def _latencies(trial: Trial | None) -> dict[str, list[float | None]]:
    """Return p50, p95 and p99 of each metric; empty where there are none."""
    if trial is None or trial.is_exhausted:
        return {}
    return {
        name: [float(f"{value:.4g}") if math.isfinite(value) else None for value in trial.percentiles[name]]
        for name in METRICS
    }


def _is_pooled(answer: Plan | Infeasible) -> bool:
    """Return whether answers are vectors."""
    return all(one.is_pooled for one in answer.question.machines)


def _limits(answer: Plan | Infeasible) -> tuple[dict[str, float | None], int]:
    """Return the limits that the sliders begin with, in milliseconds, and their percentile, the hardest that is asked
    for. Limits on a request's own gaps begin as limits on all gaps."""
    limits: dict[str, float | None] = dict.fromkeys(("ttft", "tpot", "itl"))
    hardest = 0.0
    for slo in answer.question.slos:
        metric = "itl" if slo.metric == "itl_max" else slo.metric
        if metric in limits:
            limits[metric] = min(slo.limit * 1e3, limits[metric] or math.inf)
            hardest = max(hardest, slo.of_requests)
    index = next((at for at, share in enumerate(SHARES) if share >= hardest), len(SHARES) - 1) if hardest else 2
    return limits, index


def _interval(plan: Plan) -> str:
    """Return the interval of a plan's replicas, or of their rate; "" where it is not known."""
    if plan.is_first or not plan.chosen.machine.cases:
        return ""
    if plan.question.gpus is not None:
        low, high = (number(rate, ",.3g") for rate in plan.rates)
        return f" (interval {low} to {high} requests/s)"
    if plan.replicas_high is None:
        return f" (at least {plan.replicas_low:,})"
    high = "" if plan.replicas_high == plan.replicas_low else f" to {plan.replicas_high:,}"
    return f" (interval {plan.replicas_low:,}{high})"


def _about(answer: Plan | Infeasible, runs: int) -> Iterator[str]:
    traffic, rate = answer.traffic, number(answer.question.demand.rate, ",.4g")
    answers = f", answers of {traffic.output_mean:,.0f} (p99 {traffic.output.p99 or 0:,.0f})"
    yield (
        f"Planned for {rate} requests/s, prompts of {traffic.input_mean:,.0f} tokens on average (p99 "
        f"{traffic.input.p99 or 0:,.0f}){'' if _is_pooled(answer) else answers}; "
        f"{counted(runs, 'run')} of the engine's own scheduler. Lengths and bursts stay as they are; demand, limits "
        "and price can be moved."
    )
    if isinstance(answer, Plan):
        planned = f"{counted(answer.replicas, 'replica')} of {answer.chosen.machine.name}{_interval(answer)}"
        yield (
            f"The plan itself: {planned}, by longer trials at that very load. Where this page says another number "
            "there, the plan's is the better one."
        )
        if not (plans := answer.ranked())[0].is_chosen:
            better = sentence("better_plan", plans=plans, unit=answer.chosen.machine.unit)
            yield f"{better[0].upper()}{better[1:]}. The settings here are those of the plan."
    else:
        yield "The plan found no number of replicas that keeps the SLOs; with other limits there may be one."
    if any(slo.traffic for slo in answer.question.slos):
        yield "The plan has limits of single classes; here the lowest of each latency begins as that of all."
    for metric in ("e2e", "jct"):
        if any(slo.metric == metric for slo in answer.question.slos):
            yield f"The plan limits {metric.upper()}, too, for which this page has no slider."
    uncalibrated = [one for one in answer.question.machines if not one.calibrated]
    if uncalibrated:
        basis = sentence("not_calibrated", machine=uncalibrated[0])
        yield f"{basis[0].upper()}{basis[1:]}."
