"""Learn how soon sessions come back, and what a cached block of one is worth while it rests.

A rest is divided by age into buckets that grow by √2. The chance that the next turn comes within a bucket, where none
came before it, is a logistic function of the age and of traits of the session: what it waits for and how many turns it
had, how long its last answer was, whose it is. Each trait has a weight, and one more in each of four ranges of age
(minds change: who has not answered a short answer soon will not). The weights are learnt online, by AdaGrad (Duchi et
al., JMLR 2011), from every bucket that ends, with or without a turn, so that sessions that never return count, too
(discrete-time survival analysis, Singer and Willett 1993).

The worth of a block is the best ratio, over all times that it could be kept, of the chance that a turn comes within
that time to the mean time that it is kept: the Gittins index of a block that waits for its turn. Compare hit density
in LHD (Beckmann et al., NSDI 2018), and reuse by class and exponential age (arXiv 2506.02634).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence as Sequences

MIN_GAP_S, BUCKETS_PER_DOUBLING, NUM_BUCKETS = 0.25, 2, 40  # shorter rests are alike; ages up to three days
RANGE_STARTS_S = (30.0, 90.0, 300.0)  # ranges of age
PRIOR_LOGIT = -3.0  # one turn in twenty buckets: with nothing learnt, who rested for the shortest time is worth most
LEARNING_RATE, RANGE_RATE = 0.3, 0.5  # of a trait; the share of it for a trait in one range
PRIOR_SQUARES, MAX_SQUARES = 0.01, 1000.0  # of a weight's gradients; the bound keeps weights able to change
MAX_LOGIT = 30.0

Trait = object  # hashable; equal traits have one weight


def bucket_start(index: int) -> float:
    """Return the start of a bucket in seconds."""
    return 0.0 if index == 0 else MIN_GAP_S * 2 ** ((index - 1) / BUCKETS_PER_DOUBLING)


_WIDTHS = tuple(bucket_start(index + 1) - bucket_start(index) for index in range(NUM_BUCKETS))
_RANGES = tuple(sum(bucket_start(index) >= start for start in RANGE_STARTS_S) for index in range(NUM_BUCKETS))


class ReuseModel:
    """Chances of a next turn by age, learnt over all sessions."""

    def __init__(self) -> None:
        # Of each weight: its value, and the sum of its gradients' squares.
        self._of_age = [[PRIOR_LOGIT, PRIOR_SQUARES] for _ in range(NUM_BUCKETS)]
        self._of_trait: defaultdict[tuple[int, Trait], list[float]] = defaultdict(lambda: [0.0, PRIOR_SQUARES])

    def hazard(self, traits: Sequences[Trait], index: int) -> float:
        """Return the chance that a turn comes within a bucket where none came before it."""
        logit = self._of_age[index][0] + sum(weight[0] for weight in self._weights(traits, index))
        return 1.0 / (1.0 + math.exp(-max(-MAX_LOGIT, min(MAX_LOGIT, logit))))

    def observe(self, traits: Sequences[Trait], index: int, came: bool) -> None:
        """Learn from the end of a bucket: by a turn that came, or without one."""
        error = came - self.hazard(traits, index)
        _learn(self._of_age[index], error, 2 * LEARNING_RATE)
        for at, weight in enumerate(self._weights(traits, index)):
            _learn(weight, error, LEARNING_RATE * (RANGE_RATE if at % 2 else 1.0))

    def rates(self, traits: Sequences[Trait]) -> tuple[float, ...]:
        """Return, for each bucket, the highest rate of turns per second that a block is kept from its start on."""
        return best_rates([self.hazard(traits, index) for index in range(NUM_BUCKETS)])

    def _weights(self, traits: Sequences[Trait], index: int) -> list[list[float]]:
        """Return each trait's weight and its weight in the range of a bucket, in turn."""
        of, at = self._of_trait, 1 + _RANGES[index]
        return [of[key] for trait in traits for key in ((0, trait), (at, trait))]


def _learn(weight: list[float], error: float, rate: float) -> None:
    weight[1] = min(MAX_SQUARES, weight[1] + error * error)
    weight[0] += rate * error / math.sqrt(weight[1])


def best_rates(hazards: Sequences[float]) -> tuple[float, ...]:
    """Return the best ratio of chance to time for each bucket that a rest has come to.

    After s of all rests have come to a bucket, keeping until the end of a later one gains the difference of the chances
    until then, and costs that of the mean times: the ratio is a slope between two points (time, chance), and the best
    one is the slope to the next corner of the points' upper hull, which is built from the last point backwards.
    """
    points = [(0.0, 0.0)]
    survives = 1.0
    for hazard, width in zip(hazards, _WIDTHS, strict=True):
        time, chance = points[-1]
        points.append((time + survives * width * (1 - hazard / 2), chance + survives * hazard))
        survives *= 1 - hazard
    hull, rates = [points[-1]], [0.0] * len(hazards)
    for index in range(len(hazards) - 1, -1, -1):
        point = points[index]
        while len(hull) > 1 and _slope(point, hull[-2]) >= _slope(point, hull[-1]):
            hull.pop()
        rates[index] = _slope(point, hull[-1])
        hull.append(point)
    return tuple(rates)


def _slope(begin: tuple[float, float], end: tuple[float, float]) -> float:
    time = end[0] - begin[0]
    return (end[1] - begin[1]) / time if time > 0 else 0.0
