"""One recurrent layer for tests of its operations: states of rows, chunks that go on from them, numbers to run over.

Knows a backend's operations on arrays, as those of the reference and the native one are reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from inflight.core.types.plan import Capacity
from inflight.execution.backends.protocol import KVShape, LayerState, StateMetadata
from inflight.execution.batch.input_batch import InputBatch
from inflight.execution.batch.pass_layout import PassInputs

from .material import OnArrays, OneByOne, act, metadata_of, normal, read

ROWS, SNAPSHOTS = 5, 3
# Channels of more than one piece; heads whose numbers fill neither steps nor panels, and panels that end between two.
WIDE = LayerState(3, 300, 0, 0, 0)
HEADS = [LayerState(3, 2 * 2 * 18 + 4 * 20, 4, 18, 20), LayerState(2, 2 * 3 * 16 + 3 * 48, 3, 16, 48)]
KEY_HEADS = {HEADS[0]: 2, HEADS[1]: 3}
Run = tuple[int, int, int]  # row, start, length


class Layer:
    """One recurrent layer, the second of a model, and the sequences whose states live in its rows."""

    def __init__(self, ops: OnArrays, state: LayerState) -> None:
        self.backend, self.state, self.dtype = ops.backend, state, ops.dtype
        self.cache = self.backend.state_cache([None, state], ROWS + 1, SNAPSHOTS)
        capacity = Capacity(1, 16, ROWS, 4096, 1, state_snapshots=SNAPSHOTS)
        self._slots = InputBatch(capacity, 0, self.cache)
        self._kv = self.backend.kv_cache(KVShape.uniform(1, 16, 1, 32), 300)

    def over(self, runs: Sequence[Run], snapshots: Sequence[Sequence[tuple[int, int]]] = ()) -> Any:
        metadata = metadata_of([(start, count, list(range(-(-(start + count) // 16)))) for _, start, count in runs])
        due = [tuple(one) for one in snapshots] or [()] * len(runs)
        entries = np.array([entry for one in due for entry in one], np.int32).reshape(-1, 2)
        states = StateMetadata(
            np.array([row for row, _, _ in runs], np.int32),
            np.cumsum([0, *map(len, due)]).astype(np.int32),
            np.ascontiguousarray(entries[:, 0]),
            np.ascontiguousarray(entries[:, 1]),
        )
        none = np.zeros(0, np.int32)
        inputs = PassInputs(none, none, np.zeros(len(metadata.positions), np.int32), metadata, states)
        return OneByOne(self.backend, self.backend.forward_pass(inputs, self._kv, self._slots, ()))

    def convolve(self, runs: Sequence[Run], x: np.ndarray, **more: Any) -> np.ndarray:
        out = np.full((len(x), self.state.channels), np.nan, np.float32)
        on, weight = self.backend.activation_of, normal(7, 4 * self.state.channels)[: self._taps]
        self.over(runs, **more).convolve(on(x), 1, self.backend.pack_vector(weight), on(out))
        return out

    def convolve_gated(self, runs: Sequence[Run], x: np.ndarray, bias: bool = True, **more: Any) -> np.ndarray:
        out, on = act(self.dtype, len(x), self.state.channels), self.backend.activation_of
        weight, pack = normal(7, 4 * self.state.channels)[: self._taps], self.backend.pack_vector
        added = pack(normal(8, self.state.channels)) if bias else None
        self.over(runs, **more).convolve_gated(on(x), 1, pack(weight), added, on(out))
        return read(self.dtype, out)

    def delta(self, runs: Sequence[Run], x: np.ndarray, **more: Any) -> np.ndarray:
        """x: of each token the numbers that the operation reads, side by side."""
        state, on, pack = self.state, self.backend.activation_of, self.backend.pack_vector
        inner, heads = state.heads * state.value_dim, state.heads
        parts = np.split(x, np.cumsum([state.channels, state.channels + inner]), axis=1)
        qkv, projected, gates = (np.ascontiguousarray(one) for one in parts)
        out = act(self.dtype, len(x), inner)
        self.over(runs, **more).delta_rule(
            on(qkv),
            on(projected),
            on(gates),
            1,
            KEY_HEADS[state],
            pack(-np.exp(normal(1, heads))),
            pack(normal(2, heads)),
            pack(1 + 0.1 * normal(3, state.value_dim)),
            1e-6,
            on(out),
        )
        return read(self.dtype, out)

    @property
    def _taps(self) -> int:
        return (self.state.inputs + 1) * self.state.channels


def numbers(state: LayerState, operation: str, seed: int, tokens: int) -> np.ndarray:
    inner = state.heads * state.value_dim
    width = {
        "convolve": state.channels + 20,
        "convolve_gated": 3 * state.channels,
        "delta": 2 * state.channels + inner + 2 * state.heads,
    }[operation]
    return normal(seed, tokens, width)
