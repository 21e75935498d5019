"""Modules in the place of flash-attn and FlashInfer, of the same signatures: they check what the documentation of each
demands (shapes, types, strides, what lies on the host), and compute by `eager`.

Knows paged keys and values; nothing of passes. Both read a page only up to a sequence's length.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from inflight.execution.backends.torch.eager.attention import _attended


def attended(
    q: Tensor, keys: Tensor, values: Tensor, pages: Tensor, length: int, scale: float, left: int, soft_cap: float
) -> Tensor:
    """act[N, H, D] of the last N of `length` positions, which lie in `pages`; each sees itself, and `left` before."""
    size, kv_heads = keys.shape[1:3]
    seen = torch.arange(max(0, length - len(q) - left) if left >= 0 else 0, length)
    own = torch.arange(length - len(q), length)
    visible = seen <= own[:, None]
    if left >= 0:
        visible &= seen >= own[:, None] - left
    at = pages[seen // size].long(), seen % size
    grouped = q.view(len(q), kv_heads, -1, q.shape[2])
    found = _attended(grouped, keys[at].float(), values[at].float(), visible, scale, soft_cap, None, q.dtype)
    return found.to(q.dtype).reshape(q.shape)


def _check_caches(q: Tensor, k: Tensor, v: Tensor) -> None:
    assert q.dtype == k.dtype == v.dtype == torch.bfloat16, "only half precision is computed"
    assert k.shape == v.shape and k.dim() == 4 and q.shape[-1] == k.shape[3] and q.shape[-2] % k.shape[2] == 0
    assert q.stride(-1) == k.stride(-1) == v.stride(-1) == 1, "contiguous last dimension"


class FlashAttnModule:
    """`flash_attn`, version 2.7 and later."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def flash_attn_with_kvcache(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        k: None = None,
        v: None = None,
        rotary_cos: None = None,
        rotary_sin: None = None,
        cache_seqlens: Tensor | None = None,
        cache_batch_idx: None = None,
        cache_leftpad: None = None,
        block_table: Tensor | None = None,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        rotary_interleaved: bool = True,
        alibi_slopes: None = None,
        num_splits: int = 0,
        return_softmax_lse: bool = False,
    ) -> Tensor:
        self.calls.append("decode")
        _check_caches(q, k_cache, v_cache)
        assert block_table is not None and cache_seqlens is not None and softmax_scale is not None and causal
        assert k_cache.shape[1] % 256 == 0, "page_block_size must be a multiple of 256"
        assert block_table.dtype == cache_seqlens.dtype == torch.int32 and block_table.stride(-1) == 1
        assert q.dim() == 4 and len(q) == len(block_table) == len(cache_seqlens)
        options = softmax_scale, _left(window_size), softcap
        rows = [
            attended(one, k_cache, v_cache, table, int(length), *options)
            for one, table, length in zip(q, block_table, cache_seqlens, strict=True)
        ]
        return torch.stack(rows)

    def flash_attn_varlen_func(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: None = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        block_table: Tensor | None = None,
    ) -> Tensor:
        self.calls.append("any")
        _check_caches(q, k, v)
        assert block_table is not None and softmax_scale is not None and causal and not dropout_p
        assert k.shape[1] % 256 == 0, "page_block_size must be a multiple of 256"
        assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == block_table.dtype == torch.int32
        assert len(cu_seqlens_q) == len(cu_seqlens_k) == len(block_table) + 1 and block_table.stride(-1) == 1
        queries, lengths = cu_seqlens_q.diff(), cu_seqlens_k.diff()
        assert int(cu_seqlens_q[0]) == int(cu_seqlens_k[0]) == 0 and int(cu_seqlens_q[-1]) == len(q)
        assert max_seqlen_q >= int(queries.max()) and max_seqlen_k >= int(lengths.max())
        options = softmax_scale, _left(window_size), softcap
        rows = [
            attended(one, k, v, table, int(length), *options)
            for one, table, length in zip(q.split(queries.tolist()), block_table, lengths, strict=True)
        ]
        return torch.cat(rows)


def _left(window: tuple[int, int]) -> int:
    assert window == (-1, -1) or (window[0] >= 0 and window[1] == 0)
    return window[0]


class FlashInferModule:
    """`flashinfer`. wrappers: that were made."""

    def __init__(self) -> None:
        self.wrappers: list[PrefillWrapper] = []

    def BatchPrefillWithPagedKVCacheWrapper(self, float_workspace_buffer: Tensor, kv_layout: str = "NHD") -> Any:
        assert float_workspace_buffer.dtype == torch.uint8 and kv_layout == "NHD"
        self.wrappers.append(PrefillWrapper())
        return self.wrappers[-1]


class PrefillWrapper:
    def __init__(self) -> None:
        self.plans, self.runs = 0, 0

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        custom_mask: None = None,
        packed_custom_mask: None = None,
        causal: bool = False,
        pos_encoding_mode: str = "NONE",
        use_fp16_qk_reduction: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        rope_scale: float | None = None,
        rope_theta: float | None = None,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
    ) -> None:
        assert causal and sm_scale is not None and q_data_type == kv_data_type == torch.bfloat16
        for one in (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len):
            assert one.dtype == torch.int32 and one.dim() == 1
        for one in (qo_indptr, paged_kv_indptr, paged_kv_last_page_len):
            assert one.device.type == "cpu", "or planning waits for the device"
        count = len(paged_kv_last_page_len)
        assert len(qo_indptr) == len(paged_kv_indptr) == count + 1
        assert len(paged_kv_indices) == int(paged_kv_indptr[-1])
        assert 1 <= int(paged_kv_last_page_len.min()) <= int(paged_kv_last_page_len.max()) <= page_size
        assert head_dim_qk in (64, 128, 256) and num_qo_heads % num_kv_heads == 0
        self.plans += 1
        self._heads = num_qo_heads, num_kv_heads, head_dim_qk, page_size
        self._options = sm_scale, window_left, logits_soft_cap or 0.0
        self._queries = qo_indptr.diff().tolist()
        counts = paged_kv_indptr.diff()
        self._pages = paged_kv_indices.split(counts.tolist())
        self._lengths = ((counts - 1) * page_size + paged_kv_last_page_len).tolist()

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], out: Tensor | None = None) -> Tensor:
        keys, values = paged_kv_cache
        _check_caches(q, keys, values)
        assert self.plans, "a plan comes first"
        assert keys.stride() == values.stride() and out is not None and out.shape == q.shape and out.dtype == q.dtype
        assert (q.shape[1], keys.shape[2], keys.shape[3], keys.shape[1]) == self._heads
        assert len(q) == sum(self._queries)
        self.runs += 1
        rows = [
            attended(one, keys, values, pages, length, *self._options)
            for one, pages, length in zip(q.split(self._queries), self._pages, self._lengths, strict=True)
        ]
        return out.copy_(torch.cat(rows))
