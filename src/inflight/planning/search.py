"""Find the highest rate that meets the SLOs in few trials. Latencies grow with the rate: what a rate misses, no higher
one meets, but for noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from inflight.planning.simulation import Trial

TRICKLE = (
    0.03  # of the guess: a rate at which requests hardly meet each other; SLOs that are missed there cannot be met
)
STEP = 1.6  # largest factor from a first rate that meets the SLOs to the next
SMALLEST, SMALLEST_DOWN = 1.1, 1.25  # the smallest, up and down: latency may be near its limit on an idle engine, too
LONGEST = 4.0  # largest of all, after several trials on the same side
BLIND = 2.0  # factor from a run that says nothing of other rates: least from a trickle, largest from a known miss
INSIDE = 0.15  # of the interval, in logarithms, that a next rate keeps away from its ends
CLOSING = 4  # more trials where the first guess was far off: without them the rate may be a fraction of the highest
STEEPNESS = 1.5  # of ln(latency) by ln(rate), at least nearly, where latencies are near their limits
FAR = 0.3  # of the logarithm of a latency beside its limit: beyond, it says little of the rate
MIN_BADNESS = 0.01  # of a run that met its SLOs
SATURATED = 3.0  # badness of a run whose waiting grew without end


@dataclass(frozen=True, slots=True)
class Capacity:
    """met: at the highest rate that was tried and met the SLOs, None where even a trickle did not. missed: at the
    lowest that did not, None where none was found. stopped: whether no lower rate than the missed one was of interest,
    which may meet them."""

    met: Trial | None
    missed: Trial | None
    trials: int
    stopped: bool = False

    @property
    def has_both(self) -> bool:
        """Whether the highest rate is between two that were tried."""
        return self.met is not None and self.missed is not None

    @property
    def limit(self) -> float:
        """Return the requests/s at which the SLOs are just met: between both, or beyond the one that there is; 0 where
        there is none."""
        if self.met is None and self.missed is None:
            return 0.0
        if self.met is None or self.missed is None or self.missed.rate <= self.met.rate:
            near = self.met or self.missed
            assert near is not None, "one of them is there"
            return near.rate * math.pow(badness(near), -1 / STEEPNESS)
        below, above = (min(FAR, abs(math.log(badness(one)))) for one in (self.met, self.missed))
        return self.met.rate * math.pow(self.missed.rate / self.met.rate, below / (below + above))


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
    known: Trial | None = None,
) -> Capacity:
    """Bisect the rate, led by how far each trial was from its limits (straight lines in logarithms). Where the latency
    of an idle engine is near its limit, low rates look as bad as high ones: each further trial on the same side takes
    a longer step, or counts the other side's distance by half (the Illinois method).

    Args:
        trial: Runs a trial at so many requests per second.
        guess: The first rate.
        tolerance: Between the two rates at the end.
        max_trials: CLOSING more where a trickle meets the SLOs, and where the upper rate is STEP times the lower after
            so many, or the ceiling is not reached.
        trickle: Whether to try a trickle before giving up.
        worth: A rate; the search ends when it is missed, since lower ones are of no interest.
        ceiling: No rate above it is tried.
        trickle_first: Whether the first rate is a trickle, where even one is expected to miss the SLOs.
        known: A trial that was run before. Where it met the SLOs, no rate below its is tried. Where it missed them,
            none above is, and the first is led by how far it missed them, up to BLIND times lower.
    """
    # sides: whether the SLOs were met → rate and trial; repeated: trials in a row on the same side
    sides: dict[bool, tuple[float, Trial]] = {} if known is None else {known.met: (known.rate, known)}
    lowest = TRICKLE * guess
    rate, number, was_met, repeated = min(lowest if trickle_first else guess, ceiling), 0, False, 0
    is_trickle = False
    if known is not None and not known.met:
        rate, repeated = min(rate, known.rate / min(BLIND, _down(known))), 1
    closing = CLOSING
    while number < max_trials:
        number += 1
        found = trial(rate)
        was_met, repeated = found.met, repeated + 1 if found.met == was_met else 1
        sides[found.met] = (rate, found)
        is_trickle = rate <= lowest * 1.001
        if _is_decided(sides, is_trickle, tolerance, worth, ceiling):
            break
        if (found.met and is_trickle) or (number == max_trials and _is_far(sides, ceiling)):
            max_trials, closing = max_trials + closing, 0
        is_last = trickle and True not in sides and number >= max_trials - 2
        rate = lowest if is_last else _next(sides, was_met, repeated, guess, ceiling)
    return replace(_capacity(sides, number), stopped=True not in sides and not is_trickle)


def _capacity(sides: dict[bool, tuple[float, Trial]], trials: int) -> Capacity:
    """Return both sides. Open conversations may send more than they were drawn for, and less where answers are late:
    those that missed the SLOs are said to ask for as much more as those that met them sent."""
    if len(sides) < 2:
        found = {was_met: trial for was_met, (_, trial) in sides.items()}
        return Capacity(found.get(True), found.get(False), trials)
    (drawn, met), (rate, missed) = sides[True], sides[False]
    return Capacity(met, replace(missed, rate=max(missed.rate, rate * met.rate / drawn)), trials)


def _next(sides: dict[bool, tuple[float, Trial]], was_met: bool, repeated: int, guess: float, ceiling: float) -> float:
    """Return the next rate. was_met, repeated: of the last trial, and how many in a row were on its side."""
    if len(sides) == 2:
        return _between(sides[True], sides[False], was_met, repeated)
    rate, found = sides[was_met]
    if was_met:
        return min(ceiling, _above(rate, found, guess, ceiling, repeated))
    return max(TRICKLE * guess, rate / _longer(_down(found), repeated))


def _is_decided(
    sides: dict[bool, tuple[float, Trial]], is_trickle: bool, tolerance: float, worth: float, ceiling: float
) -> bool:
    """Whether no further trial is of interest. is_trickle: of the last one."""
    met, missed = sides.get(True), sides.get(False)
    if missed is None:
        return met is not None and met[0] >= ceiling
    if met is None:
        return missed[0] <= worth or is_trickle
    return missed[0] <= worth or missed[0] / met[0] <= 1 + tolerance


def _is_far(sides: dict[bool, tuple[float, Trial]], ceiling: float) -> bool:
    """Whether the highest rate that meets the SLOs may be much higher than the highest that was tried."""
    if len(sides) == 2:
        return sides[False][0] > STEP * sides[True][0]
    return True in sides and math.isfinite(ceiling)


def _above(rate: float, found: Trial, guess: float, ceiling: float, repeated: int) -> float:
    if rate < guess:  # a trickle went first
        top = guess if math.isinf(ceiling) else ceiling
        return min(top, max(BLIND * rate, math.sqrt(rate * top)))
    return rate * _longer(min(STEP, max(SMALLEST, math.sqrt(1 / badness(found)))), repeated)


def _down(missed: Trial) -> float:
    """Return the factor down to a rate that may meet the SLOs."""
    return max(SMALLEST_DOWN, math.pow(badness(missed), 1.5))


def _longer(step: float, repeated: int) -> float:
    """Return the factor to the next rate: squared for each further trial on the same side."""
    return math.exp(min(math.log(LONGEST), math.log(step) * 2 ** (repeated - 1)))


def _between(met: tuple[float, Trial], missed: tuple[float, Trial], was_met: bool, repeated: int) -> float:
    (low, good), (high, bad) = met, missed
    below, above = -math.log(badness(good)), math.log(badness(bad))
    kept = 0.5 ** (repeated - 1)  # of the side that was not tried last
    below, above = (below, above * kept) if was_met else (below * kept, above)
    share = below / (below + above) if below + above > 0 else 0.5
    return low * math.pow(high / low, min(1 - INSIDE, max(INSIDE, share)))


def badness(trial: Trial) -> float:
    """Return the worst percentile over its limit: above 1 an SLO is missed. Without SLOs, only saturation counts."""
    ratios = [value / slo.limit for slo, value in trial.values.items() if not math.isnan(value)]
    worst = max(ratios, default=0.5)
    if trial.is_exhausted or not math.isfinite(worst):
        return max(SATURATED, worst if math.isfinite(worst) else 0.0)
    # Answers that come whole have gaps of 0 s, and the logarithm of 0 chooses no rate.
    return min(max(worst, MIN_BADNESS), 0.999) if trial.met else max(worst, 1.001)
