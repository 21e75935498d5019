"""Lengths of the requests of a published run: all alike, evenly from a range, or from the distribution of a dataset."""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import NormalDist

# Tokens of prompts and answers at every twentieth quantile, of the first two turns of ShareGPT's conversations as
# `vllm bench serve` filters them: prompts up to 1,024 tokens, 2,048 in all. Long prompts have short answers here.
_SHAREGPT = (
    (4, 7, 10, 12, 16, 20, 27, 35, 48, 71, 106, 157, 216, 275, 329, 382, 448, 523, 635, 779, 1023),
    (4, 8, 11, 15, 21, 28, 38, 55, 79, 108, 143, 184, 224, 260, 297, 334, 381, 437, 525, 685, 1500),
)
# Lengths are drawn evenly from so many of the longest to the longest: "uniform" is InferenceMAX's, "random" that of
# SGLang's bench_serving.
_SHORTEST = {"uniform": 0.8, "random": 0.0}
_CORRELATION = -0.45  # of the two, in normal scores


def lengths_of(dataset: str, prompt: int, output: int, requests: int) -> list[tuple[int, int]]:
    """Return prompt and answer tokens of each request, whose means are `prompt` and `output`. The same call returns the
    same lengths. Raises ValueError for a dataset that is not known."""
    if not dataset:
        return [(prompt, output)] * requests
    draws, normal = random.Random(0), NormalDist()
    if (shortest := _SHORTEST.get(dataset)) is not None:
        return [(_evenly(draws, prompt, shortest), _evenly(draws, output, shortest)) for _ in range(requests)]
    if dataset != "sharegpt":
        raise ValueError(f"The dataset {dataset!r} is not known; known are sharegpt, {' and '.join(_SHORTEST)}.")
    pairs = []
    for _ in range(requests):
        first = draws.gauss(0, 1)
        second = _CORRELATION * first + (1 - _CORRELATION**2) ** 0.5 * draws.gauss(0, 1)
        pairs.append((_quantile(_SHAREGPT[0], normal.cdf(first)), _quantile(_SHAREGPT[1], normal.cdf(second))))
    by_prompt = prompt * requests / sum(first for first, _ in pairs)
    by_output = output * requests / sum(second for _, second in pairs)
    return [(max(1, round(one * by_prompt)), max(1, round(two * by_output))) for one, two in pairs]


def _evenly(draws: random.Random, mean: int, shortest: float) -> int:
    longest = 2 * mean / (1 + shortest)
    return max(1, round(draws.uniform(shortest * longest, longest)))


def _quantile(table: Sequence[float], share: float) -> float:
    at = share * (len(table) - 1)
    below = min(int(at), len(table) - 2)
    return table[below] + (at - below) * (table[below + 1] - table[below])
