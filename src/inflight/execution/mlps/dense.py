"""The MLP that every token passes: gated, or of two products with an activation function between them."""

from __future__ import annotations

from msgspec.structs import replace

from inflight.execution import ops
from inflight.execution.backends.protocol import Activation, GateUp, Linear, Vector
from inflight.execution.layers.norm import Residual
from inflight.execution.packer import Packer
from inflight.execution.parts import PartWeights, computes, partial_sum
from inflight.execution.program import Program
from inflight.models.mlps.dense import ACTIVATIONS, Dense


@computes(Dense)
class DenseWeights(PartWeights, frozen=True):
    """gate_up: where the MLP is gated; up: where it is not. curve: what the activation function has learnt, or None."""

    spec: Dense
    gate_up: GateUp | None
    up: Linear | None
    curve: Vector | None
    down: Linear
    residual: Residual

    @classmethod
    def load(cls, packer: Packer, spec: Dense, layer: int, after: str | None = None, name: str = "mlp") -> DenseWeights:
        """name: of the MLP within the layer; the others as for any part."""
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

    def forward(self, program: Program, x: Activation, hidden: Activation) -> None:
        self.residual.add(program, self.inner(program, x), self.down, hidden)

    def with_partial_sums(self) -> DenseWeights:
        return replace(self, down=partial_sum(self.down))

    def inner(self, program: Program, x: Activation) -> Activation:
        """Compute all before the last product, and return its input act[T, F]."""
        activation = ACTIVATIONS[self.spec.activation]
        inner = program.take("inner", self.spec.width)  # [T, F]
        if self.gate_up is not None:
            ops.gate_up(program, x, self.gate_up, inner, activation)
        elif activation in ("gelu", "gelu_tanh", "relu"):
            ops.linear_act(program, x, self.up, activation, inner)
        else:
            sums = program.take("sums", self.spec.width, "float32")  # [T, F]
            ops.linear(program, x, self.up, sums)
            ops.activate(program, sums, activation, inner, self.curve)
        return inner


def _bias(spec: Dense, name: str, rows: int) -> list[tuple[str, int]]:
    return [(name + ".bias", rows)] if spec.bias else []
