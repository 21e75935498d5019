"""Products of a pass some of whose rows have adapters (`protocol.adapters`): the device's operations, and beside them
what each adapter adds to its own rows, one adapter after the other.

Knows which rows have which adapter. Passes without any know nothing of this, and passes with some are not replayed as
graphs: which rows they are differs from step to step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from inflight.execution.backends.packed_adapter import AdapterPart
from inflight.execution.backends.protocol import Nonlinearity
from inflight.execution.backends.row_settings import AdaptedRows
from inflight.execution.backends.torch.memory import DeviceActivation
from inflight.execution.backends.torch.operations import DeviceOperations
from inflight.execution.backends.torch.pass_products import ProductOperations
from inflight.execution.backends.torch.weights import DeviceGateUp, DeviceLinear

_Parts = list[AdapterPart[DeviceLinear]]


class AdaptedProducts(ProductOperations):
    """Of rows with an adapter a function is applied to sums that are formed anew, apart from those of other rows."""

    def __init__(self, operations: DeviceOperations, adapted: Sequence[AdaptedRows]) -> None:
        super().__init__(operations)
        self._adapted = adapted

    def linear(self, x: DeviceActivation, weight: DeviceLinear, out: DeviceActivation) -> None:
        super().linear(x, weight, out)
        self._add(x, weight, out)

    def linear_residual(self, x: DeviceActivation, weight: DeviceLinear, out: DeviceActivation) -> None:
        super().linear_residual(x, weight, out)
        self._add(x, weight, out)

    def linear_act(
        self, x: DeviceActivation, weight: DeviceLinear, activation: Nonlinearity, out: DeviceActivation
    ) -> None:
        super().linear_act(x, weight, activation, out)
        for rows, parts in self._parts(weight):
            sums = self._sums(x.written[rows], weight, parts)
            self._operations.activate(sums, activation, None, None, out.written[rows])

    def gate_up(
        self, x: DeviceActivation, weight: DeviceGateUp, out: DeviceActivation, activation: Nonlinearity = "silu"
    ) -> None:
        super().gate_up(x, weight, out, activation)
        for rows, parts in self._parts(weight):
            gate, up = self._sums(x.written[rows], weight.both, parts).chunk(2, dim=1)
            self._operations.activate(gate.contiguous(), activation, None, up.contiguous(), out.written[rows])

    def _parts(self, weight: DeviceLinear | DeviceGateUp) -> list[tuple[slice, _Parts]]:
        return [(rows, parts) for rows, adapter in self._adapted if (parts := adapter.of(weight))]

    def _add(self, x: DeviceActivation, weight: DeviceLinear, out: DeviceActivation) -> None:
        for rows, parts in self._parts(weight):
            for part in parts:
                out.written[rows, part.first : part.first + part.up.rows] += self._delta(x.written[rows], part)

    def _sums(self, x: Tensor, weight: DeviceLinear, parts: _Parts) -> Tensor:
        """x act[S, K] → float32[S, N], with what is added."""
        sums = self._product(x, weight)
        for part in parts:
            sums[:, part.first : part.first + part.up.rows] += self._delta(x, part)
        return sums

    def _delta(self, x: Tensor, part: AdapterPart[DeviceLinear]) -> Tensor:
        return self._product(self._product(x, part.down).to(x.dtype), part.up)

    def _product(self, x: Tensor, weight: DeviceLinear) -> Tensor:
        out = torch.empty((len(x), weight.rows), dtype=torch.float32, device=x.device)
        self._operations.linear(x, weight, out)
        return out
