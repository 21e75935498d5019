"""Expected peak: the most memory that a batch is expected to need while its sequences grow and end.

A sequence joins with few blocks, grows with each token, and frees all of them when it ends. The blocks that are
available now say little of that: where many grow at once they run out, and sequences are preempted whose tokens are
computed again. Here a newcomer joins if what each is expected to hold, by the distribution of its length, fits in sum
at every later moment.

A moment is a number of tokens from now on, since a step gives each decode one. At moment t a sequence of n tokens, o of
them output, holds the blocks of n + t tokens with probability P(L > o + t | L > o), and otherwise none. Lengths are
independent, so that means and variances add up; the need is the mean and `DEVIATIONS` standard deviations. (Admission
against memory at every later moment: arXiv 2502.07115. From the lower bound upwards where little is known: A_min, arXiv
2508.14544. Ends that are spread over time: arXiv 2601.22996.)

Predictions may be wrong, or lies: that delays newcomers while others run, and no others. Of a length of which nothing
is known, whatever `max_tokens` says, only the tokens that exist count. What grows beyond its prediction preempts as
ever.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Sequences
from itertools import accumulate
from operator import add, sub

from msgspec import Struct

from inflight.core.estimation.output_length import Predictor
from inflight.core.kv.manager import KVCacheManager
from inflight.core.queueing.lanes import Lane, Lanes
from inflight.core.scheduling.running import Running
from inflight.core.sequence import Sequence
from inflight.core.types.length_distribution import LengthDistribution

POINTS_PER_OCTAVE = 4  # moments at which it is looked
ROUNDING = 1e-6  # blocks


class ExpectedNeed(Struct):
    """Expected need of a running sequence.

    Attributes:
        blocks: At each moment.
        held: That it has now, and would free.
        until: Its tokens when this is found anew; so it is when its lengths are others.
        lengths: That it was found with.
    """

    blocks: list[float]
    held: int
    until: int
    lengths: LengthDistribution


class ExpectedPeak:
    def __init__(self, memory: KVCacheManager, lanes: Lanes, running: Running, predictor: Predictor):
        self._memory, self._lanes, self._running, self._predictor = memory, lanes, running, predictor
        self._moments = _moments(memory.block_size, memory.max_tokens)
        self._needs: dict[int, ExpectedNeed] = {}  # by number
        self._blocks, self._held = [0.0] * len(self._moments), 0  # their sums

    def spare_blocks(self, newcomer: Sequence, lane: Lane) -> int:
        """Return the blocks that must stay available when a newcomer of a lane joins, lest the batch be expected to
        outgrow memory; 0 where none runs. Background sequences make room for foreground ones."""
        if not self._running.sequences:
            return 0
        self._update(with_background=lane.settings.background or not self._lanes.background_runs)
        taken = self._memory.blocks_to_admit(newcomer)
        peak: float = max(map(add, self._blocks, self._expected(newcomer, taken)))
        return math.ceil(peak - ROUNDING) - self._held - taken + self._lanes.reserved(lane)[1]

    def _update(self, with_background: bool) -> None:
        """Bring the sums up to date: with sequences that came, without those that went, and with what has grown."""
        sequences = self._running.sequences
        if not with_background:
            lanes = self._lanes
            sequences = [one for one in sequences if one.protected or not lanes.of(one).settings.background]
        needs, num_staying = self._needs, 0
        for one in sequences:
            if one.finish is None:
                num_staying += 1
                need = needs.get(one.number)
                if need is None or one.num_tokens >= need.until or one.lengths is not need.lengths:
                    self._remove(one.number)
                    self._add(one)
        if num_staying < len(needs):
            staying = {one.number for one in sequences if one.finish is None}
            for number in [number for number in needs if number not in staying]:
                self._remove(number)

    def _add(self, one: Sequence) -> None:
        held = self._memory.num_exclusive_blocks(one)
        size = self._memory.block_size
        until = (one.num_tokens // size + 1) * size + 1  # it takes a block for this token
        need = self._needs[one.number] = ExpectedNeed(self._expected(one, held), held, until, one.lengths)
        self._held += held
        self._blocks = list(map(add, self._blocks, need.blocks))

    def _remove(self, number: int) -> None:
        if (need := self._needs.pop(number, None)) is not None:
            self._held -= need.held
            self._blocks = list(map(sub, self._blocks, need.blocks))

    def _expected(self, one: Sequence, held: int) -> list[float]:
        """Return the blocks that a sequence is expected to hold at each moment. held: that it has now, or takes."""
        lengths, output = one.lengths, len(one.output)
        if _is_unknown(lengths):  # others may have ended since
            lengths = self._predictor.lengths(one.request, one.max_output_tokens, output)
        if _is_unknown(lengths):
            return [held] * len(self._moments)
        blocks = self._memory.blocks_at(one.num_tokens, (0, *self._moments))
        others = held - blocks[0]
        survival = _survival(lengths, output, self._moments)
        expected = [alive * (others + count) for alive, count in zip(survival, blocks[1:], strict=False)]
        return expected + [0.0] * (len(self._moments) - len(expected))


def _is_unknown(lengths: LengthDistribution) -> bool:
    return len(lengths.starts) == 1 and lengths.starts[0] < lengths.end


def _survival(lengths: LengthDistribution, output: int, moments: Sequences[int]) -> list[float]:
    """Return the probability of more output than so many tokens and each moment, up to the last above zero.

    That is one token after the moment before, lest a peak between them be missed.
    """
    if output >= lengths.end:
        return []
    starts, probabilities, end = lengths.starts, lengths.probabilities, lengths.end
    tails = [*accumulate(reversed(probabilities))][::-1]  # of each bin and those above it
    left, survival, index, before = lengths.exceeds(output), list[float](), 0, 0
    for moment in moments:
        tokens = output + before + 1
        if tokens >= end:
            break
        while index + 1 < len(starts) and starts[index + 1] <= tokens:
            index += 1
        last = starts[index + 1] - 1 if index + 1 < len(starts) else end
        longer = tails[index] - probabilities[index]
        within = probabilities[index] * (last - tokens) / (last - starts[index] + 1)
        survival.append(min(1.0, (longer + within) / left) if tokens >= starts[0] else 1.0)
        before = moment
    return survival


def _moments(block_size: int, max_tokens: int) -> tuple[int, ...]:
    moments, blocks = list[int](), 1
    while not moments or moments[-1] < max_tokens:
        moments.append(blocks * block_size)
        blocks += max(1, blocks // POINTS_PER_OCTAVE)
    return tuple(moments)
