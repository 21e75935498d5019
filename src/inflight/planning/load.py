"""The load of a question that names none: that of so many open conversations, or that so many GPUs serve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inflight.planning.mixture import Mixed
from inflight.planning.rendering import sentence
from inflight.planning.sizing import Candidate, Question
from inflight.planning.steady import Steady
from inflight.planning.traffic import Traffic


def expected_load(question: Question, found: Sequence[Candidate], traffic: Traffic) -> Question:
    """Return the question with the rate that the closed form expects; as it is where it has one.

    Args:
        question: What is asked.
        found: The machines that hold the longest request.
        traffic: Of its demand.
    """
    demand = question.demand
    if isinstance(demand, Mixed) and demand.sessions is not None:
        quickest = min(_answer_seconds(one.proposal.steady, traffic) for one in found)
        return replace(question, demand=demand.with_sessions(quickest))
    if question.gpus is not None:
        served = max(one.guess * (question.gpus // one.machine.gpus) for one in found)
        return replace(question, demand=replace(demand, rate=served))
    return question


def measured_load(question: Question, best: Candidate) -> Question:
    """Return the question with the rate that follows from the trials of the chosen machine."""
    demand, met = question.demand, best.capacity.met
    if isinstance(demand, Mixed) and demand.sessions is not None:
        e2e = 0.0 if met is None else met.summary.e2e.mean
        return replace(question, demand=demand.with_sessions(e2e or 0.0))
    if question.gpus is not None:
        return replace(question, demand=replace(demand, rate=best.rate * (question.gpus // best.machine.gpus)))
    return question


def too_few_gpus(question: Question) -> str:
    """Return why no machine of the question fits into its GPUs; empty where one does."""
    least = min(machine.gpus for machine in question.machines)
    if question.gpus is None or least <= question.gpus:
        return ""
    return sentence("too_few_gpus", gpus=question.gpus, least=least)


def _answer_seconds(steady: Steady, traffic: Traffic) -> float:
    return traffic.output_mean * steady.step_seconds
