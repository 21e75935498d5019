"""Memory of recurrent layers in numpy: live states of request slots, and snapshots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from inflight.execution.backends.protocol import LayerState
from inflight.execution.ops.numpy_pass import Act, RecurrentStates


class ReferenceStates:
    """States of each layer: inputs act[states, inputs, channels], and matrices [states, heads, key_dim, value_dim];
    first those of rows, then of snapshots. They are views of uint8[states, bytes of a state], matrices first."""

    def __init__(self, layers: Sequence[LayerState | None], rows: int, snapshots: int, act: Act):
        of = [one or LayerState(0, 0) for one in layers]
        parts: list[tuple[tuple[int, ...], np.dtype[Any]]]
        parts = [((one.heads, one.key_dim, one.value_dim), np.dtype(np.float32)) for one in of]
        parts += [((one.inputs, one.channels), act.item) for one in of]
        ends = list(accumulate((math.prod(shape) * item.itemsize for shape, item in parts), initial=0))
        self.first_snapshot = rows
        self._memory = np.zeros((rows + snapshots, -(-ends[-1] // 4) * 4), np.uint8)
        views = [
            self._memory[:, start:end].view(item).reshape(rows + snapshots, *shape)
            for (shape, item), start, end in zip(parts, ends, ends[1:], strict=False)
        ]
        self.matrices, self.inputs = views[: len(of)], views[len(of) :]

    @property
    def nbytes(self) -> int:
        return self._memory.nbytes

    @property
    def snapshot_memory(self) -> memoryview:
        return self._memory[self.first_snapshot :].data.cast("B")

    def layer(self, layer: int) -> RecurrentStates:
        return RecurrentStates(self.inputs[layer], self.matrices[layer])

    def begin(self, row: int, snapshot: int) -> None:
        self._memory[row] = self._memory[self.first_snapshot + snapshot]
