"""Draws with top-k, top-p and min-p from a row's likeliest tokens, few enough to be compared with each other.

They are found without sorting a vocabulary: tokens are counted by their distance to the likeliest, in bins that widen
with it (the upper bits of the distance); those of the nearest bins that hold up to CANDIDATES together are gathered, in
any order, and ranked by keys that all differ: by how many are larger. Where the filters keep more than was gathered,
the row is left to `selection`. Counts and sets depend on a row alone, sums are taken in ranked order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from inflight.execution.backends.torch.kernels.draw_functions import (
    LOWEST,
    best_of,
    id_of,
    is_filtered,
    key_of,
    log_of,
    logit_of,
    peak_of,
    uniform,
    weight_of,
)
from inflight.execution.backends.torch.kernels.logit_blocks import Blocks
from inflight.execution.backends.torch.kernels.selection import draw_remaining
from inflight.execution.backends.torch.sampling_tensors import Draws

CANDIDATES = 1024  # of a row, at most
RANKED = 128  # of these in one program
PART = 4096  # logits of a program that counts or gathers
BINS = tl.constexpr(1024)  # 64 of an octave; the first has all distances below 2⁻⁸, the last all from 2⁸ on
_FIRST = tl.constexpr((127 - 8) << 6)
REMAINS = tl.constexpr(-1)  # as a token: the row is left to `selection`


def draw_filtered(scaled: Tensor, blocks: Blocks, draws: Draws, token_ids: Tensor) -> None:
    """Draw the tokens of rows with filters that are drawn by chance → token_ids int32[S]."""
    rows, vocabulary = scaled.shape
    settings = draws.settings
    counts = torch.zeros(rows, BINS.value + 1, dtype=torch.int32, device=scaled.device)  # and how many were gathered
    gathered = torch.empty(rows, CANDIDATES, dtype=torch.int64, device=scaled.device)
    filters = settings.top_k, settings.top_p, settings.min_p
    grid = rows, triton.cdiv(vocabulary, PART)
    of_rows = draws.rows, settings.temperature, *filters, blocks.best
    _count_by_distance[grid](
        scaled, *of_rows, counts, vocabulary, blocks.per_row, blocks.tile, PART, num_warps=8, enable_fp_fusion=False
    )
    _gather[grid](
        scaled, *of_rows, counts, gathered, vocabulary, blocks.per_row, blocks.tile, CANDIDATES, PART,
        num_warps=8, enable_fp_fusion=False,
    )  # fmt: skip
    ranked = torch.empty_like(gathered)
    _rank[rows, triton.cdiv(CANDIDATES, RANKED)](gathered, counts, ranked, CANDIDATES, RANKED)
    _draw_ranked[rows,](
        ranked, counts, *of_rows, blocks.mass, draws.num_tokens, settings.seed, settings.sample_index,
        settings.prompt_length, token_ids, vocabulary, blocks.per_row, blocks.tile, CANDIDATES,
        num_warps=8, enable_fp_fusion=False,
    )  # fmt: skip
    draw_remaining(scaled, blocks, draws, token_ids)


@triton.jit
def _row_of(draw, rows, temperature, top_k, top_p, min_p, best, COUNT: tl.constexpr, TILE: tl.constexpr):
    """Return the largest scaled logit, and whether these kernels draw the row."""
    row = tl.load(rows + draw)
    peak, by_chance = peak_of(best_of(best, draw, COUNT, TILE), tl.load(temperature + row))
    return peak, by_chance & is_filtered(tl.load(top_k + row), tl.load(top_p + row), tl.load(min_p + row))


@triton.jit
def _bin_of(scaled, peak):
    """Return the bin of a distance in float32, which falls where the logit rises: rounding changes no order."""
    bits = (peak - scaled).to(tl.int32, bitcast=True)
    return tl.minimum(tl.maximum((bits >> 17) - _FIRST, 0), BINS - 1)


@triton.jit
def _count_by_distance(
    scaled, rows, temperature, top_k, top_p, min_p, best, counts, vocabulary,
    COUNT: tl.constexpr, TILE: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    draw = tl.program_id(0).to(tl.int64)
    peak, is_ours = _row_of(draw, rows, temperature, top_k, top_p, min_p, best, COUNT, TILE)
    if is_ours:
        ids = tl.program_id(1) * PART + tl.arange(0, PART)
        inside = ids < vocabulary
        values = tl.load(scaled + draw * vocabulary + ids, mask=inside, other=float("-inf"))
        found = tl.histogram(_bin_of(values, peak), BINS, mask=inside)
        bins = tl.arange(0, BINS)
        tl.atomic_add(counts + draw * (BINS + 1) + bins, found, mask=found > 0)


@triton.jit
def _gather(
    scaled, rows, temperature, top_k, top_p, min_p, best, counts, gathered, vocabulary,
    COUNT: tl.constexpr, TILE: tl.constexpr, CANDIDATES: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """Keys of the tokens of the nearest bins."""
    draw = tl.program_id(0).to(tl.int64)
    peak, is_ours = _row_of(draw, rows, temperature, top_k, top_p, min_p, best, COUNT, TILE)
    if is_ours:
        of_row = counts + draw * (BINS + 1)
        cumulative = tl.cumsum(tl.load(of_row + tl.arange(0, BINS)), axis=0)
        near = tl.sum((cumulative <= CANDIDATES).to(tl.int32), axis=0)  # bins
        ids = tl.program_id(1) * PART + tl.arange(0, PART)
        inside = ids < vocabulary
        values = tl.load(scaled + draw * vocabulary + ids, mask=inside, other=float("-inf"))
        taken = inside & (_bin_of(values, peak) < near)
        number = tl.cumsum(taken.to(tl.int32), axis=0)
        first = tl.atomic_add(of_row + BINS, tl.max(number, axis=0))
        tl.store(gathered + draw * CANDIDATES + first + number - 1, key_of(values, ids), mask=taken)


@triton.jit
def _rank(gathered, counts, ranked, CANDIDATES: tl.constexpr, RANKED: tl.constexpr):
    """Put each candidate behind those that are larger."""
    draw = tl.program_id(0).to(tl.int64)
    number = tl.load(counts + draw * (BINS + 1) + BINS)
    places = tl.program_id(1) * RANKED + tl.arange(0, RANKED)
    inside = places < number
    keys = tl.load(gathered + draw * CANDIDATES + places, mask=inside, other=LOWEST)
    rank = tl.zeros((RANKED,), tl.int32)
    for start in range(0, number, 32):
        others = start + tl.arange(0, 32)
        others = tl.load(gathered + draw * CANDIDATES + others, mask=others < number, other=LOWEST)
        rank += tl.sum((others[None, :] > keys[:, None]).to(tl.int32), axis=1)
    tl.store(ranked + draw * CANDIDATES + rank, keys, mask=inside)


@triton.jit
def _draw_ranked(
    ranked, counts, rows, temperature, top_k, top_p, min_p, best, mass, num_tokens, seed, sample_index,
    prompt_length, token_ids, vocabulary, COUNT: tl.constexpr, TILE: tl.constexpr, CANDIDATES: tl.constexpr,
):  # fmt: skip
    draw = tl.program_id(0).to(tl.int64)
    peak, is_ours = _row_of(draw, rows, temperature, top_k, top_p, min_p, best, COUNT, TILE)
    if is_ours:
        row = tl.load(rows + draw)
        number = tl.load(counts + draw * (BINS + 1) + BINS)
        places = tl.arange(0, CANDIDATES)
        keys = tl.load(ranked + draw * CANDIDATES + places, mask=places < number, other=LOWEST)
        all_mass = _mass_of(best, mass, draw, peak, tl.load(temperature + row), COUNT, TILE)
        cumulative, kept = _kept(
            keys, number, peak, tl.load(top_k + row), tl.load(top_p + row).to(tl.float64),
            tl.load(min_p + row).to(tl.float64), all_mass, vocabulary, CANDIDATES,
        )  # fmt: skip
        index = tl.load(num_tokens + draw) - tl.load(prompt_length + row)
        u = uniform(tl.load(seed + row), index, tl.load(sample_index + row))
        target = u * tl.max(tl.where(places < kept, cumulative, 0.0), axis=0)
        passed = tl.sum(((cumulative <= target) & (places < kept)).to(tl.int32), axis=0)
        drawn = tl.max(tl.where(places == tl.minimum(passed, kept - 1), keys, LOWEST), axis=0)
        tl.store(token_ids + draw, tl.where(kept > 0, id_of(drawn), REMAINS))


@triton.jit
def _mass_of(best, mass, draw, peak, temperature, COUNT: tl.constexpr, TILE: tl.constexpr):
    """Return the mass of all tokens of a row."""
    blocks = tl.arange(0, TILE)
    inside = blocks < COUNT
    keys = tl.load(best + draw * COUNT + blocks, mask=inside, other=0)
    weights = weight_of(tl.div_rn(logit_of(keys), temperature), peak)
    return tl.sum(tl.where(inside, weights * tl.load(mass + draw * COUNT + blocks, mask=inside, other=0.0), 0.0))


@triton.jit
def _kept(keys, number, peak, top_k, top_p, min_p, all_mass, vocabulary, CANDIDATES: tl.constexpr):
    """Cumulative probabilities of ranked candidates, and how many of them the filters keep: 0 where they may keep a
    token that is no candidate. They keep candidates alone if min-p or top-k ends among these; and, of all tokens, if
    top-p does."""
    places = tl.arange(0, CANDIDATES)
    distance = logit_of(keys).to(tl.float64) - peak.to(tl.float64)
    likely = tl.sum(((places < number) & (distance >= log_of(min_p))).to(tl.int32), axis=0)
    kept = tl.where(top_k > 0, tl.minimum(likely, top_k), likely)
    are_all = (likely < number) | ((top_k > 0) & (top_k <= number)) | (number == vocabulary)
    weights = tl.where(places < kept, tl.exp(distance), 0.0)
    cumulative = tl.cumsum(weights, axis=0)
    found = tl.max(cumulative, axis=0)
    limit = top_p * tl.where(are_all, found, all_mass)
    before = tl.sum(((cumulative < limit) & (places < kept)).to(tl.int32), axis=0)
    ends = are_all | ((top_k <= 0) & (min_p <= 0) & (top_p < 1) & (limit <= found))
    kept = tl.where(top_p < 1, tl.minimum(before + 1, kept), kept)
    return cumulative, tl.where(ends & (number > 0), kept, 0)
