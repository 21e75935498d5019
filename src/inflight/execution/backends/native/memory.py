"""Layouts, sizes and states of layers' memory, as the compiled module takes them.

Knows how shapes become tuples; the module owns the memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inflight.execution.backends.protocol import KVShape, LayerState


class NativeStates:
    """held: the module's."""

    def __init__(self, kernels: Any, held: Any) -> None:
        self._kernels, self.held = kernels, held

    @property
    def nbytes(self) -> int:
        return int(self.held.nbytes)

    @property
    def snapshot_memory(self) -> memoryview:
        held = self.held
        memory: memoryview = held.memory.cast("B")
        return memory[int(held.nbytes) // (held.rows + held.snapshots) * held.rows :]

    def begin(self, row: int, snapshot: int) -> None:
        self._kernels.begin_state(self.held, row, snapshot)


def laid_out(shape: KVShape) -> tuple[int, bool, list[tuple[int, int, int, int]]]:
    """As the module takes it; a layer without a place has no heads."""
    layers = [one and (one.group, one.kv_heads, one.key_dim, one.value_dim) for one in shape.layers]
    return shape.block_size, shape.quantized, [one or (0, 0, 0, 0) for one in layers]


def state_sizes(layers: Sequence[LayerState | None]) -> list[tuple[int, ...]]:
    found = [one or LayerState(0, 0) for one in layers]
    return [(one.inputs, one.channels, one.heads, one.key_dim, one.value_dim) for one in found]
