"""Softmax attention over cached keys and values.

Queries, keys and values are one stacked product; they are rotated and written in one operation, read in the next.
"""

from __future__ import annotations

from dataclasses import dataclass

from inflight.execution.backends.protocol import Activation, ForwardPass, Linear, Rope, Vector
from inflight.execution.layers.workspace import Part, Workspace
from inflight.execution.packer import Packer
from inflight.models.spec import Attention


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """One layer's. Norms of queries and keys are float32[D]."""

    spec: Attention
    layer: int  # of the KV cache
    rope: Rope
    eps: float
    qkv: Linear
    q_norm: Vector | None
    k_norm: Vector | None
    output: Linear

    @classmethod
    def load(cls, packer: Packer, spec: Attention, layer: int, rope: Rope) -> AttentionWeights:
        at = f"model.layers.{layer}.self_attn."
        hidden, width = packer.model.hidden_size, spec.head_dim
        rows = {"q_proj": spec.heads * width, "k_proj": spec.kv_heads * width, "v_proj": spec.kv_heads * width}
        normed = spec.qk_norm == "head"
        return cls(
            spec=spec,
            layer=layer,
            rope=rope,
            eps=packer.model.norm.eps,
            qkv=packer.linear(
                [(f"{at}{part}.weight", (count, hidden)) for part, count in rows.items()],
                [(f"{at}{part}.bias", count) for part, count in rows.items()] if spec.qkv_bias else [],
            ),
            q_norm=packer.norm(at + "q_norm.weight", width) if normed else None,
            k_norm=packer.norm(at + "k_norm.weight", width) if normed else None,
            output=packer.linear(
                [(at + "o_proj.weight", (hidden, spec.heads * width))],
                [(at + "o_proj.bias", hidden)] if spec.output_bias else [],
            ),
        )

    def bind(self, workspace: Workspace) -> Part:
        spec, layer, rope, eps = self.spec, self.layer, self.rope, self.eps
        weight, q_norm, k_norm, output = self.qkv, self.q_norm, self.k_norm, self.output
        window, scale = spec.window, spec.head_dim**-0.5
        qkv = workspace.take("qkv", spec.qkv_rows, "float32")  # [T, (H + 2G)·D]
        queries = workspace.take("queries", spec.heads * spec.head_dim)  # [T, H·D]
        attn_out = workspace.take("attn_out", spec.heads * spec.head_dim)  # [T, H·D]

        def run(batch: ForwardPass, normed: Activation, hidden: Activation) -> None:
            batch.linear(normed, weight, qkv)
            batch.rope_and_write_kv(qkv, layer, rope, q_norm, k_norm, eps, queries)
            batch.attention(queries, layer, scale, window, attn_out)
            batch.linear_residual(attn_out, output, hidden)

        return run
