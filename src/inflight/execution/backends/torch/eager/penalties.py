"""Changes logits before a draw, in place: the mask, biases, sequences that may not end, penalties.

Knows which tokens stand before a draw, from the pool on the device; not how one is drawn. Entries of all draws lie one
behind the other: whose an entry is follows from where its draw's begin, without a count that the host would wait for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inflight.execution.backends.torch.sampling_tensors import BadSequences, Bias, Draws


def adjust(logits: Tensor, draws: Draws) -> None:
    """In the order of `SamplingBatch`, each in float32. logits float32[S, V]."""
    if draws.allowed is not None:
        logits.masked_fill_(~unpacked(draws.allowed, logits.shape[1]), -torch.inf)
    add_biases(logits, draws)
    if draws.needs_history:
        _penalise(logits, draws)


def unpacked(allowed: Tensor, vocabulary: int) -> Tensor:
    """int32[S, V / 32] → bool[S, V]."""
    bits = (allowed[:, :, None] >> torch.arange(32, device=allowed.device, dtype=torch.int32)) & 1
    return bits.flatten(1)[:, :vocabulary] != 0


def add_biases(logits: Tensor, draws: Draws) -> None:
    """Add the biases. The order of one token's biases does not matter: all but one of them are -inf."""
    if draws.bias is not None:
        _add(logits, _owners(draws.bias.start, len(draws.bias.values)), draws.bias)
    if draws.bad is not None:
        draw_of = _owners(draws.bad.start, len(draws.bad.offsets) - 1)
        last = draws.bad.token_ids[draws.bad.offsets[1:].long() - 1]
        _add(
            logits, draw_of, Bias(draws.bad.start, last, torch.where(_begun(draws.bad, draw_of, draws), -torch.inf, 0))
        )


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


def _penalise(logits: Tensor, draws: Draws) -> None:
    rows, settings = draws.rows, draws.settings
    repetition, frequency, presence = (
        one[rows][:, None]
        for one in (settings.repetition_penalty, settings.frequency_penalty, settings.presence_penalty)
    )
    history = draws.tokens[rows, : draws.longest_history].long()
    places = torch.arange(draws.longest_history, device=rows.device)
    is_known = places < draws.num_tokens[:, None]
    is_output = is_known & (places >= settings.prompt_length[rows][:, None])
    history = torch.where(is_known, history, 0)  # behind the known tokens anything may stand
    zero = torch.zeros_like(logits)
    is_seen = zero.scatter_add(1, history, is_known.float()) > 0
    counts = zero.scatter_add(1, history, is_output.float())  # whole numbers below 2²⁴: exact
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits.copy_(torch.where(is_seen, repeated, logits))
    logits.sub_(frequency * counts).sub_(torch.where(counts > 0, presence, 0))
