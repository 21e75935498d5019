"""Where no number of machines keeps the SLOs: that, in words, and what is possible.

Knows figures of trials; nothing is computed here but what could be promised instead.
"""

from __future__ import annotations

import math

from inflight.metrics.slo import Slo
from inflight.planning.plan import Infeasible
from inflight.planning.sizing import Candidate, Question
from inflight.planning.wording import NOT_CALIBRATED, how_broken, milliseconds


def infeasible_text(answer: Infeasible) -> str:
    """What is not possible, and what is: the best that each machine does with hardly any load."""
    promised = " and ".join(str(slo) for slo in answer.question.slos) or "the demand"
    lines = [
        f"No number of replicas keeps {promised}; what is possible:",
        *(f"  {_best(one, answer.question)}" for one in answer.tried),
    ]
    advice = _advice(answer)
    if advice:
        lines += ["", advice]
    if not all(one.machine.calibrated for one in answer.tried):
        lines += ["", NOT_CALIBRATED]
    return "\n".join(lines)


def _best(one: Candidate, question: Question) -> str:
    trial = one.capacity.broken
    if trial is None:
        return f"{one.machine.name}: nothing was found."
    reached = ", ".join(f"{slo.name} {milliseconds(value)}" for slo, value in trial.values.items())
    return f"{one.machine.name} with hardly any load ({trial.rate:.2g} requests/s): {reached or how_broken(trial)}."


def _advice(answer: Infeasible) -> str:
    """The limits that the best machine could promise, with a quarter to spare for load."""
    parts = []
    for slo in answer.question.slos:
        best = min((_value(one, slo) for one in answer.tried), default=math.inf)
        if math.isfinite(best) and best > slo.limit:
            parts.append(f"{slo.metric}={math.ceil(best * 1.25e3)}(p{slo.share * 100:g})")
    if not parts:
        return ""
    return (
        f"Ask for --slo {','.join(parts)} instead (a quarter above the best, which leaves room for load), for faster "
        "GPUs, a lower --weights precision, or shorter prompts."
    )


def _value(one: Candidate, slo: Slo) -> float:
    trial = one.capacity.broken
    value = math.inf if trial is None else trial.values.get(slo, math.inf)
    return math.inf if math.isnan(value) else value
