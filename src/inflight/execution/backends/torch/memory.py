"""Memory on a device: activations, keys and values in blocks, states of recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from inflight.execution.backends.protocol import KVLayer, KVShape, LayerState
from inflight.execution.backends.torch.tensors import LayerKV, LayerStates


@dataclass(slots=True)
class DeviceActivation:
    """rows: those that were written last."""

    tensor: Tensor  # [capacity, width]
    rows: int = 0
    _view: tuple[int, Tensor] | None = None  # of so many rows: to make one takes longer than to launch a kernel

    @property
    def nbytes(self) -> int:
        return int(self.tensor.nbytes)

    @property
    def width(self) -> int:
        return int(self.tensor.shape[1])

    @property
    def written(self) -> Tensor:
        return self.take(self.rows)

    def take(self, rows: int) -> Tensor:
        """Return so many rows, to be written."""
        self.rows = rows
        if self._view is None or self._view[0] != rows:
            self._view = rows, self.tensor[:rows]
        return self._view[1]


class DeviceKVCache:
    """uint8[blocks, bytes of a block] on the device, and behind them, numbered on, blocks in host memory, pinned where
    there is a device beside it. Of a layer a block holds, from the layer's offset on, keys [B, G, D], then values [B,
    G, M]; quantized, the scales of keys [B, G], then those of values."""

    def __init__(
        self, shape: KVShape, num_blocks: int, act: torch.dtype, device: torch.device, host_blocks: int = 0
    ) -> None:
        self.shape, self.num_blocks, self.device_blocks = shape, num_blocks + host_blocks, num_blocks
        offsets, block_bytes = shape.layout(_item(shape, act).itemsize)
        self._memory = torch.zeros((num_blocks, block_bytes), dtype=torch.uint8, device=device)
        self._host = torch.zeros((host_blocks, block_bytes), dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._layers = [
            None if layer is None else self._views(layer, offset, _item(shape, act))
            for layer, offset in zip(shape.layers, offsets, strict=True)
        ]

    @property
    def nbytes(self) -> int:
        return int(self._memory.nbytes + self._host.nbytes)

    def layer(self, layer: int) -> LayerKV:
        """Return a layer's keys and values. Raises ValueError for a layer that has none in blocks."""
        self.shape.of(layer)
        found = self._layers[layer]
        assert found is not None
        return found

    def host_memory(self) -> memoryview | None:
        """Return the memory of all blocks, where they lie in one piece of the host's memory; None otherwise."""
        if self._memory.device.type != "cpu" or len(self._host):
            return None
        return self._memory.numpy().data.cast("B")

    def host_blocks_memory(self) -> memoryview:
        """Return the memory of the host's blocks."""
        return self._host.numpy().data.cast("B")

    def copies(self, sources: Sequence[int], destinations: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
        """Target and source of each copy of whole blocks, in order: neighbours that go to neighbours in the other
        memory at once."""
        for source, destination, count in self._runs(sources, destinations):
            yield self._at(destination, count), self._at(source, count)

    def _runs(self, sources: Sequence[int], destinations: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        first, end = 0, len(sources)
        while first < end:
            source, destination, count = sources[first], destinations[first], 1
            between = (source < self.device_blocks) != (destination < self.device_blocks)
            while (
                between
                and first + count < end
                and sources[first + count] == source + count != self.device_blocks
                and destinations[first + count] == destination + count != self.device_blocks
            ):
                count += 1
            yield source, destination, count
            first += count

    def _at(self, block: int, count: int) -> Tensor:
        if block < self.device_blocks:
            return self._memory[block : block + count]
        return self._host[block - self.device_blocks : block - self.device_blocks + count]

    def _views(self, layer: KVLayer, keys: int, item: torch.dtype) -> LayerKV:
        """keys: where in a block they begin."""
        sizes = (self.device_blocks, self.shape.block_size, layer.kv_heads)
        values = keys + math.prod(sizes[1:]) * layer.key_dim * item.itemsize
        scales = values + math.prod(sizes[1:]) * layer.value_dim * item.itemsize
        quantized, has_values = self.shape.quantized, layer.value_dim > 0
        of = partial(_view, self._memory)
        return LayerKV(
            layer.group,
            of(item, keys, (*sizes, layer.key_dim)),
            of(item, values, (*sizes, layer.value_dim)) if has_values else None,
            of(torch.float32, scales, sizes) if quantized else None,
            of(torch.float32, scales + 4 * math.prod(sizes[1:]), sizes) if quantized and has_values else None,
        )


def bytes_per_block(shape: KVShape, act: torch.dtype) -> int:
    return shape.layout(_item(shape, act).itemsize)[1]


def _item(shape: KVShape, act: torch.dtype) -> torch.dtype:
    if not shape.quantized:
        return act
    return torch.float8_e4m3fn if shape.is_fp8 else torch.int8


class DeviceStates:
    """uint8[states, bytes of a state]: of rows, then of snapshots. Of a layer a state holds, from the layer's offset
    on, the matrices [H, key_dim, value_dim], then the kept inputs [K - 1, C]."""

    def __init__(
        self, layers: Sequence[LayerState | None], rows: int, snapshots: int, act: torch.dtype, device: torch.device
    ) -> None:
        self.first_snapshot = rows
        self._memory = torch.zeros((rows + snapshots, bytes_per_state(layers, act)), dtype=torch.uint8, device=device)
        self._layers: list[LayerStates | None] = []
        offset, count = 0, rows + snapshots
        for one in layers:
            self._layers.append(None if one is None else self._views(one, count, offset, act))
            offset += 0 if one is None else _state_bytes(one, act)

    @property
    def nbytes(self) -> int:
        return int(self._memory.nbytes)

    def beside(self, snapshots: int) -> Tensor:
        """Allocate uint8[snapshots, bytes of a state] in host memory, pinned where the device has memory of its own."""
        memory = self._memory
        return torch.zeros((snapshots, memory.shape[1]), dtype=torch.uint8, pin_memory=memory.device.type == "cuda")

    def snapshot(self, number: int, beside: Tensor) -> Tensor:
        """Return a snapshot: one of the device, or, numbered behind these, of the host memory `beside`."""
        at = self.first_snapshot + number
        return self._memory[at] if at < len(self._memory) else beside[at - len(self._memory)]

    @property
    def snapshot_memory(self) -> None:
        """Return None: they are in the device's memory."""

    def layer(self, layer: int) -> LayerStates:
        """Return a layer's states. Raises ValueError for a layer that has none."""
        found = self._layers[layer] if 0 <= layer < len(self._layers) else None
        if found is None:
            raise ValueError(f"layer {layer} keeps no recurrent state")
        return found

    def begin(self, row: int, snapshot: int) -> None:
        self._memory[row].copy_(self._memory[self.first_snapshot + snapshot])

    def _views(self, one: LayerState, count: int, offset: int, act: torch.dtype) -> LayerStates:
        inputs = offset + 4 * one.heads * one.key_dim * one.value_dim
        return LayerStates(
            _view(self._memory, act, inputs, (count, one.inputs, one.channels)),
            _view(self._memory, torch.float32, offset, (count, one.heads, one.key_dim, one.value_dim)),
        )


def bytes_per_state(layers: Sequence[LayerState | None], act: torch.dtype) -> int:
    return sum(_state_bytes(one, act) for one in layers if one is not None)


def _state_bytes(one: LayerState, act: torch.dtype) -> int:
    """Return the bytes of a state, padded so that the next one is aligned for vectors of 16 bytes."""
    exact = 4 * one.heads * one.key_dim * one.value_dim + one.inputs * one.channels * act.itemsize
    return -(-exact // 16) * 16


def _view(memory: Tensor, item: torch.dtype, offset: int, sizes: tuple[int, ...]) -> Tensor:
    """item[sizes] of uint8[sizes[0], bytes], of each line from the same byte on, contiguous behind the first size."""
    typed = memory.view(item)
    within = [math.prod(sizes[axis + 1 :]) for axis in range(1, len(sizes))]
    return typed.as_strided(sizes, (typed.shape[1], *within), offset // item.itemsize)
