"""An online model of step time: seconds = β · features(plan), learnt from the steps themselves.

The linear form that calibrates well on any machine (tokens, samples, decode context, prefill context, copied blocks, a
constant), fitted by least squares on relative errors with forgetting, so that it follows a machine whose speed drifts.
No coefficient is below zero, and none moves without evidence: while all steps are decodes, tokens and samples are the
same number, and a free fit would trade one for the other until a prompt looks endless; and what the last prompts took
would be explained by their context alone, whatever else has changed since. Copied blocks are among the unknowns lest
slow copies count as slow tokens. Used by the adaptive strategy, admission, lanes and preemption by cost; standard
library only.
"""

from __future__ import annotations

from dataclasses import replace
from operator import mul

from inflight.core.types.features import Features

FORGETTING = 0.98  # a step counts half after about 35 more
FAINT = 1e-9  # evidence that tells nothing of a coefficient
STALE = 35  # steps without it, after which a feature's coefficient stays as it is
SWEEPS = 3  # of coordinate descent per step; the next step goes on where this one stopped


class LatencyModel:
    def __init__(self) -> None:
        size = len(_vector(Features(0, 0, 0, 0, 0.0)))
        self._beta = [0.0] * size
        self._moments = [[0.0] * size for _ in range(size)]  # Σ x·x', decaying
        self._target = [0.0] * size  # Σ x, decaying: relative time is always 1
        self._seen = [-STALE] * size  # the last step that had it
        self.steps = 0

    @property
    def ready(self) -> bool:
        """Enough steps seen to be asked."""
        return self.steps >= 16

    def observe(self, features: Features, seconds: float) -> None:
        if seconds <= 0:
            return
        # Divided by the measured time, so that relative errors count and long steps do not drown short ones.
        x = [value / seconds for value in _vector(features)]
        self._target = [FORGETTING * old + new for old, new in zip(self._target, x, strict=True)]
        for row, factor in zip(self._moments, x, strict=True):
            row[:] = [FORGETTING * old + factor * new for old, new in zip(row, x, strict=True)]
        self._seen = [self.steps if value else step for value, step in zip(x, self._seen, strict=True)]
        for _ in range(SWEEPS):
            self._sweep()
        self.steps += 1

    def _sweep(self) -> None:
        """Each coefficient in turn to its best value, given the others (non-negative least squares by coordinates)."""
        beta = self._beta
        for index, row in enumerate(self._moments):
            own = row[index]
            if own > FAINT and self.steps - self._seen[index] < STALE:
                error = self._target[index] - sum(map(mul, row, beta))
                beta[index] = max(0.0, beta[index] + error / own)

    def seconds(self, features: Features) -> float:
        """Predicted time of a step."""
        seconds: float = sum(map(mul, self._beta, _vector(features)))
        return seconds

    def max_extra_decodes(self, features: Features, seconds: float) -> int:
        """Decodes that may be added to a step so that it still takes no longer than this; at least 0."""
        taken = self.seconds(features)
        grown = replace(features, tokens=features.tokens + 1, rows=features.rows + 1, samples=features.samples + 1)
        each = max(self.seconds(grown) - taken, 1e-9)
        return max(0, int((seconds - taken) / each))


def _vector(features: Features) -> tuple[float, ...]:
    """Scaled so that the unknowns are of like size."""
    return (
        1.0,
        features.tokens / 100,
        features.samples / 100,
        features.decode_context / 1e5,
        features.prefill_context / 1e5,
        features.moved_blocks / 100,
    )


def prefill_seconds(model: LatencyModel, tokens: int, start: int = 0) -> float:
    """What computing so many prompt tokens from a position on takes, beside what a step takes anyway; 0 before anything
    is known."""
    if not model.ready:
        return 0.0
    empty = Features(0, 0, 0, 0, 0.0)
    return model.seconds(Features(tokens, 1, 1, 0, tokens * (start + tokens / 2))) - model.seconds(empty)
