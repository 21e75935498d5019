"""Two engines on the same work in turns, leg by leg, and how much faster the one is.

On a machine whose speed drifts, legs that lie side by side are compared with each other. Legs differ in what they hold,
so that their ratios are not averaged: the figure is that of all tokens over all seconds, and how far it would move
without each leg says how sure it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inflight.metrics.confidence import Estimate, estimate


@dataclass(frozen=True, slots=True)
class Leg:
    seconds: float
    tokens: int


Run = Callable[[], Leg]


def in_turns(one: Run, other: Run, legs: int) -> tuple[list[Leg], list[Leg]]:
    """Each as often; who is first alternates."""
    ones: list[Leg] = []
    others: list[Leg] = []
    for number in range(legs):
        for run, found in ((one, ones), (other, others))[:: -1 if number % 2 else 1]:
            found.append(run())
    return ones, others


def speed_up(ones: Sequence[Leg], others: Sequence[Leg]) -> Estimate:
    """Tokens a second of the one over those of the other, with a 95 % interval: Tukey's jackknife over legs, of the
    logarithm."""
    number, whole = len(ones), _log_ratio(ones, others)
    if number < 2:
        return Estimate(math.exp(whole), None, None, number)
    without = [_log_ratio([*ones[:i], *ones[i + 1 :]], [*others[:i], *others[i + 1 :]]) for i in range(number)]
    found = estimate([number * whole - (number - 1) * one for one in without])
    low, high = (None if bound is None else math.exp(bound) for bound in (found.low, found.high))
    return Estimate(math.exp(whole), low, high, number)


def _log_ratio(ones: Sequence[Leg], others: Sequence[Leg]) -> float:
    return math.log(_rate(ones) / _rate(others))


def _rate(legs: Sequence[Leg]) -> float:
    """Tokens a second."""
    return sum(leg.tokens for leg in legs) / sum(leg.seconds for leg in legs)


def with_interval(found: Estimate) -> str:
    if found.low is None:
        return f"{found.mean:.3f}"
    return f"{found.mean:.3f} ({found.low:.3f} to {found.high:.3f})"
