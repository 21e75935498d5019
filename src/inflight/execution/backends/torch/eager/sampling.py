"""Draws in PyTorch's own operations, all rows at once: what the kernels are held to.

Knows the rules of `SamplingBatch`, over tensors. The words of the generator are computed in int64, whose products wrap
modulo 2⁶⁴ and so have the right bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inflight.execution.backends.torch.eager.logprobs import alternatives, logprobs_of, without_nan
from inflight.execution.backends.torch.eager.penalties import adjust
from inflight.execution.backends.torch.sampling_tensors import Drawn, Draws

_WORD = 0xFFFFFFFF


def sample(logits: Tensor, draws: Draws) -> Drawn:
    untouched = without_nan(logits)
    adjusted = untouched.clone()
    adjust(adjusted, draws)
    token_ids = adjusted.argmax(1) if draws.greedy else _drawn(adjusted, draws)
    logit = adjusted.gather(1, token_ids[:, None])[:, 0]
    was_banned = (logit == -torch.inf) & (untouched > -torch.inf).any(1)
    if not draws.want_logprobs:
        return Drawn(token_ids.int(), logit.isfinite(), was_banned, None, None, None)
    found = alternatives(untouched, draws.top_logprobs)
    logprobs = logprobs_of(untouched, token_ids, found.normalizer)
    return Drawn(token_ids.int(), logit.isfinite(), was_banned, logprobs, found.top_ids, found.top_logprobs)


def uniform(draws: Draws) -> Tensor:
    """Return the documented draws in [0, 1), float64[S]: words 0 (low) and 1 (high) form 64 bits, the upper 53 are the
    fraction."""
    settings, rows = draws.settings, draws.rows
    draw_index = (draws.num_tokens - settings.prompt_length[rows]).long() & _WORD
    low, high, _, _ = philox4x32_10(draw_index, settings.sample_index[rows] & _WORD, settings.seed[rows])
    return ((high << 21) | (low >> 11)).double() * 2.0**-53


def philox4x32_10(c0: Tensor, c1: Tensor, seed: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox 4×32 with ten rounds (Salmon et al., 2011) of the counter (c0, c1, 0, 0) under the key `seed`, all int64;
    words from 0 to 2³² - 1."""
    k0, k1 = seed & _WORD, (seed >> 32) & _WORD
    c2, c3 = torch.zeros_like(c0), torch.zeros_like(c0)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32 & _WORD) ^ c1 ^ k0, p1 & _WORD, (p0 >> 32 & _WORD) ^ c3 ^ k1, p0 & _WORD
        k0, k1 = (k0 + 0x9E3779B9) & _WORD, (k1 + 0xBB67AE85) & _WORD
    return c0, c1, c2, c3


def _drawn(adjusted: Tensor, draws: Draws) -> Tensor:
    """int64[S]. Rows of temperature 0, and those whose largest scaled logit is not finite, take the largest logit."""
    temperature = draws.settings.temperature[draws.rows]
    greedy = adjusted.argmax(1)
    scaled = adjusted / temperature[:, None]
    peak = scaled.gather(1, greedy[:, None])
    chance = _by_chance(scaled.double() - peak.double(), draws)
    return torch.where((temperature > 0) & peak[:, 0].isfinite(), chance, greedy)


def _by_chance(distance: Tensor, draws: Draws) -> Tensor:
    """One token a row, from the distances of scaled logits to the largest, float64[S, V] → int64[S]."""
    if not draws.filters:
        return _place(distance.exp().cumsum(1), torch.full_like(draws.num_tokens, distance.shape[1]), draws)
    settings, rows, vocabulary = draws.settings, draws.rows, distance.shape[1]
    top_k, top_p, min_p = settings.top_k[rows], settings.top_p[rows].double(), settings.min_p[rows].double()
    is_filtered = (top_k > 0) | ~(top_p >= 1) | (min_p > 0)
    ranked, by_rank = torch.sort(distance, dim=1, descending=True, stable=True)
    ids = torch.where(is_filtered[:, None], by_rank, torch.arange(vocabulary, device=rows.device))
    distance = torch.where(is_filtered[:, None], ranked, distance)

    # Of a row that takes its largest logit nothing here is a number, and nothing is taken.
    kept = torch.where(min_p > 0, (distance >= min_p.log()[:, None]).sum(1).clamp(min=1), vocabulary)
    kept = torch.where(top_k > 0, torch.minimum(kept, top_k), kept)
    cumulative = distance.exp().cumsum(1)
    before = torch.nn.functional.pad(cumulative[:, :-1], (1, 0))
    mass = cumulative.gather(1, kept[:, None] - 1)
    below = (before < top_p[:, None] * mass) & (torch.arange(vocabulary, device=rows.device) < kept[:, None])
    kept = torch.where(top_p < 1, below.sum(1).clamp(min=1), kept)
    return ids.gather(1, _place(cumulative, kept, draws)[:, None])[:, 0]


def _place(cumulative: Tensor, kept: Tensor, draws: Draws) -> Tensor:
    """Where the draw falls among the first `kept` of each row: int64[S]."""
    last = kept.long()[:, None] - 1
    target = uniform(draws)[:, None] * cumulative.gather(1, last)
    return torch.minimum(torch.searchsorted(cumulative, target, right=True), last)[:, 0]
