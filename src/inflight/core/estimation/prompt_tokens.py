"""Output lengths by the tokens of the prompt, learnt online: what is known before anything is computed.

Which tokens are among the last of a prompt, hashed to `WIDTH` places, are the features of an ordinal regression over
the logarithmic bins of `REMAINING_STARTS`, as the probe of hidden states has it (`execution/length_probe/hazards.py`):

    P(length in bin k | in no bin before) = sigmoid(a_k + w · x)

An output that max_tokens cut counts as survival of the bins that end by then. Weights move by AdaGrad over outputs that
are drawn from a ring of the newest ones, so that older ones are forgotten; its squares decay, so that it goes on
learning. To order by such predictions is learning to rank by prompts (arXiv 2408.15792), without a model for it.

A tenant has a place, too. One whose outputs are always longer, or shorter, than its prompts suggest moves its own
predictions by that, and those of the one in `TENANTS` other tenants whose place is the same: with half of all outputs
it reverses the order of one in seven pairs of the others' requests at most, though it sends their prompts
(`test_prompt_tokens`). Without tenants nothing is added.

Until `MIN_OUTPUTS` have ended by themselves, quantiles answer.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from math import exp, log2, sqrt
from typing import NamedTuple
from zlib import crc32

from inflight.core.estimation.output_length import Quantiles
from inflight.core.types.length_distribution import REMAINING_STARTS, LengthDistribution, of_remaining
from inflight.core.types.request import Request

BINS = len(REMAINING_STARTS)
WIDTH = 4096  # places of tokens
TENANTS = 64  # places of tenants
READ_TOKENS = 256  # the last ones of a prompt
RING = 1024  # newest outputs
DRAWS = 12  # outputs learnt from for each that ended
MIN_OUTPUTS = 64
RATE = 0.3  # of AdaGrad
RARE = 10.0  # its squares before any output, so that tokens that were seen once say little
DECAY = 0.9999  # of its squares, for each draw
SHRINKAGE = 0.002  # of a weight towards zero, whenever it moves
TOKENS_SCALE = 2.0  # norm of a prompt's tokens among the features


class _Features(NamedTuple):
    """Features of a request.

    Attributes:
        places: Of tokens, rising.
        value: Of each of these.
        others: Places and values of the prompt's length and of the tenant.
    """

    places: tuple[int, ...]
    value: float
    others: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class _Seen:
    """An output. reached: Bin in which it ended, or the last one that it survived."""

    features: _Features
    reached: int
    ended: bool


class PromptTokens:
    """Predicts by the prompt's tokens, once it has seen enough outputs."""

    def __init__(self) -> None:
        self._quantiles = Quantiles()
        self._intercepts, self._intercept_squares = [0.0] * BINS, [1e-6] * BINS
        # Behind the tokens' places: of the prompt's length, and of tenants.
        self._weights, self._squares = [0.0] * (WIDTH + 1 + TENANTS), [RARE] * (WIDTH + 1 + TENANTS)
        self._ring: deque[_Seen] = deque(maxlen=RING)
        self._draws = random.Random(0)
        self._ended = 0

    def lengths(self, request: Request, max_output_tokens: int, so_far: int) -> LengthDistribution:
        if self._ended < MIN_OUTPUTS:
            return self._quantiles.lengths(request, max_output_tokens, so_far)
        hazards = self._hazards(_features(request))
        probabilities, left = [], 1.0
        for hazard in hazards[:-1]:
            probabilities.append(left * hazard)
            left *= 1.0 - hazard
        lengths = of_remaining((*probabilities, left), max(1, max_output_tokens), 0)
        if lengths.exceeds(so_far) > 0:
            return lengths.given(so_far)
        return self._quantiles.lengths(request, max_output_tokens, so_far)

    def observe(self, request: Request, output_tokens: int) -> None:
        self._quantiles.observe(request, output_tokens)
        most = request.params.max_tokens
        ended = most is None or output_tokens < most
        reached = bisect_right(REMAINING_STARTS, max(1, output_tokens)) - 1
        if not ended and (reached + 1 == BINS or output_tokens + 1 < REMAINING_STARTS[reached + 1]):
            reached -= 1  # it has not survived this bin
        self._ring.append(_Seen(_features(request), reached, ended))
        self._ended += ended
        for _ in range(DRAWS):
            self._learn(self._ring[self._draws.randrange(len(self._ring))])

    def _hazards(self, features: _Features) -> list[float]:
        places, value, others = features
        score = value * sum(map(self._weights.__getitem__, places))
        score += sum(one * self._weights[place] for place, one in others)
        return [1.0 / (1.0 + exp(-max(-30.0, min(30.0, one + score)))) for one in self._intercepts]

    def _learn(self, seen: _Seen) -> None:
        """Move the weights by one output."""
        hazards = self._hazards(seen.features)
        slope = 0.0
        for index in range(seen.reached + 1):
            error = hazards[index] - (seen.ended and index == seen.reached)
            slope += error
            square = self._intercept_squares[index] = DECAY * self._intercept_squares[index] + error * error
            self._intercepts[index] -= RATE / 3 * error / sqrt(square)
        weights, squares = self._weights, self._squares
        places, of_token, others = seen.features
        for place, value in (*((one, of_token) for one in places), *others):
            error = slope * value + SHRINKAGE * weights[place]
            square = squares[place] = DECAY * squares[place] + error * error
            weights[place] -= RATE * error / sqrt(square)


def _features(request: Request) -> _Features:
    token_ids = request.prompt_token_ids
    # Token ids have few factors in common with an odd number, so that they spread well.
    places = {one * 40503 % WIDTH for one in token_ids[-READ_TOKENS:]}
    if request.adapter is not None:
        places.add(sum(request.adapter.name.encode()) * 40503 % WIDTH)
    others = [(WIDTH, log2(1 + len(token_ids)) / 8)]
    if request.tenant:
        others.append((WIDTH + 1 + crc32(request.tenant.encode("utf-8", "surrogatepass")) % TENANTS, 1.0))
    return _Features(tuple(sorted(places)), TOKENS_SCALE / sqrt(len(places) or 1), tuple(others))
