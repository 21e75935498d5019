"""Find the highest rate that meets the SLOs in few trials. Latencies grow with the rate: what a rate misses, no higher
one meets, but for noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from inflight.planning.simulation import Trial

TRICKLE = (
    0.03  # of the guess: a rate at which requests hardly meet each other; SLOs that are missed there cannot be met
)
STEP = 1.6  # largest factor from one rate to the next while only one side is known
INSIDE = 0.15  # of the interval, in logarithms, that a next rate keeps away from its ends
CLOSING = 4  # more trials where a trickle meets: the limit may be 30 times as high, and two trials leave most of that
MIN_BADNESS = 0.01  # of a run that met its SLOs
SATURATED = 3.0  # badness of a run whose waiting grew without end


@dataclass(frozen=True, slots=True)
class Capacity:
    """met: at the highest rate that was tried and met the SLOs, None where even a trickle did not. missed: at the
    lowest that did not, None where none was found."""

    met: Trial | None
    missed: Trial | None
    trials: int


def find_capacity(
    trial: Callable[[float], Trial],
    guess: float,
    tolerance: float = 0.1,
    max_trials: int = 7,
    *,
    trickle: bool = True,
    worth: float = 0.0,
    ceiling: float = math.inf,
    trickle_first: bool = False,
) -> Capacity:
    """Bisect the rate, led by how far each trial was from its limits (straight lines in logarithms).

    Args:
        trial: Runs a trial at so many requests per second.
        guess: The first rate.
        tolerance: Between the two rates at the end.
        max_trials: CLOSING more where a trickle meets the SLOs.
        trickle: Whether to try a trickle before giving up.
        worth: A rate; the search ends when it is missed, since lower ones are of no interest.
        ceiling: No rate above it is tried.
        trickle_first: Whether the first rate is a trickle, where even one is expected to miss the SLOs.
    """
    sides: dict[bool, tuple[float, Trial]] = {}  # whether the SLOs were met → rate and trial
    rate, number = min(TRICKLE * guess if trickle_first else guess, ceiling), 0
    while number < max_trials:
        number += 1
        found = trial(rate)
        sides[found.met] = (rate, found)
        is_trickle = rate <= TRICKLE * guess * 1.001
        if found.met and is_trickle:
            max_trials += CLOSING
        if False in sides and (sides[False][0] <= worth or (True not in sides and is_trickle)):
            break
        if len(sides) == 2 and sides[False][0] / sides[True][0] <= 1 + tolerance:
            break
        if False not in sides and rate >= ceiling:
            break
        rate = min(ceiling, _next(sides, guess, trickle and number >= max_trials - 2))
    met, missed = sides.get(True), sides.get(False)
    return Capacity(met and met[1], missed and missed[1], number)


def _next(sides: dict[bool, tuple[float, Trial]], guess: float, is_last: bool) -> float:
    if False not in sides:
        rate, found = sides[True]
        return rate * min(STEP, max(1.1, math.sqrt(1 / badness(found))))
    if True not in sides:
        rate, found = sides[False]
        down = min(4.0, max(1.25, math.pow(badness(found), 1.5)))
        return TRICKLE * guess if is_last else max(TRICKLE * guess, rate / down)
    (low, good), (high, bad) = sides[True], sides[False]
    below, above = -math.log(badness(good)), math.log(badness(bad))
    share = below / (below + above) if below + above > 0 else 0.5
    return low * math.pow(high / low, min(1 - INSIDE, max(INSIDE, share)))


def badness(trial: Trial) -> float:
    """Return the worst percentile over its limit: above 1 an SLO is missed. Without SLOs, only saturation counts."""
    ratios = [value / slo.limit for slo, value in trial.values.items() if not math.isnan(value)]
    worst = max(ratios, default=0.5)
    if trial.saturated or trial.unserved or not math.isfinite(worst):
        return max(SATURATED, worst if math.isfinite(worst) else 0.0)
    # Answers that come whole have gaps of 0 s, and the logarithm of 0 chooses no rate.
    return min(max(worst, MIN_BADNESS), 0.999) if trial.met else max(worst, 1.001)
