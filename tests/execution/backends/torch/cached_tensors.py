"""Sequences whose keys and values stand in blocks on a device, and passes over chunks of them, with random numbers.

Knows how tensors lie; not what attention is. Sequence i holds the same numbers in the same blocks whatever chunks a
pass has, so that what is attended to alone and in company can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from inflight.execution.backends.torch.tensors import LayerKV, PassTensors

from ..material import Array, Blocks, normal

Held = Literal["act", "int8", "fp8"]
Chunk = tuple[int, int, int]  # sequence, start, length
_GROUP, _GROUPS = 1, 2  # of the layer; tables of the other lead nowhere
_BESIDE = 48  # numbers of other layers before and behind this one's in a block


@dataclass
class CachedTensors:
    """value_dim 0: values are the keys' first numbers. Numbers never written are NaN, as far as it can be."""

    lengths: list[int]
    kv_heads: int = 2
    key_dim: int = 16
    value_dim: int = 16
    held: Held = "act"
    act: torch.dtype = torch.float32
    block_size: int = 16
    device: str | torch.device = "cpu"
    meant: list[tuple[Array, Array]] = field(init=False, default_factory=list)  # float32[P, G, D], float32[P, G, M]

    def __post_init__(self) -> None:
        self._blocks = Blocks.shuffled(sum(-(-n // self.block_size) for n in self.lengths) + 3, 1)
        self._count = len(self._blocks.free)
        keys, values = self._empty()
        key_scales, value_scales = (None if one is None else self._empty_scales() for one in (keys, values))
        self.layer = LayerKV(_GROUP, keys, values, key_scales, value_scales)
        width = -(-max(self.lengths) // self.block_size) + 2
        self._tables = torch.full((_GROUPS, len(self.lengths) + 1, width), 1 << 30, dtype=torch.int32)
        self._tables[_GROUP, -1, 0] = self._blocks.take(1, self.block_size)[0]  # of the padding row
        for i, length in enumerate(self.lengths):
            blocks = self._blocks.take(length, self.block_size)
            self._tables[_GROUP, i, : len(blocks)] = torch.tensor(blocks)
            at = torch.tensor(blocks)[torch.arange(length) // self.block_size], torch.arange(length) % self.block_size
            of_keys = self._write(keys, key_scales, at, normal(100 + i, length, self.kv_heads, self.key_dim))
            of_values = of_keys
            if values is not None:
                of_values = self._write(
                    values, value_scales, at, normal(200 + i, length, self.kv_heads, self.value_dim)
                )
            self.meant.append((of_keys, of_values))

    def queries(self, chunks: list[Chunk], heads: int) -> Tensor:
        """act[T, H·D]; that of a position of a sequence is always the same."""
        width = heads * self.key_dim
        of = {i: normal(300 + i, self.lengths[i], width) for i, _, _ in chunks if i >= 0}
        rows = [of[i][start : start + count] if i >= 0 else normal(0, count, width) for i, start, count in chunks]
        return torch.from_numpy(np.concatenate(rows)).to(self.device, self.act)

    def over(self, chunks: list[Chunk], longest_context: int = 0) -> PassTensors:
        """Sequence -1 is the padding row. longest_context: at least that, as where a graph is captured."""
        counts = [count for _, _, count in chunks]
        return PassTensors(
            token_ids=self._whole([0] * sum(counts)),
            positions=self._whole([at for _, start, count in chunks for at in range(start, start + count)]),
            chunk_of=self._whole([chunk for chunk, count in enumerate(counts) for _ in range(count)]),
            rows=self._whole([i if i >= 0 else len(self.lengths) for i, _, _ in chunks]),
            query_start=self._whole(np.cumsum([0, *counts])),
            context_len=self._whole([start for _, start, _ in chunks]),
            block_tables=self._tables.to(self.device),
            block_size=self.block_size,
            longest_chunk=max(counts),
            longest_context=max(longest_context, *(start + count for _, start, count in chunks)),
        )

    def forget(self, sequence: int, blocks: int) -> None:
        """Its first blocks are given up: the table leads nowhere there."""
        self._tables[_GROUP, sequence, :blocks] = 1 << 30

    def table(self, sequence: int) -> Tensor:
        """int32[…], the blocks of a sequence."""
        return self._tables[_GROUP, sequence, : -(-self.lengths[sequence] // self.block_size)]

    def _empty(self) -> tuple[Tensor, Tensor | None]:
        """Keys and values, side by side in blocks that hold others, too."""
        kind = {"act": self.act, "int8": torch.int8, "fp8": torch.float8_e4m3fn}[self.held]
        vectors, dims = self.block_size * self.kv_heads, (self.key_dim, self.value_dim)
        size = vectors * sum(dims) + 2 * _BESIDE
        memory = torch.full((self._count, size), -77 if self.held == "int8" else torch.nan).to(self.device, kind)
        parts = memory[:, _BESIDE:-_BESIDE].split([vectors * dim for dim in dims], dim=1)
        keys, values = (
            part.unflatten(1, (self.block_size, self.kv_heads, dim)) if dim else None
            for part, dim in zip(parts, dims, strict=True)
        )
        assert keys is not None
        return keys, values

    def _empty_scales(self) -> Tensor | None:
        if self.held == "act":
            return None
        return torch.full((self._count, self.block_size, self.kv_heads), torch.nan, device=self.device)

    def _write(self, numbers: Tensor, scales: Tensor | None, at: tuple[Tensor, Tensor], x: Array) -> Array:
        """float32[P, G, …] → blocks; what they mean then."""
        tensor = torch.from_numpy(x)
        if scales is None:
            numbers[at] = tensor.to(numbers.dtype).to(self.device)
            return tensor.to(numbers.dtype).float().numpy()
        of = tensor.abs().amax(dim=2) / (127 if self.held == "int8" else 448)
        codes = tensor / of[..., None]
        codes = (codes.round() if self.held == "int8" else codes).to(numbers.dtype)
        numbers[at], scales[at] = codes.to(self.device), of.to(self.device)
        return (codes.float() * of[..., None]).numpy()

    def _whole(self, values: object) -> Tensor:
        return torch.tensor(np.asarray(values), dtype=torch.int32, device=self.device)
