"""A gated short convolution (LFM2): its sizes and what follows from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from inflight.models.parts import LayerState, Mixer, Weights, refuse_long_kernel

if TYPE_CHECKING:
    from inflight.models.spec import LayerSpec, ModelSpec


class ShortConvolution(Mixer, frozen=True, kw_only=True):
    """A gated depthwise convolution over the last `kernel` tokens."""

    module: ClassVar[str] = "conv"

    kernel: int
    bias: bool = False

    def weights(self, hidden: int) -> Weights:
        bias = 5 * hidden if self.bias else 0  # of the projection to three streams, the convolution, the way back
        return Weights(((3 * hidden, hidden), (hidden, hidden)), hidden * self.kernel + bias)

    def recurrent_state(self, hidden: int) -> LayerState:
        return LayerState(self.kernel - 1, hidden)

    def refuse(self, model: ModelSpec, layer: LayerSpec) -> None:
        refuse_long_kernel(model, self.kernel)

    @property
    def whole(self) -> str:
        return "convolutions"
