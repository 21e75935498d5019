"""Norms of the residual stream before a mixer or an MLP, and what becomes of their results after it.

Weights that a checkpoint stores less 1 get it back in float32 when they are loaded; later code does not see the
difference.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from inflight.execution.backends.protocol import Activation, ForwardPass, Linear, Vector
from inflight.execution.layers.workspace import Workspace
from inflight.execution.packer import Packer


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

    def bind(self, x: Activation, out: Activation) -> Callable[[ForwardPass], None]:
        """float32[S, E] → act[S, E], or float32[S, E]."""
        weight, bias, eps = self.weight, self.bias, self.eps
        if self.is_layer_norm:
            return lambda batch: batch.layer_norm(x, weight, bias, eps, out)
        return lambda batch: batch.rms_norm(x, weight, eps, out)

    def bind_sum(self, hidden: Activation, normed: Activation) -> Callable[[ForwardPass], None]:
        """Norm the residual stream float32[T, E] in place, and copy it to normed act[T, E], which the next part
        reads."""
        weight, bias, eps = self.weight, self.bias, self.eps
        assert self.is_layer_norm, "refused before"
        return lambda batch: batch.layer_norm_sum(hidden, weight, bias, eps, normed)


# Of a part's last product: x act[T, K], its weights, the residual stream float32[T, E].
Addition = Callable[[ForwardPass, Activation, Linear, Activation], None]


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

    def bind(self, workspace: Workspace, hidden_size: int) -> Addition:
        norm, eps, scale = self.norm, self.eps, self.scale
        if norm is None and scale == 1:
            return lambda batch, x, weight, hidden: batch.linear_residual(x, weight, hidden)
        product = workspace.take("product", hidden_size, "float32")  # [T, E]

        def add(batch: ForwardPass, x: Activation, weight: Linear, hidden: Activation) -> None:
            batch.linear(x, weight, product)
            batch.add(product, norm, eps, scale, hidden)

        return add
