"""An online model of step time: seconds = β · features(plan), learnt from the steps themselves.

The linear form that calibrates well on any machine (tokens, samples, decode context, prefill context, a constant),
fitted by recursive least squares on relative errors with forgetting, so that it follows a machine whose speed drifts.
Coefficients below zero make no sense and count as zero. Used by the adaptive strategy and by admission; standard
library only, five unknowns.
"""

from __future__ import annotations

from inflight.core.features import Features

FORGETTING = 0.98  # a step counts half after about 35 more
PRIOR = 1e6  # the covariance at the start: anything is possible


class LatencyModel:
    def __init__(self) -> None:
        size = len(_vector(Features(0, 0, 0, 0, 0.0)))
        self._beta = [0.0] * size
        self._covariance = [[PRIOR if i == j else 0.0 for j in range(size)] for i in range(size)]
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
        p = self._covariance
        px = [sum(a * b for a, b in zip(row, x, strict=True)) for row in p]
        gain = [value / (FORGETTING + sum(a * b for a, b in zip(x, px, strict=True))) for value in px]
        error = 1.0 - sum(a * b for a, b in zip(x, self._beta, strict=True))
        self._beta = [b + g * error for b, g in zip(self._beta, gain, strict=True)]
        size = len(x)
        for i in range(size):
            for j in range(size):
                # The bound keeps directions that no step excites from growing for ever under forgetting.
                p[i][j] = max(-PRIOR, min(PRIOR, (p[i][j] - gain[i] * px[j]) / FORGETTING))
        self.steps += 1

    def seconds(self, features: Features) -> float:
        """Predicted time of a step."""
        return sum(max(0.0, b) * v for b, v in zip(self._beta, _vector(features), strict=True))


def _vector(features: Features) -> tuple[float, ...]:
    """Scaled so that the unknowns are of like size."""
    return (
        1.0,
        features.tokens / 100,
        features.samples / 100,
        features.decode_context / 1e5,
        features.prefill_context / 1e5,
    )


def prefill_seconds(model: LatencyModel, tokens: int) -> float:
    """What computing so many prompt tokens takes, beside what a step takes anyway; 0 before anything is known."""
    if not model.ready:
        return 0.0
    empty = Features(0, 0, 0, 0, 0.0)
    return model.seconds(Features(tokens, 1, 1, 0, tokens * (tokens / 2))) - model.seconds(empty)
