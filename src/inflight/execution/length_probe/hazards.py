"""Hazards of an output's end, learnt online: an ordinal regression over logarithmic bins of the remaining tokens.

Let r ≥ 1 be the tokens that a sample still gets, and bin k the k-th of `REMAINING_STARTS`. Over features x

    h_k(x) = P(r in bin k | r in no bin before) = sigmoid(a_k + w · x)
    P(r in bin k) = h_k · Π (1 - h_j), j < k

the continuation-ratio model of discrete survival analysis (Cox 1972; Tutz and Schmid 2016), with one slope for all
bins: with a few hundred outputs it predicts as well as a slope for each bin, and needs a thirtieth of the numbers. An
output that max_tokens cut after c more tokens is censored: it counts as survival of the bins that end by then, and for
no other. Hidden states as features are those of TRAIL (arXiv 2410.01035, which classifies the remaining length into
linear bins) and of EGTP and PLP (arXiv 2602.11812, which regresses it).

Weights move by AdaGrad over minibatches drawn from a ring of the newest observations: older ones are forgotten, and
each is seen several times. Draws come from a generator of its own, so that the same observations teach the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from inflight.core.types.length_distribution import REMAINING_STARTS

Floats = NDArray[np.float32]

BINS = len(REMAINING_STARTS)
STARTS = np.array(REMAINING_STARTS)
_BEHIND = np.append(STARTS[1:], np.iinfo(np.int64).max)  # the first length behind each bin
RING = 1024  # newest observations
BATCH = 64  # observations of a minibatch
RATE = 0.1  # of AdaGrad
SHRINKAGE = 0.03  # of slopes towards zero


class Hazards:
    def __init__(self, features: int, seed: int = 0):
        """Begin without evidence. features: numbers in x."""
        self._intercepts = np.zeros(BINS)
        self._slopes = np.zeros(features, np.float32)
        self._intercept_squares, self._slope_squares = np.full(BINS, 1e-6), np.full(features, 1e-6, np.float32)
        self._seen = np.zeros((RING, features), np.float32)
        self._bins = np.zeros(RING, np.int64)  # in which an output ended, or that it survived
        self._ended = np.zeros(RING, bool)
        self._observations = 0
        self._draws = np.random.default_rng(seed)

    def probabilities(self, x: Floats) -> Floats:
        """Return P(remaining tokens in bin k) for x float32[S, F]: float32[S, BINS]."""
        return of_hazards(self._hazards(x))

    def add(self, x: Floats, remaining: int, ended: bool) -> None:
        """Add an observation.

        Args:
            x: float32[F].
            remaining: Tokens that the output still got.
            ended: Whether it ended by itself; otherwise it would have had more tokens.
        """
        at = self._observations % RING
        reached = int(np.searchsorted(STARTS, remaining, "right")) - 1
        if not ended and remaining + 1 < _BEHIND[reached]:
            reached -= 1  # it has not survived this bin
        self._seen[at], self._bins[at], self._ended[at] = x, reached, ended
        self._observations += 1

    def learn(self, minibatches: int) -> None:
        """Move the weights by so many minibatches of the ring."""
        known = min(self._observations, RING)
        for _ in range(minibatches if known else 0):
            drawn = self._draws.integers(0, known, BATCH)
            self._move(self._seen[drawn], self._bins[drawn], self._ended[drawn])

    def state(self) -> dict[str, Any]:
        """Return what was learnt, as arrays by name."""
        return {
            "intercepts": self._intercepts,
            "slopes": self._slopes,
            "intercept squares": self._intercept_squares,
            "slope squares": self._slope_squares,
            "seen": self._seen,
            "bins": self._bins,
            "flags": self._ended,
            "observations": np.array(self._observations),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take over arrays that `state` has returned. Raises ValueError for numbers that it cannot have returned."""
        bins, observations = state["bins"], int(state["observations"])
        squares = state["intercept squares"], state["slope squares"]
        if bins.min() < -1 or bins.max() >= BINS or observations < 0 or any((one <= 0).any() for one in squares):
            raise ValueError("its observations lie outside of the bins")
        self._intercepts, self._slopes = state["intercepts"], state["slopes"]
        self._intercept_squares, self._slope_squares = squares
        self._seen, self._bins, self._ended, self._observations = state["seen"], bins, state["flags"], observations

    def _hazards(self, x: Floats) -> Floats:
        scores = self._intercepts + (x @ self._slopes)[:, None]
        found: Floats = (1 / (1 + np.exp(-np.clip(scores, -30, 30)))).astype(np.float32)
        return found

    def _move(self, x: Floats, bins: NDArray[np.int64], ended: NDArray[np.bool_]) -> None:
        at = np.arange(BINS)
        ends = (at == bins[:, None]) & ended[:, None]
        at_risk = ends | (at < bins[:, None] + ~ended[:, None])
        errors = (self._hazards(x) - ends) * at_risk.astype(np.float32)
        of_intercepts = errors.mean(axis=0)
        of_slopes = errors.sum(axis=1) @ x / len(x) + SHRINKAGE * self._slopes
        self._intercept_squares += np.square(of_intercepts)
        self._slope_squares += np.square(of_slopes)
        self._intercepts -= RATE * of_intercepts / np.sqrt(self._intercept_squares)
        self._slopes -= RATE * of_slopes / np.sqrt(self._slope_squares)


def of_hazards(hazards: Floats) -> Floats:
    """Return the probabilities of bins float32[S, BINS] from their hazards; the last bin has what is left."""
    survival = np.cumprod(1 - hazards, axis=1)
    found = hazards.copy()
    found[:, 1:] *= survival[:, :-1]
    found[:, -1] = survival[:, -2]
    return found
