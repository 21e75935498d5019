"""Times of steps and of transfers, learnt online.

Step time is linear in a plan's features, as calibrates well on any machine, fitted by least squares on relative errors
that decay, so that it follows a machine whose speed drifts. No coefficient is below zero, and none moves without
evidence: while all steps are decodes, tokens and samples are the same number, and a free fit would trade one for the
other until a prompt looks endless; the time of the last prompts would be explained by their context alone, whatever
else has changed since. Copied blocks have a coefficient lest slow copies count as slow tokens.

Transfer time is a line over the number of blocks, fitted the same way for each tier and peer, queueing included.
"""

from __future__ import annotations

from operator import mul

from msgspec import Struct, structs

from inflight.core.types.features import Features

STEP_DECAY = 0.98  # of the evidence, for each step: one counts half after about 35 more
MIN_EVIDENCE = 1e-9  # of a feature, below which its coefficient is not fitted
STALE_STEPS = 35  # without a feature, after which its coefficient stays as it is
SWEEPS = 3  # of coordinate descent for each step; the next step continues where this one stopped
MIN_STEPS = 16  # before predictions are used
TRANSFER_DECAY = 0.9  # of the evidence, for each transfer: one counts half after about seven more
RETRY_INTERVAL = 16  # one in so many loads that would be slower than computing is made, to notice a faster disk
MAX_SLOWDOWN = 16.0  # times its prediction that a transfer counts for: a disk that stalled once is forgotten soon
MIN_TRANSFER_S = 1e-3  # of a prediction, for that limit


class LatencyModel:
    def __init__(self) -> None:
        size = len(_vector(Features(0, 0, 0, 0, 0.0)))
        self._beta = [0.0] * size
        self._moments = [[0.0] * size for _ in range(size)]  # Σ x·x', decaying
        self._target = [0.0] * size  # Σ x, decaying: relative time is always 1
        self._last_seen = [-STALE_STEPS] * size  # the last step with the feature
        self.steps = 0

    @property
    def ready(self) -> bool:
        """Whether enough steps were seen."""
        return self.steps >= MIN_STEPS

    def observe(self, features: Features, seconds: float) -> None:
        """Learn what a step took."""
        if seconds <= 0:
            return
        # Divided by the measured time, so that relative errors count and long steps do not drown short ones.
        x = [value / seconds for value in _vector(features)]
        self._target = [STEP_DECAY * old + new for old, new in zip(self._target, x, strict=True)]
        for row, factor in zip(self._moments, x, strict=True):
            row[:] = [STEP_DECAY * old + factor * new for old, new in zip(row, x, strict=True)]
        self._last_seen = [self.steps if value else step for value, step in zip(x, self._last_seen, strict=True)]
        for _ in range(SWEEPS):
            self._sweep()
        self.steps += 1

    def _sweep(self) -> None:
        """Set each coefficient in turn to its best value, given the others (non-negative least squares)."""
        beta = self._beta
        for index, row in enumerate(self._moments):
            own = row[index]
            if own > MIN_EVIDENCE and self.steps - self._last_seen[index] < STALE_STEPS:
                error = self._target[index] - sum(map(mul, row, beta))
                beta[index] = max(0.0, beta[index] + error / own)

    def seconds(self, features: Features) -> float:
        """Predict a step's time."""
        seconds: float = sum(map(mul, self._beta, _vector(features)))
        return seconds

    def max_extra_decodes(self, features: Features, seconds: float) -> int:
        """Return how many decodes may be added to a step that is to take so long at most."""
        taken = self.seconds(features)
        grown = structs.replace(
            features, tokens=features.tokens + 1, rows=features.rows + 1, samples=features.samples + 1
        )
        each = max(self.seconds(grown) - taken, 1e-9)
        return max(0, int((seconds - taken) / each))


def prefill_seconds(model: LatencyModel, tokens: int, start: int = 0) -> float:
    """Predict what so many prompt tokens from a position on add to a step; 0 before the model is ready."""
    if not model.ready:
        return 0.0
    empty = Features(0, 0, 0, 0, 0.0)
    return model.seconds(Features(tokens, 1, 1, 0, tokens * (start + tokens / 2))) - model.seconds(empty)


def _vector(features: Features) -> tuple[float, ...]:
    """Scale features so that the coefficients are of like size."""
    return (
        1.0,
        features.tokens / 100,
        features.samples / 100,
        features.decode_context / 1e5,
        features.prefill_context / 1e5,
        features.moved_blocks / 100,
    )


class TransferTime(Struct):
    """seconds = setup + blocks · each, neither below zero, by decaying least squares. The fields are its sums."""

    count: float = 0.0
    blocks: float = 0.0
    squares: float = 0.0
    seconds: float = 0.0
    products: float = 0.0

    def observe(self, blocks: int, seconds: float) -> None:
        """Learn what a transfer took."""
        sums = (self.count, self.blocks, self.squares, self.seconds, self.products)
        count, of_blocks, squares, of_seconds, products = (TRANSFER_DECAY * one for one in sums)
        self.count, self.blocks, self.squares = count + 1, of_blocks + blocks, squares + blocks * blocks
        self.seconds, self.products = of_seconds + seconds, products + blocks * seconds

    def predict(self, blocks: int) -> float:
        """Return the seconds of a transfer of so many blocks."""
        spread = self.squares - self.blocks * self.blocks / self.count
        each = 0.0
        if spread > 1e-6 * self.squares:
            each = (self.products - self.blocks * self.seconds / self.count) / spread
        each = min(max(each, 0.0), self.seconds / self.blocks)
        if each == 0.0 and spread <= 1e-6 * self.squares:  # all were of one length, which does not separate the two
            return self.seconds / self.blocks * blocks
        return (self.seconds - each * self.blocks) / self.count + each * blocks


class RestoreCost:
    """Compares loading blocks from a tier or peer with computing their tokens.

    Until both times are known blocks are loaded, which is how they become known.
    """

    def __init__(self, latency: LatencyModel):
        self._latency = latency
        self._times: dict[str, TransferTime] = {}  # by tier or peer
        self._declined: dict[str, int] = {}  # loads, since the last retry

    def choose_load(self, tier: str, blocks: int, start: int, tokens: int) -> bool:
        """Choose between loading and computing, and count the choice.

        Args:
            tier: Name of the tier or peer.
            blocks: Blocks to load.
            start: Position of the first token.
            tokens: Tokens to compute otherwise.
        """
        known, compute = self._times.get(tier), prefill_seconds(self._latency, tokens, start)
        if known is None or not compute or known.predict(blocks) < compute:
            return True
        declined = self._declined.get(tier, 0) + 1
        self._declined[tier] = declined % RETRY_INTERVAL
        return declined == RETRY_INTERVAL

    def observe(self, tier: str, blocks: int, seconds: float) -> None:
        """Learn what a load took, from the request for it to its end."""
        known = self._times.get(tier)
        if known is None:
            known = self._times[tier] = TransferTime()
        else:
            seconds = min(seconds, MAX_SLOWDOWN * max(known.predict(blocks), MIN_TRANSFER_S))
        known.observe(blocks, seconds)

    def seconds(self, tier: str, blocks: int) -> float | None:
        """Predict a load's time; None before the first."""
        known = self._times.get(tier)
        return None if known is None else known.predict(blocks)
