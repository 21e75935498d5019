"""Mamba: its sizes and what follows from them. It is described for plans, and not computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from inflight.models.parts import LayerState, Mixer, Weights, not_computed

if TYPE_CHECKING:
    from inflight.models.spec import LayerSpec, ModelSpec


class Mamba(Mixer, frozen=True, kw_only=True):
    """A selective state space of `inner` channels with `state` values each, after a short convolution.

    Attributes:
        norms: RMS norms of the step size and of both projections of the state (Jamba).
    """

    module: ClassVar[str] = "mamba"

    inner: int
    state: int
    dt_rank: int
    kernel: int
    conv_bias: bool = True
    bias: bool = False
    norms: bool = False

    def weights(self, hidden: int) -> Weights:
        inner, state, rank = self.inner, self.state, self.dt_rank
        matrices = ((2 * inner, hidden), (rank + 2 * state, inner), (inner, rank), (hidden, inner))
        # A, D and the bias of the step size, too.
        others = inner * (self.kernel + state + 2) + (inner if self.conv_bias else 0)
        others += 2 * inner + hidden if self.bias else 0
        return Weights(matrices, others + (rank + 2 * state if self.norms else 0))

    def recurrent_state(self, hidden: int) -> LayerState:
        return LayerState(self.kernel - 1, self.inner, self.inner, self.state, 1)

    def refuse(self, model: ModelSpec, layer: LayerSpec) -> None:
        raise not_computed(model, f"layers of {type(self).__name__} and {type(layer.mlp).__name__}")

    @property
    def whole(self) -> str:
        return "state spaces"
