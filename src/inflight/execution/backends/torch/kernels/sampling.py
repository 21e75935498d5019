"""Draws on a GPU: which kernels a batch of rows goes through, by what its rows ask for.

`SamplingBatch` has the order of work. Greedy rows cost one read of the logits, and log-probabilities beside come of the
same one if nothing changes the logits; draws among all tokens cost a read and a write, and filtered ones (`candidates`)
two reads more. Nothing is read back by the host: rows that a shorter way does not serve are left to the next kernel,
whose other programs end at once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from inflight.execution.backends.torch.kernels.candidates import draw_filtered
from inflight.execution.backends.torch.kernels.draw_functions import LOWEST, best_of, id_of, logit_of, weight_of
from inflight.execution.backends.torch.kernels.drawing import choose
from inflight.execution.backends.torch.kernels.logit_blocks import Blocks, read_for_draw, read_untouched
from inflight.execution.backends.torch.sampling_tensors import BadSequences, Bias, Drawn, Draws, Scores


def sample(logits: Tensor, draws: Draws) -> Drawn:
    may_ban = draws.allowed is not None or draws.bias is not None or draws.bad is not None
    are_changed = may_ban or draws.needs_history or not draws.greedy
    untouched = read_untouched(logits, draws.top_logprobs) if may_ban or draws.want_logprobs else None
    if are_changed or untouched is None:
        scaled = logits.clone() if are_changed and draws.want_logprobs else logits
        add_biases(scaled, draws)
        blocks = read_for_draw(scaled, draws)
    else:
        scaled, blocks = logits, untouched
    chosen = choose(scaled, blocks, untouched, draws)
    if draws.filters and not draws.greedy:
        draw_filtered(scaled, blocks, draws, chosen.token_ids)
    if untouched is None or not draws.want_logprobs:
        return Drawn(*chosen, None, None, None)
    return Drawn(*chosen, *report(logits, untouched, chosen.token_ids, draws.top_logprobs))


def add_biases(logits: Tensor, draws: Draws) -> None:
    """Add biases, and -inf for the last tokens of bad sequences that have begun, by PyTorch's own operations: there are
    few. The order of one token's biases does not matter: all but one of them are -inf.

    Entries of all draws lie one behind the other. Whose an entry is follows from where its draw's entries begin,
    without a count that the host would wait for."""
    if draws.bias is not None:
        _add(logits, _owners(draws.bias.start, len(draws.bias.values)), draws.bias)
    if draws.bad is not None:
        draw_of = _owners(draws.bad.start, len(draws.bad.offsets) - 1)
        last = draws.bad.token_ids[draws.bad.offsets[1:].long() - 1]
        values = torch.where(_begun(draws.bad, draw_of, draws), -torch.inf, 0)
        _add(logits, draw_of, Bias(draws.bad.start, last, values))


def _owners(start: Tensor, count: int) -> Tensor:
    """Between which two of `start` each of `count` entries lies, int64[count]."""
    entries = torch.arange(count, device=start.device, dtype=start.dtype)
    return torch.searchsorted(start, entries, right=True) - 1


def _add(logits: Tensor, draw_of: Tensor, bias: Bias) -> None:
    logits.view(-1).index_add_(0, draw_of * logits.shape[1] + bias.token_ids, bias.values)


def _begun(bad: BadSequences, draw_of: Tensor, draws: Draws) -> Tensor:
    """Whether the output of its draw ends with all of a sequence but its last token, bool[sequences]."""
    rows, behind = draws.rows[draw_of], draws.num_tokens[draw_of]
    prefixes = bad.offsets.diff() - 1  # tokens
    first = behind - prefixes  # where in the row the sequence would have begun
    sequence = _owners(bad.offsets, len(bad.token_ids))
    place = torch.arange(len(sequence), device=first.device) - bad.offsets[sequence]
    stands = draws.tokens[rows[sequence], (first[sequence] + place).clamp(min=0).clamp(max=draws.tokens.shape[1] - 1)]
    is_wrong = (place < prefixes[sequence]) & (stands != bad.token_ids)
    wrong = torch.zeros_like(prefixes).index_add_(0, sequence, is_wrong.to(prefixes.dtype))
    return (wrong == 0) & (first >= draws.settings.prompt_length[rows])


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
