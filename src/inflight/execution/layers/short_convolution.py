"""A gated short convolution (LFM2): of a sequence it keeps the last few inputs alone.

One product yields three streams, a gate of the inputs, one of the result, and the inputs; the convolution and both
gates are one operation.
"""

from __future__ import annotations

from msgspec import Struct

from inflight.execution.backends.protocol import Activation, ForwardPass, Linear, Vector
from inflight.execution.layers.norm import Residual
from inflight.execution.layers.workspace import Part, Workspace
from inflight.execution.packer import Packer
from inflight.models.spec import ShortConvolution


class ShortConvolutionWeights(Struct, frozen=True):
    """One layer's. projection: [3·E, E]. convolution: float32[kernel · E]; bias: float32[E] or None."""

    layer: int
    projection: Linear
    convolution: Vector
    bias: Vector | None
    output: Linear
    residual: Residual

    @classmethod
    def load(cls, packer: Packer, spec: ShortConvolution, layer: int, after: str | None) -> ShortConvolutionWeights:
        """after: the name of the norm of the result, if there is one."""
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

    def bind(self, workspace: Workspace, hidden_size: int) -> Part:
        layer, projection, convolution, bias, output = (
            self.layer,
            self.projection,
            self.convolution,
            self.bias,
            self.output,
        )
        streams = workspace.take("projected", projection.rows, "float32")  # [T, 3·E]
        mixed = workspace.take("mixed", output.columns)  # [T, E]
        add = self.residual.bind(workspace, hidden_size)

        def run(batch: ForwardPass, normed: Activation, hidden: Activation) -> None:
            batch.linear(normed, projection, streams)
            batch.convolve_gated(streams, layer, convolution, bias, mixed)
            add(batch, mixed, output, hidden)

        return run
