"""The runner-up of a plan. The search ends as soon as nothing is cheaper, which with a single GPU is at once, so that
it may have measured no other plan that meets the SLOs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

from inflight.planning.candidate import Candidate
from inflight.planning.load import rate_follows
from inflight.planning.outlook import strategy_need
from inflight.planning.parallel import running_beside
from inflight.planning.planned_load import confirmed
from inflight.planning.question import Question
from inflight.planning.ranking import rank
from inflight.planning.sizing import HEADROOM, measure
from inflight.planning.trial_runner import TrialRunner

RIVAL_MACHINES = 2  # that are tried
MAX_RIVAL_GPUS = 2.0  # times the plan's GPUs: beyond, another layout on the same machine is tried, too


@dataclass(frozen=True, slots=True)
class Rivals:
    """Other machines than the plan's. measured: that the search found to meet the SLOs. untried: that hold the longest
    request, the cheapest first."""

    measured: Sequence[Candidate] = ()
    untried: Sequence[Candidate] = ()


def runner_up(runner: TrialRunner, best: Candidate, rivals: Rivals) -> Candidate | None:
    """Find the next plan: of the machines that the search measured the cheapest that keeps the SLOs under the planned
    load, as the plan does; where none of them does, by short trials another machine, or, where that takes far more
    GPUs, whole prompts in place of chunks (or the other way round) on the same; None where none was found.

    Args:
        runner: Runs trials.
        best: The chosen machine with its settings.
        rivals: That it is looked for among.
    """
    for rival in _in_order(rivals.measured, runner.question):
        if (kept := _kept(runner, rival)) is not None:
            return kept
    demand, other = runner.question.demand, _on_another_machine(runner, rivals.untried)
    is_near = other is not None and other.gpus(demand) <= MAX_RIVAL_GPUS * best.gpus(demand)
    if is_near and (kept := _kept(runner, other)):
        return kept
    layout = _kept(runner, _in_another_layout(runner, best))
    if layout is not None and other is not None and layout.gpus(demand) <= other.gpus(demand):
        return layout
    usable = [one for one in (layout, _kept(runner, other)) if one is not None]
    return min(usable, key=lambda one: one.gpus(demand), default=None)


def confirmed_others(others: Sequence[Candidate], found: Candidate | None, question: Question) -> list[Candidate]:
    """Return the machines that the search measured, with the rates that the planned load left them when the runner-up
    was looked for: 0 where it refused them. Those behind the runner-up are left out, since it confirmed none of them.

    Args:
        others: The machines, with the rates of the search.
        found: The runner-up.
        question: That they are plans for.
    """
    order = [one.machine.name for one in _in_order([one for one in others if one.rate], question)]
    tried = order[: order.index(found.machine.name)] if found and found.machine.name in order else order

    def left(one: Candidate) -> float | None:
        name = one.machine.name
        return 0.0 if not one.rate or name in tried else found.rate if found and found.machine.name == name else None

    rates = [(one, left(one)) for one in others]
    return [replace(one, rate=rate) for one, rate in rates if rate is not None]


def _in_order(measured: Sequence[Candidate], question: Question) -> list[Candidate]:
    return sorted(measured, key=lambda one: rank(one, question))


def _kept(runner: TrialRunner, found: Candidate | None) -> Candidate | None:
    """Return a candidate at the rate that the planned load leaves it; None where it leaves none."""
    kept = found and confirmed(runner, found)
    return kept if kept is not None and kept.rate else None


def running_ahead(runner: TrialRunner, found: Sequence[Candidate], workers: int) -> AbstractContextManager[None]:
    """Return a context in which another process runs `expected_trials`. workers: processes at once; with one, nothing
    runs ahead."""
    question = runner.question
    is_known = runner.stores(found[0].config) and question.layouts is None and not rate_follows(question)
    return running_beside(partial(expected_trials, runner, found), workers if is_known else 1)


def expected_trials(runner: TrialRunner, found: Sequence[Candidate]) -> None:
    """Run the trials of the next plan, as far as they are known before the plan: if it is on the first of these
    machines, and no other is measured. The cache keeps them.

    Args:
        runner: Runs trials.
        found: Machines that hold the longest request, the cheapest by the closed form first.
    """
    _on_another_machine(runner, found[1:])
    _in_another_layout(runner, found[0])


def _on_another_machine(runner: TrialRunner, rivals: Sequence[Candidate]) -> Candidate | None:
    question = runner.question
    # One engine that serves the demand is enough; so many GPUs serve what they can.
    most = question.demand.rate / HEADROOM if question.gpus is None else math.inf
    measured = (measure(runner, rival, most=most, is_rough=True) for rival in rivals[:RIVAL_MACHINES])
    return next((one for one in measured if one.rate), None)


def _in_another_layout(runner: TrialRunner, best: Candidate) -> Candidate | None:
    if best.machine.is_encoder_only:  # no strategy divides its texts
        return None
    name = "continuous" if best.config.strategy == "chunked" else "chunked"
    found = strategy_need(runner, best, name).candidate
    return found if found is not None and found.rate else None
