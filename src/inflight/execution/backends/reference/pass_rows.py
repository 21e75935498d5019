"""Operations of a pass on numbers one by one or row by row (`protocol.RowOperations`).

Knows activations and the pass's tokens; the formulas are in `functions` and `norms`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inflight.execution.backends.grouped import HeldMatrix
from inflight.execution.backends.matrices import Int8Matrix
from inflight.execution.backends.protocol import Array, Nonlinearity
from inflight.execution.backends.reference.act import Act
from inflight.execution.backends.reference.activation import ReferenceActivation
from inflight.execution.backends.reference.functions import activated, sigmoid, soft_capped, times_sigmoid
from inflight.execution.backends.reference.norms import layer_normed, parts_normed, rms_normed
from inflight.execution.backends.reference.weights import ReferenceTable
from inflight.execution.batch.pass_layout import PassInputs


class RowOperations:
    def __init__(self, act: Act, inputs: PassInputs):
        self._act, self._token_ids, self._inputs = act, inputs.token_ids, inputs

    def embed(self, table: ReferenceTable, out: ReferenceActivation) -> None:
        ids, weight = self._token_ids, table.weight
        if isinstance(weight, Int8Matrix):
            held = (ids[:, None] * table.shares + np.arange(table.shares)).ravel()
            rows = weight.values[held].astype(np.float32) * weight.scales[held]
            out.write(rows.reshape(len(ids), table.columns))
        elif isinstance(weight, HeldMatrix):
            out.write(weight.rows(ids))
        else:
            out.write(self._act.read(weight[ids]))

    def gather(self, x: ReferenceActivation, places: Sequence[int], out: ReferenceActivation) -> None:
        out.write(x.written[list(places)])

    def clear(self, out: ReferenceActivation) -> None:
        out.write(np.zeros((len(self._token_ids), out.width), np.float32))

    def to_act(self, x: ReferenceActivation, out: ReferenceActivation) -> None:
        out.write(self._act.hold(x.written))

    def add_positions(self, table: ReferenceTable, first: int, out: ReferenceActivation) -> None:
        self._add_rows(table, self._inputs.metadata.positions + first, out)

    def add_token_types(self, table: ReferenceTable, out: ReferenceActivation) -> None:
        self._add_rows(table, self._inputs.token_types(), out)

    def _add_rows(self, table: ReferenceTable, rows: Array, out: ReferenceActivation) -> None:
        assert isinstance(table.weight, np.ndarray)
        out.written[:] += self._act.read(table.weight[rows])

    def mean(self, x: ReferenceActivation, ranges: Sequence[range], out: ReferenceActivation) -> None:
        out.write(np.stack([x.written[one.start : one.stop].mean(axis=0, dtype=np.float64) for one in ranges]))

    def rms_norm(self, x: ReferenceActivation, weight: Array, eps: float, out: ReferenceActivation) -> None:
        self._write(rms_normed(x.written, weight, eps), out)

    def layer_norm(
        self, x: ReferenceActivation, weight: Array, bias: Array | None, eps: float, out: ReferenceActivation
    ) -> None:
        self._write(layer_normed(x.written, weight, bias, eps), out)

    def layer_norm_sum(
        self, x: ReferenceActivation, weight: Array, bias: Array | None, eps: float, out: ReferenceActivation
    ) -> None:
        x.written[:] = layer_normed(x.written, weight, bias, eps)
        out.write(self._act.hold(x.written))

    def add(
        self, x: ReferenceActivation, norm: Array | None, eps: float, factor: float, out: ReferenceActivation
    ) -> None:
        out.written[:] += np.float32(factor) * parts_normed(x.written, norm, eps)

    def scale(self, x: ReferenceActivation, factor: float) -> None:
        x.written[:] *= np.float32(factor)

    def soft_cap(self, x: ReferenceActivation, cap: float) -> None:
        x.written[:] = soft_capped(x.written, cap)

    def activate(
        self,
        x: ReferenceActivation,
        activation: Nonlinearity,
        out: ReferenceActivation,
        parameters: Array | None = None,
        by: ReferenceActivation | None = None,
        first: int = 0,
    ) -> None:
        found = activated(x.written, activation, parameters)
        self._write(found if by is None else found * by.written[:, first : first + x.width], out)

    def add_gated(self, x: ReferenceActivation, gate: ReferenceActivation, out: ReferenceActivation) -> None:
        out.written[:] += times_sigmoid(x.written, gate.written)

    def gate(self, gate: ReferenceActivation, x: ReferenceActivation) -> None:
        x.write(self._act.hold(self._act.read(x.written) * sigmoid(gate.written)))

    def _write(self, values: Array, out: ReferenceActivation) -> None:
        """As they are held there."""
        out.write(values if out.is_float32 else self._act.hold(values))
