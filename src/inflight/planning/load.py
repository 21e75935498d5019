"""The load of a question that names none: that of so many open conversations, or that so many GPUs serve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from inflight.planning.candidate import Candidate
from inflight.planning.mixture import Mixed
from inflight.planning.question import Question
from inflight.planning.rendering import sentence
from inflight.planning.simulation import Trial
from inflight.planning.steady import Steady, rows_at
from inflight.planning.traffic import Traffic

_HALVINGS = 40
_MAX_FACTOR = 1024  # times the demanded rate, up to which a balanced one is looked for


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
        served = max(one.guess * (question.engines(one.machine) or 0) for one in found)
        return replace(question, demand=replace(demand, rate=served))
    return question


def measured_load(question: Question, best: Candidate) -> Question:
    """Return the question with the rate that follows from the trials of the chosen machine."""
    demand, met = question.demand, best.capacity.met
    if isinstance(demand, Mixed) and demand.sessions is not None:
        e2e = 0.0 if met is None else met.summary.e2e.mean
        return replace(question, demand=demand.with_sessions(e2e or 0.0))
    if (engines := question.engines(best.machine)) is not None:
        return replace(question, demand=replace(demand, rate=best.rate * engines))
    return question


def asks_for_sessions(question: Question) -> bool:
    """Whether so many open conversations are asked for, whose rate follows from trials."""
    return isinstance(question.demand, Mixed) and question.demand.sessions is not None


def rate_follows(question: Question) -> bool:
    """Whether the rate follows from trials (`measured_load`)."""
    return asks_for_sessions(question) or question.gpus is not None


def conversations_of(question: Question) -> Mixed | None:
    """Return the demand whose requests follow each other, so that their load is balanced with how long answers take;
    None where they are single ones."""
    demand = question.demand
    return demand if isinstance(demand, Mixed) and demand.waits_for_answers else None


def balanced_load(
    question: Question, candidate: Candidate, replicas: int, traffic: Traffic, run: Callable[[Question], Trial]
) -> tuple[Question, Trial]:
    """Return the question at the rate that its open conversations send, with its trial; at its own where it has one.

    In the trial as many are open as are asked for. How long answers take there gives the rate (Little's law), and how
    many times longer than the closed form expects, which further trials begin with.

    Args:
        question: What is asked.
        candidate: The chosen machine with its settings.
        replicas: That share the requests.
        traffic: Of its demand.
        run: Runs the trial of a question on these replicas.
    """
    demand, trial = conversations_of(question), candidate.capacity.met
    if demand is None or trial is None:
        return question, run(question)

    def expected(each: float) -> float:
        """Return the seconds of an answer by the closed form. each: requests/s of a replica."""
        return rows_at(candidate.machine.model, traffic, each, candidate.config.max_num_seqs) / each

    def slowdown(trial: Trial) -> float:
        return (trial.summary.e2e.mean or 0.0) / expected(trial.rate) or 1.0

    demand = replace(demand, slowdown=slowdown(trial))
    if demand.sessions is None:
        question = replace(question, demand=demand)
        return question, run(question)
    trial = run(replace(question, demand=_balanced(demand, demand.sessions, replicas, expected)))
    demand = replace(demand, rate=replicas * trial.rate, slowdown=slowdown(trial))
    return replace(question, demand=demand), trial


def _balanced(demand: Mixed, sessions: float, replicas: int, expected: Callable[[float], float]) -> Mixed:
    """Return the demand at the rate at which so many conversations are open, by the closed form."""

    def too_many(each: float) -> bool:
        return demand.conversations.open_at(replicas * each, demand.slowdown * expected(each)) > sessions

    high = demand.rate / replicas
    limit = _MAX_FACTOR * high
    while not too_many(high):
        if high > limit:  # rows bound how many are open at any rate
            return demand
        high *= 2
    low = 0.0
    for _ in range(_HALVINGS):
        each = (low + high) / 2
        low, high = (low, each) if too_many(each) else (each, high)
    return replace(demand, rate=replicas * high)


def too_few_gpus(question: Question) -> str:
    """Return why no machine of the question fits into its GPUs; empty where one does."""
    least = min(machine.gpus for machine in question.machines)
    if question.gpus is None or least <= question.gpus:
        return ""
    return sentence("too_few_gpus", gpus=question.gpus, least=least)


def _answer_seconds(steady: Steady, traffic: Traffic) -> float:
    return traffic.output_mean * steady.step_seconds
