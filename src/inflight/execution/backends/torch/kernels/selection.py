"""Draws with filters that keep more tokens than are sorted: one program a row finds where each filter ends.

Selection goes by digits: the place of a logit among all (32 bits, `ordered`) is found from its upper 4 bits on, each
time from the sixteen sums of the tokens that have the digits so far: of their number for top-k, of their mass for top-p
and for the draw itself. So the kept tokens are those above a place, and the first few, by rising id, of those at it. It
reads a row 8 times for each, from a cache that it mostly fits; sums are taken in an order that depends on nothing else.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from inflight.execution.backends.torch.kernels.draw_functions import (
    best_of,
    log_of,
    ordered,
    peak_of,
    uniform,
    value_of,
    weight_of,
)
from inflight.execution.backends.torch.kernels.logit_blocks import Blocks
from inflight.execution.backends.torch.sampling_tensors import Draws

BLOCK = 512  # logits that a program looks at together
_SMALLEST = tl.constexpr(1e-300)  # a limit that any mass passes


def draw_remaining(scaled: Tensor, blocks: Blocks, draws: Draws, token_ids: Tensor) -> None:
    """Draw the tokens of rows whose token is negative."""
    settings = draws.settings
    _draw[len(scaled),](
        scaled, draws.rows, settings.temperature, settings.top_k, settings.top_p, settings.min_p, blocks.best,
        draws.num_tokens, settings.seed, settings.sample_index, settings.prompt_length, token_ids, scaled.shape[1],
        blocks.per_row, blocks.tile, BLOCK, num_warps=16, enable_fp_fusion=False,
    )  # fmt: skip


@triton.jit
def _draw(
    scaled, rows, temperature, top_k, top_p, min_p, best, num_tokens, seed, sample_index, prompt_length, token_ids,
    vocabulary, COUNT: tl.constexpr, TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    draw = tl.program_id(0).to(tl.int64)
    if tl.load(token_ids + draw) < 0:
        row = tl.load(rows + draw)
        peak, _ = peak_of(best_of(best, draw, COUNT, TILE), tl.load(temperature + row))
        index = tl.load(num_tokens + draw) - tl.load(prompt_length + row)
        u = uniform(tl.load(seed + row), index, tl.load(sample_index + row))
        logits = scaled + draw * vocabulary
        floor = log_of(tl.load(min_p + row).to(tl.float64))
        place, ties, mass = _kept(
            logits, vocabulary, peak, floor, tl.load(top_k + row), tl.load(top_p + row).to(tl.float64), BLOCK
        )
        tl.store(token_ids + draw, _drawn(logits, vocabulary, peak, floor, place, ties, u * mass, BLOCK))


@triton.jit
def _kept(logits, vocabulary, peak, floor, top_k, top_p, BLOCK: tl.constexpr):
    """Return the lowest place that is kept, how many tokens are there, and the mass of all that are kept."""
    place, before = tl.full((), 0, tl.int64), tl.full((), 0.0, tl.float64)
    if top_k > 0:
        place, before = _select(logits, vocabulary, peak, floor, place, (top_k - 1).to(tl.float64), True, BLOCK)
    above, there = _measured(logits, vocabulary, peak, floor, place, BLOCK)
    ties = tl.minimum(top_k - before, there)  # none at place 0, where no token is
    mass = above + tl.where(ties > 0, ties * _weight_at(place, peak), 0.0)
    if top_p < 1:
        limit = tl.maximum(top_p * mass, _SMALLEST)
        # The number before the limit, so that who passes it has reached the limit itself.
        before = (limit.to(tl.int64, bitcast=True) - 1).to(tl.float64, bitcast=True)
        ended, above = _select(logits, vocabulary, peak, floor, place, before, False, BLOCK)
        _, there = _measured(logits, vocabulary, peak, floor, ended, BLOCK)
        there = tl.where(ended == place, tl.minimum(ties, there), there)
        weight = _weight_at(ended, peak)
        ties = tl.minimum(tl.maximum(tl.ceil((limit - above) / weight), 1.0), there)
        place, mass = ended, above + ties * weight
    return place, ties, mass


@triton.jit
def _drawn(logits, vocabulary, peak, floor, least, ties, target, BLOCK: tl.constexpr):
    """Return the token whose mass, added to that of all likelier ones, passes the target. least, ties: of `_kept`."""
    place, above = _select(logits, vocabulary, peak, floor, least, target, False, BLOCK)
    _, there = _measured(logits, vocabulary, peak, floor, place, BLOCK)
    there = tl.where(place == least, tl.minimum(ties, there), there)
    number = tl.minimum(tl.floor((target - above) / _weight_at(place, peak)), there - 1).to(tl.int32)
    token, seen = tl.full((), 0, tl.int32), tl.full((), 0, tl.int32)
    for start in range(0, vocabulary, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        values = tl.load(logits + ids, mask=ids < vocabulary, other=0.0)
        is_there = (_place(values) == place) & (ids < vocabulary)
        order = seen + tl.cumsum(is_there.to(tl.int32), axis=0) - 1
        token = tl.maximum(token, tl.max(tl.where(is_there & (order == number), ids, 0), axis=0))
        seen += tl.sum(is_there.to(tl.int32), axis=0)
    return token


@triton.jit
def _select(logits, vocabulary, peak, floor, least, limit, COUNTS: tl.constexpr, BLOCK: tl.constexpr):
    """Return the place at which the sum over tokens from the likeliest on passes the limit (or the last), and the sum
    above it. COUNTS: sums their number, else their mass. Tokens below `floor` and `least` do not count."""
    digits = tl.arange(0, 16)
    place, above = tl.full((), 0, tl.int64), tl.full((), 0.0, tl.float64)
    for step in range(8):
        shift = 28 - 4 * step
        sums = tl.zeros((16, BLOCK), tl.float64)
        for start in range(0, vocabulary, BLOCK):
            ids = start + tl.arange(0, BLOCK)
            values = tl.load(logits + ids, mask=ids < vocabulary, other=float("-inf"))
            places = _place(values)
            distance = values.to(tl.float64) - peak.to(tl.float64)
            counts = (ids < vocabulary) & (distance >= floor) & (places >= least) & ((places >> shift >> 4) == place)
            if tl.max(counts.to(tl.int32), axis=0) > 0:  # after a few digits most blocks have none
                weights = tl.where(counts, 1.0 if COUNTS else tl.exp(distance), 0.0)
                is_digit = ((places >> shift) & 15)[None, :] == digits[:, None]
                sums += tl.where(is_digit, weights[None, :], 0.0)
        of_digits = tl.sum(sums, axis=1)
        reached = above + tl.sum(tl.where(digits[None, :] >= digits[:, None], of_digits[None, :], 0.0), axis=1)
        passing = tl.max(tl.where((reached > limit) & (of_digits > 0), digits, -1), axis=0)
        last = tl.min(tl.where(of_digits > 0, digits, 15), axis=0)
        digit = tl.where(passing >= 0, passing, last)
        above += tl.sum(tl.where(digits > digit, of_digits, 0.0), axis=0)
        place = place * 16 + digit
    return place, above


@triton.jit
def _measured(logits, vocabulary, peak, floor, place, BLOCK: tl.constexpr):
    """Return the mass above a place, and the number of tokens at it."""
    mass, number = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    for start in range(0, vocabulary, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        values = tl.load(logits + ids, mask=ids < vocabulary, other=float("-inf"))
        places = _place(values)
        counts = (ids < vocabulary) & (values.to(tl.float64) - peak.to(tl.float64) >= floor)
        mass += tl.where(counts & (places > place), weight_of(values, peak), 0.0)
        number += (counts & (places == place)).to(tl.float64)
    return tl.sum(mass, axis=0), tl.sum(number, axis=0)


@triton.jit
def _place(logit):
    """From 0 to 2³² - 1, in the order of logits."""
    return ordered(logit).to(tl.int64) + 2147483648


@triton.jit
def _weight_at(place, peak):
    return weight_of(value_of((place - 2147483648).to(tl.int32)), peak)
