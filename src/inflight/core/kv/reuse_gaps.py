"""Learn how long sessions rest between two turns, and from that how much a kept block saves.

A gap that has ended counts where it ended. A gap that goes on counts as far as it was watched, so that sessions that
never return are learnt from, too (the Kaplan-Meier estimate of survival). The value of a block is the best ratio, over
all times that it could be kept, of the chance that a turn comes within that time to the mean time that it is kept.
Compare hit density in LHD (Beckmann et al., NSDI 2018) and Belady's rule. Nothing here knows of blocks.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

SHORTEST_S, BUCKETS_PER_DOUBLING, NUM_BUCKETS = 0.25, 2, 40  # gaps up to the shortest are alike; ages up to three days
DECAY_PER_GAP = 0.9995  # a gap has half its weight after about 1,400 others
PRIOR_TURNS = 1 / 16  # turns that each age is believed to have seen, of one gap that came so far
REFRESH_SHARE = 1 / 32  # hit rates are computed anew when this share of all observations is new
MAX_WATCHED = 20_000

S = TypeVar("S", bound=Hashable)


class ReuseGaps:
    """A histogram of gaps by age, in buckets that grow by √2."""

    def __init__(self) -> None:
        self._turns = [PRIOR_TURNS] * NUM_BUCKETS
        self._reached = [1.0] * NUM_BUCKETS
        self._hit_rates: list[float] = []  # by bucket; empty until they are computed
        self._num_new = 0  # observations since then
        self._num_observed = 1.0 * NUM_BUCKETS

    def outlast(self, index: int) -> None:
        """Count a gap that came to the end of a bucket without a turn in it."""
        self._reached[index] += 1
        self._num_new += 1
        self._num_observed += 1

    def end(self, age: float) -> None:
        """Count a turn that came after a gap of `age` seconds, which has outlasted all buckets before."""
        index = bucket(age)
        for counts in (self._turns, self._reached):
            counts[:] = [DECAY_PER_GAP * one for one in counts]
        self._turns[index] += 1
        self._reached[index] += 1
        self._num_new += 1
        self._num_observed = DECAY_PER_GAP * self._num_observed + 1

    def hit_rate(self, age: float) -> float:
        """Return the most turns per second of keeping that a session brings which has rested for `age` seconds."""
        if not self._hit_rates or self._num_new > REFRESH_SHARE * self._num_observed:
            self._hit_rates, self._num_new = [self._best_rate(index) for index in range(NUM_BUCKETS)], 0
        return self._hit_rates[bucket(age)]

    def _best_rate(self, first: int) -> float:
        survives, chance, waited, best = 1.0, 0.0, 0.0, 0.0
        for index in range(first, NUM_BUCKETS):
            hazard = min(1.0, self._turns[index] / self._reached[index])
            width = bucket_start(index + 1) - bucket_start(index)
            waited += survives * width * (1 - hazard / 2)
            chance += survives * hazard
            survives *= 1 - hazard
            best = max(best, chance / waited)
        return best


class GapWatch(Generic[S]):
    """Report to `ReuseGaps` how far the gaps have come that have not ended.

    Each gap is watched from its start, whether or not anything of its session is left in memory: if it were counted at
    its end alone, every session would seem to return. A gap is given up when its session could not be recognised again,
    and beyond MAX_WATCHED the oldest is; both depend on age alone, and so do not favour sessions that return.
    """

    def __init__(self, gaps_of: Callable[[S], ReuseGaps], can_return: Callable[[S], bool]):
        """gaps_of: returns the histogram that a session belongs to. can_return: whether it could be recognised."""
        self._gaps_of, self._can_return = gaps_of, can_return
        self._since: OrderedDict[S, float] = OrderedDict()  # start of each gap, oldest first
        self._bucket_ends: list[tuple[float, int, int, S, float]] = []  # heap: time, seq, bucket, session, gap's start
        self._seq = 0

    def __len__(self) -> int:
        return len(self._since)

    def __contains__(self, session: S) -> bool:
        return session in self._since

    def start(self, session: S, now: float) -> None:
        """Watch a session that rests from now on."""
        self._since[session] = now
        self._since.move_to_end(session)
        if len(self._since) > MAX_WATCHED:
            self._since.popitem(last=False)
        self._push(0, session, now)

    def stop(self, session: S, now: float) -> None:
        """Count the gap of a session that has its next turn."""
        self.advance(now)
        since = self._since.pop(session, None)
        if since is not None:
            self._gaps_of(session).end(now - since)

    def advance(self, now: float) -> None:
        """Count the buckets that gaps have outlasted until now."""
        while self._bucket_ends and self._bucket_ends[0][0] < now:
            _, _, index, session, since = heapq.heappop(self._bucket_ends)
            if self._since.get(session) != since:
                continue
            if not self._can_return(session):
                del self._since[session]
                continue
            self._gaps_of(session).outlast(index)
            self._push(index + 1, session, since)

    def _push(self, index: int, session: S, since: float) -> None:
        if index < NUM_BUCKETS - 1:
            self._seq += 1
            heapq.heappush(self._bucket_ends, (since + bucket_start(index + 1), self._seq, index, session, since))


def bucket(age: float) -> int:
    """Return the index of the bucket of a gap of `age` seconds."""
    if age <= SHORTEST_S:
        return 0
    return min(NUM_BUCKETS - 1, 1 + int(BUCKETS_PER_DOUBLING * math.log2(age / SHORTEST_S)))


def bucket_start(index: int) -> float:
    """Return the start of a bucket in seconds."""
    return 0.0 if index == 0 else SHORTEST_S * 2 ** ((index - 1) / BUCKETS_PER_DOUBLING)
