"""Operations of a pass on the states of recurrent layers (`protocol.RecurrentOperations`): activations become tensors,
and the device's are called.

Knows which states are a layer's, and which ones chunks go on from and leave behind.
"""

from __future__ import annotations

from torch import Tensor

from inflight.execution.backends.torch.memory import DeviceActivation, DeviceStates
from inflight.execution.backends.torch.operations import DeviceOperations
from inflight.execution.backends.torch.tensors import LayerStates, PassTensors, StateTensors


class RecurrentOperations:
    def __init__(
        self,
        operations: DeviceOperations,
        tensors: PassTensors,
        held: DeviceStates | None,
        moves: StateTensors | None,
    ):
        """held, moves: of slots that keep states."""
        self._operations, self._tensors, self._held, self._moves = operations, tensors, held, moves

    def convolve(self, x: DeviceActivation, layer: int, weight: Tensor, out: DeviceActivation) -> None:
        states, moves = self._states(layer)
        self._operations.convolve(x.written, states, weight, self._tensors, moves, out.take(x.rows))

    def convolve_gated(
        self, x: DeviceActivation, layer: int, weight: Tensor, bias: Tensor | None, out: DeviceActivation
    ) -> None:
        states, moves = self._states(layer)
        self._operations.convolve_gated(x.written, states, weight, bias, self._tensors, moves, out.take(x.rows))

    def delta_rule(
        self,
        qkv: DeviceActivation,
        projected: DeviceActivation,
        gates: DeviceActivation,
        layer: int,
        key_heads: int,
        decay: Tensor,
        step_bias: Tensor,
        norm: Tensor,
        eps: float,
        out: DeviceActivation,
    ) -> None:
        states, moves = self._states(layer)
        self._operations.delta_rule(
            qkv.written,
            projected.written,
            gates.written,
            states,
            key_heads,
            decay,
            step_bias,
            norm,
            eps,
            self._tensors,
            moves,
            out.take(qkv.rows),
        )

    def _states(self, layer: int) -> tuple[LayerStates, StateTensors]:
        if self._held is None or self._moves is None:
            raise ValueError("the slots of this pass were made without states of recurrent layers")
        return self._held.layer(layer), self._moves
