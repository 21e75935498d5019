"""Log-probabilities under the untouched logits from the best tokens and the masses of their blocks.

A program has one row. The logits were read before (`logit_blocks`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from inflight.execution.backends.torch.kernels.draw_functions import LOWEST, best_of, id_of, logit_of, weight_of
from inflight.execution.backends.torch.kernels.logit_blocks import Blocks, read_untouched
from inflight.execution.backends.torch.sampling_tensors import Scores


def score(logits: Tensor, token_ids: Tensor, top_logprobs: int) -> Scores:
    return report(logits, read_untouched(logits, top_logprobs), token_ids, top_logprobs)


def report(logits: Tensor, blocks: Blocks, token_ids: Tensor, top: int) -> Scores:
    """Return log-probabilities of token_ids int32[S], and of the `top` likeliest tokens (or all, if fewer)."""
    rows, vocabulary = logits.shape
    top = min(top, vocabulary)
    logprobs = torch.empty(rows, dtype=torch.float32, device=logits.device)
    top_ids = torch.empty(rows, top, dtype=torch.int32, device=logits.device)
    top_logprobs = torch.empty(rows, top, dtype=torch.float32, device=logits.device)
    count = blocks.mass.shape[1]
    _report[rows,](
        logits, *blocks, token_ids, logprobs, top_ids, top_logprobs, vocabulary, top,
        blocks.per_row, blocks.tile, count, triton.next_power_of_2(count), blocks.best.shape[2],
        num_warps=8,
    )  # fmt: skip
    return Scores(logprobs, top_ids, top_logprobs)


@triton.jit(do_not_specialize=["top"])
def _report(
    logits, best, mass, token_ids, logprobs, top_ids, top_logprobs, vocabulary, top,
    COUNT: tl.constexpr, TILE: tl.constexpr, BLOCKS: tl.constexpr, BLOCKS_TILE: tl.constexpr, TOP: tl.constexpr,
):  # fmt: skip
    """BLOCKS of a row, with TOP keys each: COUNT."""
    draw = tl.program_id(0).to(tl.int64)
    peak = logit_of(best_of(best, draw, COUNT, TILE))
    blocks = tl.arange(0, BLOCKS_TILE)
    inside = blocks < BLOCKS
    of_blocks = logit_of(tl.load(best + draw * COUNT + blocks * TOP, mask=inside, other=0))
    weights = weight_of(of_blocks, peak) * tl.load(mass + draw * BLOCKS + blocks, mask=inside, other=0.0)
    normalizer = peak.to(tl.float64) + tl.log(tl.sum(tl.where(inside, weights, 0.0), axis=0))
    logit = tl.load(logits + draw * vocabulary + tl.load(token_ids + draw))
    logit = tl.where(logit != logit, float("-inf"), logit)
    tl.store(logprobs + draw, (logit.to(tl.float64) - normalizer).to(tl.float32))

    at = tl.arange(0, TILE)
    keys = tl.load(best + draw * COUNT + at, mask=at < COUNT, other=LOWEST)
    for place in range(top):
        largest = tl.max(keys, axis=0)
        tl.store(top_ids + draw * top + place, id_of(largest))
        logprob = logit_of(largest).to(tl.float64) - normalizer
        tl.store(top_logprobs + draw * top + place, logprob.to(tl.float32))
        keys = tl.where(keys == largest, LOWEST, keys)
