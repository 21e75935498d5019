"""Gated DeltaNet: a matrix of state for each head in the place of cached keys and values.

Queries, keys, values and the gate of the result are one stacked product, what writes and forgets (beta and the decay)
another, which is held as activations are, whatever else is quantized: it decides what is remembered. Queries, keys and
values pass a short convolution, then the delta rule (`ops.delta_rule`). Families stack these rows in
different ways, which `checkpoints.family_names` undoes.
"""

from __future__ import annotations

from inflight.execution import ops
from inflight.execution.backends.protocol import Activation, Linear, Vector
from inflight.execution.layers.norm import Residual
from inflight.execution.packer import Packer
from inflight.execution.parts import PartWeights, computes
from inflight.execution.program import Program
from inflight.models.mixers.deltanet import LinearAttention


@computes(LinearAttention)
class LinearAttentionWeights(PartWeights, frozen=True):
    """One layer's. projection: [C + Hv·Dv, E], C the channels of the convolution. gates: [2·Hv, E]. convolution:
    float32[kernel · C]. decay: float32[Hv], what a step size is multiplied by to be the logarithm of what is kept."""

    spec: LinearAttention
    layer: int
    eps: float
    projection: Linear
    gates: Linear
    convolution: Vector
    decay: Vector
    step_bias: Vector
    norm: Vector
    output: Linear
    residual: Residual

    @classmethod
    def load(cls, packer: Packer, spec: LinearAttention, layer: int, after: str | None) -> LinearAttentionWeights:
        at, hidden, heads = f"model.layers.{layer}.linear_attn.", packer.model.hidden_size, spec.value_heads
        values = heads * spec.value_dim
        channels = 2 * spec.key_heads * spec.key_dim + values
        return cls(
            spec=spec,
            layer=layer,
            eps=packer.model.norm.eps,
            projection=packer.linear(
                [(at + "in_proj_qkv.weight", (channels, hidden)), (at + "in_proj_z.weight", (values, hidden))]
            ),
            gates=packer.plain([(f"{at}in_proj_{part}.weight", (heads, hidden)) for part in "ba"]),
            convolution=packer.convolution(at + "conv1d.weight", channels, spec.kernel),
            decay=packer.decay(at + "A_log", heads),
            step_bias=packer.vector(at + "dt_bias", heads),
            norm=packer.vector(at + "norm.weight", spec.value_dim),
            output=packer.linear([(at + "out_proj.weight", (hidden, values))]),
            residual=Residual.load(packer, after),
        )

    def forward(self, program: Program, x: Activation, hidden: Activation) -> None:
        heads, values = self.spec.value_heads, self.spec.value_heads * self.spec.value_dim
        projected = program.take("projected", self.projection.rows, "float32")  # [T, C + Hv·Dv]
        qkv = program.take("convolved", self.projection.rows - values, "float32")  # [T, C]
        gates = program.take("delta_gates", 2 * heads, "float32")  # [T, 2·Hv]
        mixed = program.take("mixed", values)  # [T, Hv·Dv]
        ops.linear(program, x, self.projection, projected)
        ops.linear(program, x, self.gates, gates)
        ops.convolve(program, projected, self.layer, self.convolution, qkv)
        ops.delta_rule(
            program,
            qkv,
            projected,
            gates,
            self.layer,
            self.spec.key_heads,
            self.decay,
            self.step_bias,
            self.norm,
            self.eps,
            mixed,
        )
        self.residual.add(program, mixed, self.output, hidden)
