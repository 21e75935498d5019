"""Attention over the KV cache in PyTorch's own: the positions of a chunk gathered from its blocks, then the formula.

Knows blocks, chunks and windows; `protocol.AttentionOperations` has the meaning and the rounding. Chunks are taken one
by one, read by the host, and of each so many queries at once that their scores stay small.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inflight.execution.backends.position_bias import reach_of
from inflight.execution.backends.torch.tensors import LayerKV, PassTensors

_QUERIES = 256  # whose scores of all positions are formed at once


def attention(
    q: Tensor,
    cached: LayerKV,
    scale: float,
    window: int,
    soft_cap: float,
    sinks: Tensor | None,
    causal: bool,
    pass_: PassTensors,
    out: Tensor,
    position_bias: Tensor | None = None,
) -> None:
    kv_heads, key_dim = cached.keys.shape[2:]
    queries = q.view(len(q), kv_heads, -1, key_dim)  # [T, G, H / G, D]
    into = out.view(*queries.shape[:3], -1)  # [T, G, H / G, M]
    of_heads = None if sinks is None else sinks.view(kv_heads, -1)
    biases = None if position_bias is None else position_bias.view(*queries.shape[1:3], -1)
    # Probabilities over quantized values stay as they are.
    held = q.dtype if cached.key_scales is None else torch.float32
    starts = pass_.query_start.tolist()
    for chunk, (context, begin, end) in enumerate(
        zip(pass_.context_len.tolist(), starts[:-1], starts[1:], strict=True)
    ):
        for first in range(begin, end, _QUERIES):
            tokens = slice(first, min(first + _QUERIES, end))
            own = pass_.positions[tokens].long()[:, None]
            oldest = max(0, context + first - begin - window + causal) if window else 0
            past = context + tokens.stop - begin if causal else context + end - begin
            seen = torch.arange(oldest, past, device=q.device)
            keys, values = _cached(seen, chunk, cached, pass_, into.shape[3])
            visible = seen <= own if causal else torch.ones_like(seen <= own)
            if window:
                visible &= seen > own - window if causal else (seen - own).abs() <= window
            bias = None
            if biases is not None:
                bias = biases[:, :, seen - own + reach_of(biases.shape[2]) - 1].permute(2, 0, 1, 3)
            into[tokens] = _attended(queries[tokens], keys, values, visible, scale, soft_cap, of_heads, held, bias)


def _attended(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    visible: Tensor,
    scale: float,
    soft_cap: float,
    sinks: Tensor | None,
    held: torch.dtype,
    bias: Tensor | None = None,
) -> Tensor:
    """q act[N, G, H / G, D], keys float32[P, G, D], values float32[P, G, M], visible bool[N, P], sinks float32[G,
    H / G] → float32[N, G, H / G, M]; the formula of `reference.attention`. held: what probabilities are rounded to.
    bias: float32[N, G, H / G, P]."""
    scores = torch.einsum("nghd,pgd->nghp", q.float(), keys) * scale
    if soft_cap:
        scores = soft_cap * (scores / soft_cap).tanh()
    if bias is not None:
        scores = scores + bias
    scores = scores.masked_fill(~visible[:, None, None], -torch.inf)
    top = scores.amax(dim=3, keepdim=True)
    if sinks is not None:
        top = torch.maximum(top, sinks[..., None])
    weights = (scores - top).exp()
    total = weights.sum(dim=3, keepdim=True)
    if sinks is not None:
        total += (sinks[..., None] - top).exp()
    return torch.einsum("nghp,pgm->nghm", weights.to(held).float(), values) / total


def _cached(
    positions: Tensor, chunk: int, cached: LayerKV, pass_: PassTensors, value_dim: int
) -> tuple[Tensor, Tensor]:
    """Keys and values float32[P, G, …] of positions int64[P] of a chunk. Where no values are kept, they are the keys'
    first numbers."""
    table = pass_.block_tables[cached.group, pass_.rows[chunk].long()]
    at = table[positions // pass_.block_size].long(), positions % pass_.block_size
    keys = _meant(cached.keys, cached.key_scales, at)
    if cached.values is None:
        return keys, keys[..., :value_dim]
    return keys, _meant(cached.values, cached.value_scales, at)


def _meant(numbers: Tensor, scales: Tensor | None, at: tuple[Tensor, Tensor]) -> Tensor:
    """float32[P, G, …] of what is held at these blocks and places."""
    held = numbers[at].float()
    return held if scales is None else held * scales[at][..., None]
