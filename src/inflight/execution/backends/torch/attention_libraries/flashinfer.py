"""Attention by FlashInfer (0.2 and later): prompts, and decodes beside them, by `BatchPrefillWithPagedKVCacheWrapper`.

A plan takes, of each chunk, how many queries, pages and positions of the last page on the host; on the
device which pages. A plan is made once for each pass and each kind of layers, by the host, which no graph can hold:
passes that only decode, which are graphs here, are left to our own kernels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from inflight.execution.backends.torch.attention_libraries.library import heads
from inflight.execution.backends.torch.tensors import LayerKV, PassTensors

_WORKSPACE = 128 << 20  # bytes, as its documentation advises


class _Kind(NamedTuple):
    """Layers that one plan serves."""

    group: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int
    soft_cap: float


class FlashInfer:
    """module: `flashinfer`."""

    def __init__(self, module: Any, device: torch.device, workspace: int = _WORKSPACE) -> None:
        self._module = module
        self._workspace = torch.empty(workspace, dtype=torch.uint8, device=device)
        self._wrappers: dict[_Kind, Any] = {}
        self._copied: dict[_Kind, torch.cuda.Event] = {}
        self._pass: PassTensors | None = None
        self._planned: set[_Kind] = set()  # for that pass

    def takes(self, pass_: PassTensors) -> bool:
        return pass_.longest_chunk > 1

    def attend(
        self, q: Tensor, cached: LayerKV, scale: float, window: int, soft_cap: float, pass_: PassTensors, out: Tensor
    ) -> None:
        queries = heads(q, cached)
        kv_heads, head_dim = cached.keys.shape[2:]
        kind = _Kind(cached.group, queries.shape[1], kv_heads, head_dim, scale, window, soft_cap)
        if self._pass is not pass_:
            self._pass, self._planned = pass_, set()
        if kind not in self._planned:
            self._plan(kind, pass_, q.dtype)
            self._planned.add(kind)
        self._wrappers[kind].run(queries, (cached.keys, cached.values), out=out.view(queries.shape))

    def _plan(self, kind: _Kind, pass_: PassTensors, act: torch.dtype) -> None:
        if kind not in self._wrappers:
            self._wrappers[kind] = self._module.BatchPrefillWithPagedKVCacheWrapper(self._workspace, "NHD")
        if (copied := self._copied.get(kind)) is not None:
            copied.synchronize()  # the plan before this one may not have left the host's memory yet
        layout = pass_.layout
        assert layout is not None, "passes of slots have it"
        lengths = layout.context_len + layout.lengths
        pages = -(-lengths // pass_.block_size)
        starts = np.concatenate([np.zeros(1, np.int32), np.cumsum(pages, dtype=np.int32)])
        self._wrappers[kind].plan(
            torch.from_numpy(layout.query_start),
            torch.from_numpy(starts),
            _page_numbers(kind.group, starts, pages, pass_),
            torch.from_numpy((lengths - (pages - 1) * pass_.block_size).astype(np.int32)),
            kind.heads,
            kind.kv_heads,
            kind.head_dim,
            pass_.block_size,
            causal=True,
            sm_scale=kind.scale,
            window_left=kind.window - 1,  # how many before, itself not counted; -1 is all
            logits_soft_cap=kind.soft_cap,
            q_data_type=act,
            kv_data_type=act,
        )
        if self._workspace.device.type == "cuda":
            event = self._copied.setdefault(kind, torch.cuda.Event())  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self._workspace.device))


def _page_numbers(group: int, starts: np.ndarray, pages: np.ndarray, pass_: PassTensors) -> Tensor:
    """int32[all pages], chunk by chunk, of tables that only the device has."""
    chunk_of = np.repeat(np.arange(len(pages), dtype=np.int32), pages)
    places = np.arange(starts[-1], dtype=np.int32) - starts[chunk_of]
    indices = torch.from_numpy(np.stack([chunk_of, places]))
    if pass_.rows.device.type == "cuda":
        indices = indices.pin_memory()
    chunk, place = indices.to(pass_.rows.device, non_blocking=True).long()
    return pass_.block_tables[group, pass_.rows.long()[chunk], place]
