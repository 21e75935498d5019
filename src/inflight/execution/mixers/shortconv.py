"""A gated short convolution (LFM2): of a sequence it keeps the last few inputs alone.

One product yields three streams, a gate of the inputs, one of the result, and the inputs; the convolution and both
gates are one operation.
"""

from __future__ import annotations

from inflight.execution import ops
from inflight.execution.backends.protocol import Activation, Linear, Vector
from inflight.execution.layers.norm import Residual
from inflight.execution.packer import Packer
from inflight.execution.parts import PartWeights, computes
from inflight.execution.program import Program
from inflight.models.mixers.shortconv import ShortConvolution


@computes(ShortConvolution)
class ShortConvolutionWeights(PartWeights, frozen=True):
    """One layer's. projection: [3·E, E]. convolution: float32[kernel · E]; bias: float32[E] or None."""

    layer: int
    projection: Linear
    convolution: Vector
    bias: Vector | None
    output: Linear
    residual: Residual

    @classmethod
    def load(cls, packer: Packer, spec: ShortConvolution, layer: int, after: str | None) -> ShortConvolutionWeights:
        at, hidden = f"model.layers.{layer}.conv.", packer.model.hidden_size

        def linear(name: str, rows: int) -> Linear:
            biases = [(at + name + ".bias", rows)] if spec.bias else []
            return packer.linear([(at + name + ".weight", (rows, hidden))], biases)

        return cls(
            layer=layer,
            projection=linear("in_proj", 3 * hidden),
            convolution=packer.convolution(at + "conv.weight", hidden, spec.kernel),
            bias=packer.vector(at + "conv.bias", hidden) if spec.bias else None,
            output=linear("out_proj", hidden),
            residual=Residual.load(packer, after),
        )

    def forward(self, program: Program, x: Activation, hidden: Activation) -> None:
        streams = program.take("projected", self.projection.rows, "float32")  # [T, 3·E]
        mixed = program.take("mixed", self.output.columns)  # [T, E]
        ops.linear(program, x, self.projection, streams)
        ops.convolve_gated(program, streams, self.layer, self.convolution, self.bias, mixed)
        self.residual.add(program, mixed, self.output, hidden)
