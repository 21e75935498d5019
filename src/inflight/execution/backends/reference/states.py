"""Memory of recurrent layers in numpy: live states of request slots, and state checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inflight.execution.backends.protocol import LayerState
from inflight.execution.ops.numpy_pass import Act, RecurrentStates


class ReferenceStates:
    """States of each layer: inputs act[states, inputs, channels], and matrices [states, heads, key_dim, value_dim];
    first those of rows, then of snapshots."""

    def __init__(self, layers: Sequence[LayerState | None], rows: int, snapshots: int, act: Act):
        count = rows + snapshots
        of = [one or LayerState(0, 0) for one in layers]
        self.first_snapshot = rows
        self.inputs = [np.zeros((count, one.inputs, one.channels), act.item) for one in of]
        self.matrices = [np.zeros((count, one.heads, one.key_dim, one.value_dim), np.float32) for one in of]

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in (*self.inputs, *self.matrices))

    def layer(self, layer: int) -> RecurrentStates:
        return RecurrentStates(self.inputs[layer], self.matrices[layer])

    def begin(self, row: int, snapshot: int) -> None:
        for one in (*self.inputs, *self.matrices):
            one[row] = one[self.first_snapshot + snapshot]
