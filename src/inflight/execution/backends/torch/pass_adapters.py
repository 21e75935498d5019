"""Products of a pass some of whose rows have adapters (`protocol.adapters`): the matrix's own sums of all rows, then
what each row's adapter adds to them, and only then what is made of sums.

Knows which matrices adapters change, in which order operations are asked for, and that rows of activations are those of
the pass; the rows' adapters are the operations' to look up. Passes without any adapter know nothing of this.
"""

from __future__ import annotations

import torch
from torch import Tensor

from inflight.execution.backends.protocol import Nonlinearity
from inflight.execution.backends.torch.adapted_matrix import AdaptedMatrix, AdapterRows
from inflight.execution.backends.torch.adapters import AdapterTables
from inflight.execution.backends.torch.memory import DeviceActivation
from inflight.execution.backends.torch.operations import DeviceOperations
from inflight.execution.backends.torch.pass_products import ProductOperations
from inflight.execution.backends.torch.weights import DeviceGateUp, DeviceLinear


class AdaptedProducts(ProductOperations):
    def __init__(self, operations: DeviceOperations, tables: AdapterTables, rows: AdapterRows) -> None:
        super().__init__(operations)
        self._tables, self._rows = tables, rows

    def linear(self, x: DeviceActivation, weight: DeviceLinear, out: DeviceActivation) -> None:
        super().linear(x, weight, out)
        self._add(x, weight, out)

    def linear_residual(self, x: DeviceActivation, weight: DeviceLinear, out: DeviceActivation) -> None:
        super().linear_residual(x, weight, out)
        self._add(x, weight, out)

    def linear_act(
        self, x: DeviceActivation, weight: DeviceLinear, activation: Nonlinearity, out: DeviceActivation
    ) -> None:
        if (adapted := self._tables.of(weight)) is None:
            return super().linear_act(x, weight, activation, out)
        sums = self._sums(x.written, weight, adapted)
        self._operations.activate(sums, activation, None, None, out.take(x.rows))

    def gate_up(
        self, x: DeviceActivation, weight: DeviceGateUp, out: DeviceActivation, activation: Nonlinearity = "silu"
    ) -> None:
        if (adapted := self._tables.of(weight)) is None:
            return super().gate_up(x, weight, out, activation)
        sums = self._sums(x.written, weight.both, adapted)
        self._operations.gate_both(sums, weight, activation, out.take(x.rows))

    def _add(self, x: DeviceActivation, weight: DeviceLinear, out: DeviceActivation) -> None:
        if (adapted := self._tables.of(weight)) is not None:
            self._operations.add_low_rank(x.written, adapted, self._rows, out.written)

    def _sums(self, x: Tensor, weight: DeviceLinear, adapted: AdaptedMatrix) -> Tensor:
        """x act[T, K] → float32[T, N], with what is added."""
        sums = torch.empty((len(x), weight.rows), dtype=torch.float32, device=x.device)
        self._operations.linear(x, weight, sums)
        self._operations.add_low_rank(x, adapted, self._rows, sums)
        return sums
