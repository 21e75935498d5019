"""Gated DeltaNet: a matrix of state for each head in the place of cached keys and values.

Queries, keys, values and the gate of the result are one stacked product, what writes and forgets (beta and the decay)
another, which is held as activations are, whatever else is quantized: it decides what is remembered. Queries, keys and
values pass a short convolution, then the delta rule (`protocol.ForwardPass.delta_rule`). Families stack these rows in
different ways, which `checkpoints.family_names` undoes.
"""

from __future__ import annotations

from msgspec import Struct

from inflight.execution.backends.protocol import Activation, ForwardPass, Linear, Vector
from inflight.execution.layers.norm import Residual
from inflight.execution.layers.workspace import Part, Workspace
from inflight.execution.packer import Packer
from inflight.models.spec import LinearAttention


class LinearAttentionWeights(Struct, frozen=True):
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
        """after: the name of the norm of the result, if there is one."""
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

    def bind(self, workspace: Workspace, hidden_size: int) -> Part:
        spec, layer, eps = self.spec, self.layer, self.eps
        projection, gate_weights, convolution, output = self.projection, self.gates, self.convolution, self.output
        decay, step_bias, norm, key_heads = self.decay, self.step_bias, self.norm, spec.key_heads
        values = spec.value_heads * spec.value_dim
        projected = workspace.take("projected", projection.rows, "float32")  # [T, C + Hv·Dv]
        qkv = workspace.take("convolved", projection.rows - values, "float32")  # [T, C]
        gates = workspace.take("delta_gates", 2 * spec.value_heads, "float32")  # [T, 2·Hv]
        mixed = workspace.take("mixed", values)  # [T, Hv·Dv]
        add = self.residual.bind(workspace, hidden_size)

        def run(batch: ForwardPass, normed: Activation, hidden: Activation) -> None:
            batch.linear(normed, projection, projected)
            batch.linear(normed, gate_weights, gates)
            batch.convolve(projected, layer, convolution, qkv)
            batch.delta_rule(qkv, projected, gates, layer, key_heads, decay, step_bias, norm, eps, mixed)
            add(batch, mixed, output, hidden)

        return run
