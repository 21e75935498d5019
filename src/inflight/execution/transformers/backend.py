"""The backend of torch's modules: the paged cache in torch's memory, slots and sampling as on any host.

Knows blocks and passes; what is between tokens and logits, the decoder asks the modules for. Logits are sampled by the
native kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from inflight.core.types.plan import Chunk
from inflight.execution.backends.host import HostBackend, HostPass
from inflight.execution.backends.native import NativeBackend
from inflight.execution.backends.protocol import (
    Array,
    DType,
    KVCache,
    KVShape,
    SampledBatch,
    SamplingBatch,
    ScoredBatch,
)
from inflight.execution.batch.input_batch import InputBatch
from inflight.execution.batch.pass_layout import PassInputs
from inflight.execution.transformers.attention import LayerShape, PagedAttention, TorchKVCache


@dataclass(frozen=True, slots=True)
class Rows:
    """An activation: rows of numbers that the decoder has just computed."""

    array: Array

    @property
    def nbytes(self) -> int:
        return int(self.array.nbytes)


class TransformersPass(HostPass):
    """paged: where attention finds the pass's chunks."""

    def __init__(
        self,
        backend: TransformersBackend,
        inputs: PassInputs,
        kv_cache: TorchKVCache,
        batch: InputBatch,
        chunks: Sequence[Chunk],
    ) -> None:
        super().__init__(backend, inputs, batch, chunks)
        self.token_ids = torch.from_numpy(inputs.token_ids).long()
        self.positions = torch.from_numpy(inputs.metadata.positions).long()
        self.paged = PagedAttention(kv_cache, inputs.metadata)


class TransformersBackend(HostBackend[TransformersPass]):
    batch_invariant = False  # products are PyTorch's

    def __init__(self, dtype: DType, threads: int, kept: Sequence[LayerShape]) -> None:
        """kept: what each layer keeps of a token."""
        self.name = f"torch {torch.__version__}, modules of transformers"
        self.dtype: DType = dtype
        self.threads = threads
        self._kept = kept
        self._torch_dtype = getattr(torch, dtype)
        self._sampler = NativeBackend("float32", threads)

    def bytes_per_block(self, shape: KVShape) -> int:
        return shape.block_size * int(self._torch_dtype.itemsize) * sum(one.elements for one in self._kept)

    def kv_cache(self, shape: KVShape, num_blocks: int, host_blocks: int = 0) -> TorchKVCache:
        return TorchKVCache(shape, self._kept, num_blocks + host_blocks, self._torch_dtype)

    def copy_blocks(self, kv_cache: KVCache, sources: Sequence[int], destinations: Sequence[int]) -> None:
        assert isinstance(kv_cache, TorchKVCache)
        kv_cache.copy(sources, destinations)

    def activation_of(self, array: Array) -> Rows:
        return Rows(array)

    def forward_pass(
        self, inputs: PassInputs, kv_cache: Any, batch: InputBatch, chunks: Sequence[Chunk]
    ) -> TransformersPass:
        return TransformersPass(self, inputs, kv_cache, batch, chunks)

    def sample(self, logits: Array, batch: SamplingBatch) -> SampledBatch:
        return self._sampler.sample(logits, batch)

    def score(self, logits: Array, token_ids: Array, top_logprobs: Array) -> ScoredBatch:
        return self._sampler.score(logits, token_ids, top_logprobs)
