"""The KV cache in numpy: keys and values of all layers, in blocks of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from inflight.execution.backends.protocol import Array, KVLayer, KVShape
from inflight.execution.ops.numpy_pass import Act, CachedLayer, CachedVectors


@dataclass(slots=True)
class ReferenceKVCache:
    """memory: uint8[blocks, bytes of a block]. Of a layer a block has, from the layer's offset on, keys [B, G, D],
    then values; quantized, the scales of keys [B, G], then those of values."""

    shape: KVShape
    num_blocks: int
    act: Act
    memory: Array = field(init=False)
    _layers: list[CachedLayer | None] = field(init=False)

    def __post_init__(self) -> None:
        offsets, block_bytes = self.shape.layout(_item(self.shape, self.act).itemsize)
        self.memory = np.zeros((self.num_blocks, block_bytes), np.uint8)
        self._layers = [
            None if layer is None else self._views(layer, offset)
            for layer, offset in zip(self.shape.layers, offsets, strict=True)
        ]

    @property
    def nbytes(self) -> int:
        return int(self.memory.nbytes)

    def layer(self, layer: int) -> CachedLayer:
        """Return a layer's keys and values. Raises ValueError for a layer that has none in blocks."""
        self.shape.of(layer)
        found = self._layers[layer]
        assert found is not None
        return found

    def copy(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Copy whole blocks, in order."""
        for source, destination in zip(sources, destinations, strict=True):
            self.memory[destination] = self.memory[source]

    def _views(self, layer: KVLayer, keys: int) -> CachedLayer:
        """keys: where in a block they begin."""
        heads, size = self.shape.block_size * layer.kv_heads, _item(self.shape, self.act).itemsize
        values = keys + heads * layer.key_dim * size
        scales = values + heads * layer.value_dim * size
        return CachedLayer(
            layer.group,
            self._vectors(layer, layer.key_dim, keys, scales),
            self._vectors(layer, layer.value_dim, values, scales + 4 * heads) if layer.value_dim else None,
        )

    def _vectors(self, layer: KVLayer, width: int, numbers: int, scales: int) -> CachedVectors:
        """numbers, scales: where in a block they begin."""
        sizes = (self.num_blocks, self.shape.block_size, layer.kv_heads)
        return CachedVectors(
            self._view((*sizes, width), _item(self.shape, self.act), numbers),
            self._view(sizes, np.dtype(np.float32), scales) if self.shape.quantized else None,
            self.act,
        )

    def _view(self, sizes: tuple[int, ...], item: np.dtype[Any], offset: int) -> Array:
        """[blocks, …], of every block from the same byte on."""
        within = [int(np.prod(sizes[axis + 1 :])) * item.itemsize for axis in range(1, len(sizes))]
        return np.ndarray(sizes, item, self.memory, offset, (self.memory.shape[1], *within))


def bytes_per_block(shape: KVShape, act: Act) -> int:
    return shape.layout(_item(shape, act).itemsize)[1]


def _item(shape: KVShape, act: Act) -> np.dtype[Any]:
    return np.dtype(np.int8) if shape.quantized else act.item
