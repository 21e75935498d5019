"""The highest rate that keeps the SLOs, in few trials.

Knows that what a rate does not keep, no higher one keeps (but for noise), and that latencies grow with the rate; not
what a trial is made of.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from inflight.planning.simulation import Trial

TRICKLE = 0.03  # of the guess: a rate at which requests hardly meet; what fails there is promised to nobody
STEP = 1.6  # most factor from one rate to the next while only one side is known
INSIDE = 0.15  # of the interval, in logarithms, that a next rate keeps away from its ends
CLOSING = (
    4  # trials more where a trickle holds: what broke may lie thirty times as high, and two trials leave most of that
)
LEAST_BADNESS = 0.01  # of a run that kept its SLOs
SATURATED = 3.0  # badness of a run whose waiting grew without end


@dataclass(frozen=True, slots=True)
class Capacity:
    """held: the highest rate that was tried and kept the SLOs, None where even a trickle did not. broken: the
    lowest that did not, None where no rate was found that breaks them."""

    held: Trial | None
    broken: Trial | None
    trials: int


def find_capacity(
    trial: Callable[[float], Trial],
    guess: float,
    tolerance: float = 0.1,
    most: int = 7,
    *,
    trickle: bool = True,
    worth: float = 0.0,
    ceiling: float = math.inf,
) -> Capacity:
    """trial(rate): offer so many requests per second. guess: where to begin. tolerance: between the two rates,
    relative. most: trials, and CLOSING more where a trickle alone has held. trickle: whether to go down to the lowest
    rate before giving up. worth: a rate whose breaking ends the search: lower ones are of no interest. ceiling: no rate
    above it is tried.

    Bisection, led by how far each trial was from its limits (straight lines in logarithms between the two sides).
    """
    sides: dict[bool, tuple[float, Trial]] = {}  # whether the SLOs were kept → rate and trial
    rate, number = min(guess, ceiling), 0
    while number < most:
        number += 1
        found = trial(rate)
        sides[found.met] = (rate, found)
        if found.met and rate <= TRICKLE * guess * 1.001:
            most += CLOSING
        if False in sides and sides[False][0] <= worth:
            break
        if True not in sides and rate <= TRICKLE * guess * 1.001:
            return Capacity(None, found, number)
        if len(sides) == 2 and sides[False][0] / sides[True][0] <= 1 + tolerance:
            return _capacity(sides, number)
        if False not in sides and rate >= ceiling:
            break
        rate = min(ceiling, _next(sides, guess, trickle and number >= most - 2))
    return _capacity(sides, number)


def _capacity(sides: dict[bool, tuple[float, Trial]], trials: int) -> Capacity:
    held, broken = sides.get(True), sides.get(False)
    return Capacity(held and held[1], broken and broken[1], trials)


def _next(sides: dict[bool, tuple[float, Trial]], guess: float, last: bool) -> float:
    if False not in sides:
        rate, found = sides[True]
        return rate * min(STEP, max(1.1, math.sqrt(1 / badness(found))))
    if True not in sides:
        rate, found = sides[False]
        return (
            TRICKLE * guess if last else max(TRICKLE * guess, rate / min(4.0, max(1.25, math.pow(badness(found), 1.5))))
        )
    (low, good), (high, bad) = sides[True], sides[False]
    below, above = -math.log(badness(good)), math.log(badness(bad))
    share = below / (below + above) if below + above > 0 else 0.5
    return low * math.pow(high / low, min(1 - INSIDE, max(INSIDE, share)))


def badness(trial: Trial) -> float:
    """The worst percentile over its limit: above 1 an SLO is broken. Without SLOs, only saturation counts."""
    ratios = [value / slo.limit for slo, value in trial.values.items() if not math.isnan(value)]
    worst = max(ratios, default=0.5)
    if trial.saturated or trial.unserved or not math.isfinite(worst):
        return max(SATURATED, worst if math.isfinite(worst) else 0.0)
    # Answers that come whole have gaps of no time at all; a rate cannot be chosen by the logarithm of nothing.
    return min(max(worst, LEAST_BADNESS), 0.999) if trial.met else max(worst, 1.001)
