"""Operations of a pass with packed weights (`protocol.ProductOperations`): activations become tensors, and the device's
are called."""

from __future__ import annotations

from inflight.execution.backends.protocol import Nonlinearity
from inflight.execution.backends.torch.memory import DeviceActivation
from inflight.execution.backends.torch.operations import DeviceOperations
from inflight.execution.backends.torch.weights import DeviceExperts, DeviceGateUp, DeviceHeads, DeviceLinear


class ProductOperations:
    def __init__(self, operations: DeviceOperations):
        self._operations = operations

    def linear(self, x: DeviceActivation, weight: DeviceLinear, out: DeviceActivation) -> None:
        self._operations.linear(x.written, weight, out.take(x.rows))

    def linear_act(
        self, x: DeviceActivation, weight: DeviceLinear, activation: Nonlinearity, out: DeviceActivation
    ) -> None:
        self._operations.linear_act(x.written, weight, activation, out.take(x.rows))

    def linear_residual(self, x: DeviceActivation, weight: DeviceLinear, out: DeviceActivation) -> None:
        self._operations.linear_residual(x.written, weight, out.written)

    def gate_up(
        self, x: DeviceActivation, weight: DeviceGateUp, out: DeviceActivation, activation: Nonlinearity = "silu"
    ) -> None:
        self._operations.gate_up(x.written, weight, activation, out.take(x.rows))

    def experts(
        self, x: DeviceActivation, logits: DeviceActivation, weight: DeviceExperts, out: DeviceActivation
    ) -> None:
        self._operations.experts(x.written, logits.written, weight, out.written)

    def by_head(self, x: DeviceActivation, weight: DeviceHeads, out: DeviceActivation) -> None:
        self._operations.by_head(x.written, weight, out.take(x.rows))
