"""The MLP that every token passes: gated, or of two products with an activation function between them."""

from __future__ import annotations

from msgspec import Struct

from inflight.execution.backends.protocol import Activation, ForwardPass, GateUp, Linear, Vector
from inflight.execution.layers.norm import Residual
from inflight.execution.layers.workspace import Part, Workspace
from inflight.execution.packer import Packer
from inflight.models.runnable import ACTIVATIONS
from inflight.models.spec import Dense


class DenseWeights(Struct, frozen=True):
    """gate_up: where the MLP is gated; up: where it is not. curve: what the activation function has learnt, or None."""

    spec: Dense
    gate_up: GateUp | None
    up: Linear | None
    curve: Vector | None
    down: Linear
    residual: Residual

    @classmethod
    def load(cls, packer: Packer, spec: Dense, layer: int, after: str | None = None, name: str = "mlp") -> DenseWeights:
        """after: the name of the norm of the result, if there is one. name: of the MLP within the layer."""
        at, hidden = f"model.layers.{layer}.{name}.", packer.model.hidden_size
        inward, up = (spec.width, hidden), at + "up_proj"
        return cls(
            spec=spec,
            gate_up=packer.gate_up((at + "gate_proj.weight", inward), (up + ".weight", inward)) if spec.gated else None,
            up=None if spec.gated else packer.linear([(up + ".weight", inward)], _bias(spec, up, spec.width)),
            curve=packer.xielu(at + "act_fn") if spec.activation == "xielu" else None,
            down=packer.linear(
                [(at + "down_proj.weight", (hidden, spec.width))], _bias(spec, at + "down_proj", hidden)
            ),
            residual=Residual.load(packer, after),
        )

    def bind(self, workspace: Workspace, hidden_size: int) -> Part:
        gate_up, up, down = self.gate_up, self.up, self.down
        activation, curve = ACTIVATIONS[self.spec.activation], self.curve
        inner = workspace.take("inner", self.spec.width)  # [T, F]
        add = self.residual.bind(workspace, hidden_size)

        def gated(batch: ForwardPass, normed: Activation, hidden: Activation) -> None:
            batch.gate_up(normed, gate_up, inner, activation)
            add(batch, inner, down, hidden)

        if gate_up is not None:
            return gated
        if activation in ("gelu", "gelu_tanh", "relu"):

            def activated(batch: ForwardPass, normed: Activation, hidden: Activation) -> None:
                batch.linear_act(normed, up, activation, inner)
                add(batch, inner, down, hidden)

            return activated
        sums = workspace.take("sums", self.spec.width, "float32")  # [T, F]

        def plain(batch: ForwardPass, normed: Activation, hidden: Activation) -> None:
            batch.linear(normed, up, sums)
            batch.activate(sums, activation, inner, curve)
            add(batch, inner, down, hidden)

        return plain


def _bias(spec: Dense, name: str, rows: int) -> list[tuple[str, int]]:
    return [(name + ".bias", rows)] if spec.bias else []
