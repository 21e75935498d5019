"""A recurrent layer whose states are tensors, and its operations: by kernels or by definitions, of the same chunks and
numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from inflight.execution import ops
from inflight.execution.backends.protocol import LayerState
from inflight.execution.backends.torch.tensors import LayerStates, PassTensors, StateTensors

from ..material import normal
from ..recurrent import KEY_HEADS, ROWS, SNAPSHOTS, Run
from .launched import LAYER, Given


class TensorLayer:
    """by: `launch` or `define`. States begin as NaN: no zero is there by chance. Arrays come and go as float32."""

    def __init__(
        self, by: Callable[..., None], state: LayerState, act: torch.dtype, device: str | torch.device = "cpu"
    ) -> None:
        self._by, self.state, self._act, self._device = by, state, act, device
        count = ROWS + 1 + SNAPSHOTS
        self.states = LayerStates(
            torch.full((count, state.inputs, state.channels), torch.nan, dtype=act, device=device),
            torch.full((count, state.heads, state.key_dim, state.value_dim), torch.nan, device=device),
        )

    def begin(self, row: int, snapshot: int) -> None:
        for one in self.states:
            one[row] = one[ROWS + 1 + snapshot]

    def convolve(self, runs: Sequence[Run], x: np.ndarray, **more: Any) -> np.ndarray:
        out = self._garbage(len(x), self.state.channels, torch.float32)
        self._by(ops.convolve, self._pass(runs, **more), self._on(x), LAYER, self._weight, out)
        return _read(out)

    def convolve_gated(self, runs: Sequence[Run], x: np.ndarray, bias: bool = True, **more: Any) -> np.ndarray:
        out = self._garbage(len(x), self.state.channels, self._act)
        added = self._on(normal(8, self.state.channels)) if bias else None
        self._by(ops.convolve_gated, self._pass(runs, **more), self._on(x), LAYER, self._weight, added, out)
        return _read(out)

    def delta(self, runs: Sequence[Run], x: np.ndarray, **more: Any) -> np.ndarray:
        state = self.state
        inner, heads = state.heads * state.value_dim, state.heads
        qkv, projected, gates = map(self._on, np.split(x, np.cumsum([state.channels, state.channels + inner]), axis=1))
        out = self._garbage(len(x), inner, self._act)
        vectors = -np.exp(normal(1, heads)), normal(2, heads), 1 + 0.1 * normal(3, state.value_dim)
        of_layer = LAYER, KEY_HEADS[state], *map(self._on, vectors), 1e-6
        self._by(ops.delta_rule, self._pass(runs, **more), qkv, projected, gates, *of_layer, out)
        return _read(out)

    @property
    def _weight(self) -> Tensor:
        return self._on(normal(7, 4 * self.state.channels)[: (self.state.inputs + 1) * self.state.channels])

    def _pass(self, runs: Sequence[Run], snapshots: Sequence[Sequence[tuple[int, int]]] = ()) -> Given:
        """snapshots: (position, slot) of each run."""
        due = [list(one) for one in snapshots] or [[] for _ in runs]
        entries = [entry for one in due for entry in one]
        pass_ = PassTensors(
            token_ids=self._whole([0] * sum(count for _, _, count in runs)),
            positions=self._whole([at for _, start, count in runs for at in range(start, start + count)]),
            chunk_of=self._whole([chunk for chunk, (_, _, count) in enumerate(runs) for _ in range(count)]),
            rows=self._whole([row for row, _, _ in runs]),
            query_start=self._whole(np.cumsum([0, *(count for _, _, count in runs)])),
            context_len=self._whole([start for _, start, _ in runs]),
            block_tables=self._whole(np.zeros((1, ROWS + 1, 1))),
            block_size=16,
            longest_chunk=max(count for _, _, count in runs),
            longest_context=max(start + count for _, start, count in runs),
        )
        moves = StateTensors(
            self._whole(np.cumsum([0, *map(len, due)])),
            self._whole([position for position, _ in entries]),
            self._whole([ROWS + 1 + slot for _, slot in entries]),
        )
        return Given(pass_, states=self.states, moves=moves, act=self._act)

    def _garbage(self, rows: int, width: int, kind: torch.dtype) -> Tensor:
        return torch.full((rows, width), torch.nan, dtype=kind, device=self._device)

    def _on(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device)

    def _whole(self, values: Any) -> Tensor:
        return torch.tensor(np.asarray(values), dtype=torch.int32, device=self._device)


def _read(out: Tensor) -> np.ndarray:
    return out.float().cpu().numpy()
