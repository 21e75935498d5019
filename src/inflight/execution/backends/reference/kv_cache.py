"""The KV cache: keys and values of all layers, in blocks of bytes.

Knows where in a block a layer's numbers lie, and how `act` becomes what is held there: itself, or int8 with a scale for
each position and head. Whose blocks they are is known to block tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from inflight.execution.backends import int8
from inflight.execution.backends.protocol import Array, KVLayer, KVShape
from inflight.execution.backends.reference.act import Act

Slots = tuple[Array, Array]  # of positions: their blocks, and their places in these


def slots_of(positions: Array, table: Array, block_size: int) -> Slots:
    """Where positions of a sequence lie: p in block table[p // B], at p % B."""
    return table[positions // block_size], positions % block_size


@dataclass(frozen=True, slots=True)
class HeldVectors:
    """One layer's keys or values, views of the blocks: [blocks, B, G, D] of `act`, or of int8 with scales [blocks, B,
    G]."""

    numbers: Array
    scales: Array | None
    act: Act

    def write(self, at: Slots, x: Array) -> None:
        """act[N, G, D] → slots."""
        if self.scales is None:
            self.numbers[at] = x
        else:
            whole, scales = int8.quantize(self.act.read(x).reshape(-1, x.shape[-1]))
            self.numbers[at], self.scales[at] = whole.reshape(x.shape), scales.reshape(x.shape[:-1])

    def read(self, at: Slots) -> Array:
        """float32[G, N, D] of what was written."""
        x = self.numbers[at]
        meant = self.act.read(x) if self.scales is None else x.astype(np.float32) * self.scales[at][..., None]
        return meant.transpose(1, 0, 2)


@dataclass(slots=True)
class ReferenceKVCache:
    """memory: uint8[blocks, bytes of a block]. Of a layer a block holds, from the layer's offset on, keys [B, G, D],
    then values; quantized, the scales of keys [B, G], then those of values. keys: of each layer with a place; values:
    of each that keeps any."""

    shape: KVShape
    num_blocks: int
    act: Act
    memory: Array = field(init=False)
    keys: dict[int, HeldVectors] = field(init=False, default_factory=dict)
    values: dict[int, HeldVectors] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        offsets, block_bytes = _layout(self.shape, self.act)
        self.memory = np.zeros((self.num_blocks, block_bytes), np.uint8)
        item = _item(self.shape, self.act)
        for index, (layer, keys) in enumerate(zip(self.shape.layers, offsets, strict=True)):
            if layer is None:
                continue
            heads = self.shape.block_size * layer.kv_heads
            values = keys + heads * layer.key_dim * item.itemsize
            scales = values + heads * layer.value_dim * item.itemsize
            self.keys[index] = self._held(layer, layer.key_dim, keys, scales)
            if layer.value_dim:
                self.values[index] = self._held(layer, layer.value_dim, values, scales + 4 * heads)

    @property
    def nbytes(self) -> int:
        return int(self.memory.nbytes)

    def copy(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Whole blocks, in order."""
        for source, destination in zip(sources, destinations, strict=True):
            self.memory[destination] = self.memory[source]

    def _held(self, layer: KVLayer, width: int, numbers: int, scales: int) -> HeldVectors:
        """Where in a block they begin."""
        sizes = (self.num_blocks, self.shape.block_size, layer.kv_heads)
        return HeldVectors(
            self._view((*sizes, width), _item(self.shape, self.act), numbers),
            self._view(sizes, np.dtype(np.float32), scales) if self.shape.quantized else None,
            self.act,
        )

    def _view(self, sizes: tuple[int, ...], item: np.dtype[Any], offset: int) -> Array:
        """[blocks, …], of every block from the same place on."""
        within = [int(np.prod(sizes[axis + 1 :])) * item.itemsize for axis in range(1, len(sizes))]
        return np.ndarray(sizes, item, self.memory, offset, (self.memory.shape[1], *within))


def bytes_per_block(shape: KVShape, act: Act) -> int:
    return _layout(shape, act)[1]


def _layout(shape: KVShape, act: Act) -> tuple[list[int], int]:
    """Where each layer begins in a block, and the bytes of one."""
    return shape.offsets(partial(_place_bytes, shape, act))


def _place_bytes(shape: KVShape, act: Act, layer: KVLayer) -> int:
    scales = 4 * layer.kv_heads * (2 if layer.value_dim else 1) if shape.quantized else 0
    return shape.block_size * (layer.elements * _item(shape, act).itemsize + scales)


def _item(shape: KVShape, act: Act) -> np.dtype[Any]:
    return np.dtype(np.int8) if shape.quantized else act.item
