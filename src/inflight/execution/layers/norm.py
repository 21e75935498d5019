"""Norms of the residual stream before a mixer or an MLP, and what becomes of their results after it.

Weights that a checkpoint stores less 1 get it back in float32 when they are loaded; later code does not see the
difference.
"""

from __future__ import annotations

from msgspec import Struct

from inflight.execution import ops
from inflight.execution.backends.protocol import Activation, Linear, Vector
from inflight.execution.packer import Packer
from inflight.execution.program import Program


class NormWeights(Struct, frozen=True):
    """weight, bias: float32[E]; a layer norm has a bias or none, an RMS norm has none."""

    weight: Vector
    bias: Vector | None
    is_layer_norm: bool
    eps: float

    @classmethod
    def load(cls, packer: Packer, name: str, width: int | None = None, bias: bool = True) -> NormWeights:
        """name: without `.weight`. width: of a row, where that is not the model's; bias: of a family whose layer norms
        have biases, whether this one has."""
        norm, hidden = packer.model.norm, width or packer.model.hidden_size
        return cls(
            weight=packer.norm(name + ".weight", hidden),
            bias=packer.vector(name + ".bias", hidden) if norm.kind == "layer" and bias else None,
            is_layer_norm=norm.kind != "rms",
            eps=norm.eps,
        )

    def forward(self, program: Program, x: Activation, out: Activation) -> None:
        """float32[S, E] → act[S, E], or float32[S, E]."""
        if self.is_layer_norm:
            ops.layer_norm(program, x, self.weight, self.bias, self.eps, out)
        else:
            ops.rms_norm(program, x, self.weight, self.eps, out)

    def forward_sum(self, program: Program, hidden: Activation, normed: Activation) -> None:
        """Norm the residual stream float32[T, E] in place, and copy it to normed act[T, E], which the next part
        reads."""
        assert self.is_layer_norm, "refused before"
        ops.layer_norm_sum(program, hidden, self.weight, self.bias, self.eps, normed)


class Residual(Struct, frozen=True):
    """How the last product of a part joins the residual stream: times `scale`, and normed before that where there is a
    norm after the part (RMS norms only)."""

    norm: Vector | None
    eps: float
    scale: float

    @classmethod
    def load(cls, packer: Packer, name: str | None) -> Residual:
        """name: of the norm, without `.weight`; None where there is none."""
        model = packer.model
        norm = None if name is None else packer.norm(name + ".weight", model.hidden_size)
        return cls(norm, model.norm.eps, model.residual_scale)

    def add(self, program: Program, x: Activation, weight: Linear, hidden: Activation) -> None:
        """Add a part's last product to the residual stream float32[T, E]. x: act[T, K]."""
        if self.norm is None and self.scale == 1:
            ops.linear_residual(program, x, weight, hidden)
            return
        product = program.take("product", weight.rows, "float32")  # [T, E]
        ops.linear(program, x, weight, product)
        ops.add(program, product, self.norm, self.eps, self.scale, hidden)
