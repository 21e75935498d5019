"""The gated MLP that every token passes."""

from __future__ import annotations

from dataclasses import dataclass

from inflight.execution.backends.protocol import Activation, ForwardPass, GateUp, Linear
from inflight.execution.layers.workspace import Part, Workspace
from inflight.execution.packer import Packer
from inflight.models.spec import Dense


@dataclass(frozen=True, slots=True)
class DenseWeights:
    spec: Dense
    gate_up: GateUp
    down: Linear

    @classmethod
    def load(cls, packer: Packer, spec: Dense, layer: int, name: str = "mlp") -> DenseWeights:
        """name: of the MLP within the layer."""
        at, hidden = f"model.layers.{layer}.{name}.", packer.model.hidden_size
        inward = (spec.width, hidden)
        return cls(
            spec=spec,
            gate_up=packer.gate_up((at + "gate_proj.weight", inward), (at + "up_proj.weight", inward)),
            down=packer.linear([(at + "down_proj.weight", (hidden, spec.width))]),
        )

    def bind(self, workspace: Workspace) -> Part:
        gate_up, down = self.gate_up, self.down
        inner = workspace.take("inner", self.spec.width)  # [T, F]

        def run(batch: ForwardPass, normed: Activation, hidden: Activation) -> None:
            batch.gate_up(normed, gate_up, inner)
            batch.linear_residual(inner, down, hidden)

        return run
