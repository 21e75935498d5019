"""Restore or recompute: whether blocks come from a tier sooner than their tokens are computed.

Both are measured: what bringing takes is a line over the number of blocks, fitted to what it took (from asking to being
told, queueing included), and what computing takes is what the model of step time has learnt from the steps. Before
either is known blocks are brought, since that is how it becomes known; and where bringing has lost, it is tried now and
then all the same, or nobody would notice that a disk has become fast again. A disk that stood still once is forgotten
soon: a transfer counts as so many times what was predicted, at most.
"""

from __future__ import annotations

from msgspec import Struct

from inflight.core.estimation.latency import LatencyModel, prefill_seconds

FORGETTING = 0.9  # a transfer counts half after about seven more
TRY_AGAIN = 16  # of so many that were declined one is brought
MOST_TIMES = 16.0  # what was predicted: a disk that has become slow is noticed within a few transfers all the same
LEAST = 1e-3  # seconds of a transfer: what takes none tells nothing of others


class TransferTime(Struct):
    """seconds = setup + blocks · each, neither below zero, by decaying least squares."""

    count: float = 0.0
    blocks: float = 0.0
    squares: float = 0.0
    seconds: float = 0.0
    products: float = 0.0

    def observe(self, blocks: int, seconds: float) -> None:
        sums = (self.count, self.blocks, self.squares, self.seconds, self.products)
        count, of_blocks, squares, of_seconds, products = (FORGETTING * one for one in sums)
        self.count, self.blocks, self.squares = count + 1, of_blocks + blocks, squares + blocks * blocks
        self.seconds, self.products = of_seconds + seconds, products + blocks * seconds

    def of(self, blocks: int) -> float:
        """Predicted seconds."""
        spread = self.squares - self.blocks * self.blocks / self.count
        each = 0.0
        if spread > 1e-6 * self.squares:
            each = (self.products - self.blocks * self.seconds / self.count) / spread
        each = min(max(each, 0.0), self.seconds / self.blocks)
        if each == 0.0 and spread <= 1e-6 * self.squares:  # all were of one length: nothing tells the two apart
            return self.seconds / self.blocks * blocks
        return (self.seconds - each * self.blocks) / self.count + each * blocks


class RestoreCost:
    def __init__(self, latency: LatencyModel):
        self._latency = latency
        self._times: dict[str, TransferTime] = {}  # by place
        self._declined: dict[str, int] = {}

    def brings(self, place: str, blocks: int, start: int, tokens: int) -> bool:
        """Whether so many blocks come sooner than `tokens` tokens from position `start` on are computed."""
        known, compute = self._times.get(place), prefill_seconds(self._latency, tokens, start)
        if known is None or not compute or known.of(blocks) < compute:
            return True
        declined = self._declined.get(place, 0) + 1
        self._declined[place] = declined % TRY_AGAIN
        return declined == TRY_AGAIN

    def brought(self, place: str, blocks: int, seconds: float) -> None:
        """It took so long, from being asked for to being told."""
        known = self._times.get(place)
        if known is None:
            known = self._times[place] = TransferTime()
        else:
            seconds = min(seconds, MOST_TIMES * max(known.of(blocks), LEAST))
        known.observe(blocks, seconds)

    def seconds(self, place: str, blocks: int) -> float | None:
        """What bringing so many would take; None: not known yet."""
        known = self._times.get(place)
        return None if known is None else known.of(blocks)
