"""Softmax attention over cached keys and values.

Queries, keys and values are one stacked product; they are normed, rotated and written in one operation, read in the
next. What families add to that, and where it is:

- the norm before it and the one after it, and the factor of its result: `norm.py`;
- norms of queries and keys, by the length of their weights per head or over all heads, and of values: with the
  rotation, before it or after;
- keys that are the values, too, and layers that read an earlier one's: by what is projected;
- no rotation, one of a part of each head, another one in layers with a window: the layer's own table of cosines;
- pairs that a checkpoint holds side by side, stacked projections, other names: `checkpoints.family_names`;
- another factor of scores, a soft cap of them, sinks, numbers learnt for distances: arguments of the operation that
  attends;
- a gate of its result, by the sigmoid of a product of its own: between attention and the last product.
"""

from __future__ import annotations

from msgspec.structs import replace

from inflight.execution import ops
from inflight.execution.backends.protocol import Activation, Linear, Rope, Vector
from inflight.execution.layers.norm import Residual
from inflight.execution.packer import Packer
from inflight.execution.parts import PartWeights, computes, partial_sum
from inflight.execution.program import Program
from inflight.models.mixers.attention import Attention

_RELATIVE = "model.relative_attention_bias.weight"  # one for all layers


def kv_layer(spec: Attention, layer: int) -> int:
    """Return the layer whose keys and values this one reads: its own, or an earlier one's. An encoder keeps none: every
    layer writes to the first one's blocks what it reads next."""
    if not spec.causal:
        return 0
    return layer if spec.kv_layer is None else spec.kv_layer


@computes(Attention)
class AttentionWeights(PartWeights, frozen=True):
    """One layer's. rope: None where nothing is rotated. Norms of queries and keys are float32[D], or of all heads at
    once; that of values is float32[D], sinks are float32[H]; position_bias is as the operation takes it."""

    spec: Attention
    layer: int  # of the KV cache
    rope: Rope | None
    eps: float
    qkv: Linear
    q_norm: Vector | None
    k_norm: Vector | None
    v_norm: Vector | None
    sinks: Vector | None
    gate: Linear | None  # [H·D, E]
    output: Linear
    residual: Residual
    position_bias: Vector | None

    @classmethod
    def load(cls, packer: Packer, spec: Attention, layer: int, after: str | None) -> AttentionWeights:
        at = f"model.layers.{layer}.self_attn."
        hidden, width = packer.model.hidden_size, spec.head_dim
        gate, outputs = at + "gate_proj", spec.heads * width
        queries, keys = spec.heads * width, spec.kv_heads * width
        rows = dict([("q_proj", queries), ("k_proj", keys), ("v_proj", keys)][: 1 + spec.projected])
        normed = {"none": (0, 0), "head": (width, width), "all": (queries, keys)}[spec.qk_norm]
        return cls(
            spec=spec,
            layer=kv_layer(spec, layer),
            rope=packer.rope(spec.rope),
            eps=packer.model.norm.eps,
            qkv=packer.linear(
                [(f"{at}{part}.weight", (count, hidden)) for part, count in rows.items()],
                [(f"{at}{part}.bias", count) for part, count in rows.items()] if spec.qkv_bias else [],
            ),
            q_norm=packer.norm(at + "q_norm.weight", normed[0]) if normed[0] else None,
            k_norm=packer.norm(at + "k_norm.weight", normed[1]) if normed[1] and spec.projected else None,
            v_norm=packer.ones(width) if spec.v_norm else None,
            sinks=packer.vector(at + "sinks", spec.heads) if spec.sinks else None,
            gate=packer.linear(
                [(gate + ".weight", (outputs, hidden))], [(gate + ".bias", outputs)] if spec.qkv_bias else []
            )
            if spec.gate
            else None,
            output=packer.linear(
                [(at + "o_proj.weight", (hidden, spec.heads * width))],
                [(at + "o_proj.bias", hidden)] if spec.output_bias else [],
            ),
            residual=Residual.load(packer, after),
            position_bias=packer.position_bias(_RELATIVE, spec.relative_buckets, spec.heads)
            if spec.relative_buckets
            else None,
        )

    def forward(self, program: Program, x: Activation, hidden: Activation) -> None:
        qkv = program.take("qkv", self.qkv.rows, "float32")  # [T, (H + 2G)·D], or less
        ops.linear(program, x, self.qkv, qkv)
        self.attend(program, qkv, x, hidden)

    def attend(self, program: Program, qkv: Activation, x: Activation, hidden: Activation) -> None:
        """Compute all behind the product of queries, keys and values float32[T, (H + 2G)·D]; x: for a gate alone."""
        spec = self.spec
        queries = program.take("queries", spec.heads * spec.head_dim)  # [T, H·D]
        mixed = program.take("attn_out", spec.heads * spec.head_dim)  # [T, H·D]
        ops.rope_and_write_kv(
            program,
            qkv,
            self.layer,
            self.rope,
            self.q_norm,
            self.k_norm,
            self.eps,
            queries,
            norms_last=spec.qk_norm_last,
            v_norm=self.v_norm,
        )
        ops.attention(
            program,
            queries,
            self.layer,
            spec.scale or spec.head_dim**-0.5,
            spec.window,
            mixed,
            soft_cap=spec.soft_cap,
            sinks=self.sinks,
            causal=spec.causal,
            position_bias=self.position_bias,
        )
        if self.gate is not None:
            gates = program.take("attn_gates", self.gate.rows, "float32")  # [T, H·D]
            ops.linear(program, x, self.gate, gates)
            ops.gate(program, gates, mixed)
        self.residual.add(program, mixed, self.output, hidden)

    def with_partial_sums(self) -> AttentionWeights:
        return replace(self, output=partial_sum(self.output))
