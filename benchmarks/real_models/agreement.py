"""How far an engine's answers are from the reference's: divergence, likeliest token, loss on the text.

All in nats. KL divergence is that of the engine's distribution from the reference's, over the reference's likeliest
tokens and one bucket for all others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from benchmarks.real_models.answers import Answers

CLOSE = (0.1, 0.3)  # nats between the reference's best two tokens, where a small error changes the choice
_TINY = 1e-8


@dataclass(frozen=True, slots=True)
class Agreement:
    """Compare one engine's answers with the reference's.

    Attributes:
        kl_mean, kl_median, kl_p99: KL(reference ‖ engine).
        same_best: share of positions whose likeliest token is the same.
        loss, loss_error: mean difference of the next token's negative log-probability, and its standard error.
        other_where_close: share of positions at which the engine has another likeliest token, of those where the
            reference's best two are at a distance of 0.1 to 0.3 nats; NaN where there is none.
    """

    positions: int
    kl_mean: float
    kl_median: float
    kl_p99: float
    same_best: float
    loss: float
    loss_error: float
    other_where_close: float

    @property
    def perplexity_ratio(self) -> float:
        return math.exp(self.loss)


def divergence(reference: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Return KL(reference ‖ found) of each position, from log-probabilities float[P, K] of the same tokens."""
    p, q = np.exp(reference, dtype=np.float64), np.exp(found, dtype=np.float64)
    rest_p, rest_q = (np.maximum(1 - one.sum(axis=1), _TINY) for one in (p, q))
    in_tokens = (p * (reference - found)).sum(axis=1)
    return np.asarray(in_tokens + rest_p * np.log(rest_p / rest_q))


def agreement(reference: Answers, found: Answers) -> Agreement:
    """Compare answers to the same questions; the reference's tokens are asked in order, the likeliest first."""
    kl = divergence(reference.log_probs, found.log_probs)
    other = reference.best != found.best
    gap = reference.log_probs[:, 0] - reference.log_probs[:, 1]
    close = (gap >= CLOSE[0]) & (gap < CLOSE[1])
    loss = reference.of_next.astype(np.float64) - found.of_next
    return Agreement(
        len(kl),
        float(kl.mean()),
        float(np.median(kl)),
        float(np.quantile(kl, 0.99)),
        float(1 - other.mean()),
        float(loss.mean()),
        float(loss.std(ddof=1) / math.sqrt(len(loss))),
        float(other[close].mean()) if close.any() else math.nan,
    )


def difference(one: Answers, other: Answers) -> tuple[float, float]:
    """Return the mean difference of two engines' log-probabilities of the next token, and the share of positions with
    the same likeliest token."""
    distance = np.abs(one.of_next.astype(np.float64) - other.of_next)
    return float(distance.mean()), float((one.best == other.best).mean())
