"""Attention by flash-attn (Dao-AILab, version 2): decodes by `flash_attn_with_kvcache`, all else by
`flash_attn_varlen_func`, both over paged keys and values.

Both take pages of a multiple of 256 positions, contiguous in their last dimension alone; tables of
chunks, int32; lengths on the device. Neither asks the host for anything, so that a graph may hold both.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from inflight.execution.backends.torch.attention_libraries.library import heads
from inflight.execution.backends.torch.tensors import LayerKV, PassTensors


class FlashAttention:
    """module: `flash_attn`."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def takes(self, pass_: PassTensors) -> bool:
        return True

    def attend(
        self, q: Tensor, cached: LayerKV, scale: float, window: int, soft_cap: float, pass_: PassTensors, out: Tensor
    ) -> None:
        options: dict[str, Any] = {
            "softmax_scale": scale,
            "causal": True,
            "window_size": (window - 1, 0) if window else (-1, -1),  # how many before, itself not counted
            "softcap": soft_cap,
            "block_table": pass_.block_tables[cached.group].index_select(0, pass_.rows.long()),
        }
        queries = heads(q, cached)
        if pass_.longest_chunk == 1:
            found = self._module.flash_attn_with_kvcache(
                queries.unsqueeze(1), cached.keys, cached.values, cache_seqlens=pass_.context_len + 1, **options
            )
        else:
            found = self._module.flash_attn_varlen_func(
                queries,
                cached.keys,
                cached.values,
                cu_seqlens_q=pass_.query_start,
                cu_seqlens_k=_ends(pass_),
                max_seqlen_q=pass_.longest_chunk,
                max_seqlen_k=pass_.longest_context,
                **options,
            )
        out.view(queries.shape).copy_(found.view(queries.shape))


def _ends(pass_: PassTensors) -> Tensor:
    """int32[C + 1]: positions of all chunks' sequences up to theirs, one after the other."""
    lengths = pass_.context_len + pass_.query_start.diff()
    ends = torch.zeros(len(lengths) + 1, dtype=torch.int32, device=lengths.device)
    ends[1:] = lengths.cumsum(0)
    return ends
