"""How long sessions rest between two turns, as observed: what their blocks bring, by how long they have rested.

A gap that has ended counts where it ended; one that goes on counts as far as it was watched, so that sessions that
never come back are learnt from, too (as Kaplan and Meier estimate survival). What blocks bring is the most turns for
the time that they would be kept for them: of all times that one could go on waiting, the best ratio of the chance that
a turn comes within it to the time that is waited on average. (Compare hit density in LHD, Beckmann et al., NSDI 2018,
and Belady's rule: what is needed last goes first.) Knows times; no sessions, no blocks.
"""

from __future__ import annotations

import math

SHORTEST, PER_DOUBLING, BUCKETS = 0.25, 2, 40  # seconds up to which gaps are alike; ages up to three days
FORGETTING = 0.9995  # by gap: one counts half after about 1,400 more
PRIOR = 1 / 16  # turns that each age is thought to have seen, of a gap that came so far: who rested longer, rests on
NEWS = 32  # what was told changes what blocks bring once it is one in so many of all that count


class Gaps:
    def __init__(self) -> None:
        self._turns = [PRIOR] * BUCKETS
        self._reached = [1.0] * BUCKETS
        self._worth: list[float] = []  # by bucket, until there is news
        self._news = 0  # since then
        self._seen = 1.0 * BUCKETS  # of all ages

    def outlasts(self, at: int) -> None:
        """A gap has come to the end of a bucket without a turn in it."""
        self._reached[at] += 1
        self._news += 1
        self._seen += 1

    def ended(self, age: float) -> None:
        """A turn came after such a gap, which has outlasted all buckets before."""
        at = bucket(age)
        for counts in (self._turns, self._reached):
            counts[:] = [FORGETTING * one for one in counts]
        self._turns[at] += 1
        self._reached[at] += 1
        self._news += 1
        self._seen = FORGETTING * self._seen + 1

    def turns_per_second(self, age: float) -> float:
        """The most that blocks of a session bring that has rested so long, for the time that they are kept."""
        if not self._worth or self._news * NEWS > self._seen:
            self._worth, self._news = [self._best(at) for at in range(BUCKETS)], 0
        return self._worth[bucket(age)]

    def _best(self, first: int) -> float:
        survives, chance, waited, best = 1.0, 0.0, 0.0, 0.0
        for at in range(first, BUCKETS):
            hazard = min(1.0, self._turns[at] / self._reached[at])
            width = begin_of(at + 1) - begin_of(at)
            waited += survives * width * (1 - hazard / 2)
            chance += survives * hazard
            survives *= 1 - hazard
            best = max(best, chance / waited)
        return best


def bucket(age: float) -> int:
    if age <= SHORTEST:
        return 0
    return min(BUCKETS - 1, 1 + int(PER_DOUBLING * math.log2(age / SHORTEST)))


def begin_of(at: int) -> float:
    """Of a bucket, in seconds."""
    return 0.0 if at == 0 else SHORTEST * 2 ** ((at - 1) / PER_DOUBLING)
