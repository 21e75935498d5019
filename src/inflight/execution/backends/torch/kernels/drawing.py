"""The token of a row that is greedy, or drawn among all tokens in order of rising id.

The draw falls into one of the blocks whose masses are known, and only this one is read again.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from inflight.execution.backends.torch.kernels.draw_functions import (
    best_of,
    id_of,
    is_filtered,
    is_finite,
    logit_of,
    peak_of,
    uniform,
    weight_of,
)
from inflight.execution.backends.torch.kernels.logit_blocks import BLOCK, Blocks
from inflight.execution.backends.torch.sampling_tensors import Draws


class Chosen(NamedTuple):
    """Tensors of `Drawn`, on the device."""

    token_ids: Tensor
    is_sound: Tensor
    was_banned: Tensor


def choose(scaled: Tensor, blocks: Blocks, untouched: Blocks | None, draws: Draws) -> Chosen:
    """Rows with filters get their likeliest token. untouched: where something may have been banned."""
    rows, vocabulary = scaled.shape
    token_ids = torch.empty(rows, dtype=torch.int32, device=scaled.device)
    is_sound, was_banned = (torch.empty(rows, dtype=torch.bool, device=scaled.device) for _ in range(2))
    settings = draws.settings
    before = untouched or blocks
    _choose[rows,](
        scaled, *blocks, before.best, draws.rows, draws.num_tokens,
        settings.temperature, settings.top_k, settings.top_p, settings.min_p,
        settings.seed, settings.sample_index, settings.prompt_length,
        token_ids, is_sound, was_banned, vocabulary,
        draws.greedy, blocks.per_row, blocks.tile, before.per_row, before.tile, blocks.best.shape[2], BLOCK,
        enable_fp_fusion=False,
    )  # fmt: skip
    return Chosen(token_ids, is_sound, was_banned)


@triton.jit
def _choose(
    scaled, best, mass, untouched, rows, num_tokens, temperature, top_k, top_p, min_p, seed, sample_index,
    prompt_length, token_ids, is_sound, was_banned, vocabulary,
    GREEDY: tl.constexpr, COUNT: tl.constexpr, TILE: tl.constexpr,
    UNTOUCHED: tl.constexpr, UNTOUCHED_TILE: tl.constexpr, TOP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Wherever a draw ends, its row is sound if its largest logit is finite: what is drawn by chance has a mass."""
    draw = tl.program_id(0).to(tl.int64)
    key = best_of(best, draw, COUNT, TILE)
    token = id_of(key)
    if not GREEDY:
        tl.static_assert(TOP == 1)
        row = tl.load(rows + draw)
        peak, by_chance = peak_of(key, tl.load(temperature + row))
        filtered = is_filtered(tl.load(top_k + row), tl.load(top_p + row), tl.load(min_p + row))
        if by_chance & ~filtered:
            index = tl.load(num_tokens + draw) - tl.load(prompt_length + row)
            u = uniform(tl.load(seed + row), index, tl.load(sample_index + row))
            factor = tl.load(temperature + row)
            token = _in_order(scaled, best, mass, draw, peak, factor, u, vocabulary, COUNT, TILE, BLOCK)
    tl.store(token_ids + draw, token)
    largest = logit_of(key)
    tl.store(is_sound + draw, is_finite(largest))
    before = logit_of(best_of(untouched, draw, UNTOUCHED, UNTOUCHED_TILE))
    tl.store(was_banned + draw, (largest == float("-inf")) & (before > float("-inf")))


@triton.jit
def _in_order(
    scaled, best, mass, draw, peak, temperature, u, vocabulary,
    COUNT: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the first token whose mass, added to that of all before it, passes u times that of all; where rounding
    lets none, the last that has any."""
    blocks = tl.arange(0, TILE)
    inside = blocks < COUNT
    keys = tl.load(best + draw * COUNT + blocks, mask=inside, other=0)
    weights = weight_of(tl.div_rn(logit_of(keys), temperature), peak)
    weights = tl.where(inside, weights * tl.load(mass + draw * COUNT + blocks, mask=inside, other=0.0), 0.0)
    cumulative = tl.cumsum(weights, axis=0)
    target = u * tl.max(cumulative, axis=0)
    block = _first(cumulative, weights, target, blocks)
    before = tl.max(tl.where(blocks < block, cumulative, 0.0), axis=0)

    places = tl.arange(0, BLOCK)
    ids = block * BLOCK + places
    values = tl.load(scaled + draw * vocabulary + ids, mask=ids < vocabulary, other=float("-inf"))
    weights = weight_of(values, peak)
    return block * BLOCK + _first(before + tl.cumsum(weights, axis=0), weights, target, places)


@triton.jit
def _first(cumulative, weights, target, places):
    passed = tl.sum((cumulative <= target).to(tl.int32), axis=0)
    return tl.minimum(passed, tl.max(tl.where(weights > 0, places, 0), axis=0))
