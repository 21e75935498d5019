"""Multi-head latent attention (DeepSeek): all heads read one compressed vector and one rotated key of each token.

What a token leaves in the cache is its compressed vector, normed, and behind it the rotated key. Keys and values of the
heads would be products of the vector with a matrix for each head; instead those matrices are taken to the other side:
a query goes through its head's matrix of keys into the space of the vector and meets it there, and what comes of the
vectors goes through the head's matrix of values. So nothing is made of a cached token again, and the cache is a single
KV head, whose values are the first numbers of its keys.

The norms of compressed vectors have an eps of their own, which no config.json says.
"""

from __future__ import annotations

from msgspec import Struct

from inflight.execution.backends.protocol import Activation, ForwardPass, Heads, Linear, Rope, Vector
from inflight.execution.layers.norm import Residual
from inflight.execution.layers.workspace import Part, Workspace
from inflight.execution.packer import Packer
from inflight.models.spec import LatentAttention

_EPS = 1e-6


class LatentWeights(Struct, frozen=True):
    """One layer's. C: kv_lora_rank, R: qk_rope_head_dim, N: qk_nope_head_dim, V: v_head_dim."""

    spec: LatentAttention
    layer: int  # of the KV cache
    rope: Rope
    compress_q: Linear | None  # [q_lora_rank, E], where queries are compressed, too
    q_norm: Vector | None
    q: Linear  # [H·(N + R), q_lora_rank or E]
    compress_kv: Linear  # [C + R, E]
    kv_norm: Vector
    keys: Heads  # [C, N] of each head
    values: Heads  # [V, C] of each head
    output: Linear
    residual: Residual

    @classmethod
    def load(
        cls, packer: Packer, spec: LatentAttention, layer: int, rope: Rope | None, after: str | None
    ) -> LatentWeights:
        """after: the name of the norm of the result, if there is one."""
        assert rope is not None, "every family with latent attention rotates"
        at, hidden, rank = f"model.layers.{layer}.self_attn.", packer.model.hidden_size, spec.q_lora_rank
        queries, of_head = spec.heads * (spec.qk_nope_head_dim + spec.qk_rope_head_dim), spec.heads * spec.v_head_dim
        q = "q_b_proj" if rank else "q_proj"

        def biased(part: str, rows: int, columns: int) -> Linear:
            bias = [(f"{at}{part}.bias", rows)] if spec.bias else []
            return packer.linear([(f"{at}{part}.weight", (rows, columns))], bias)

        keys, values = packer.heads(
            (at + "kv_b_proj.weight", (spec.heads * spec.qk_nope_head_dim + of_head, spec.kv_lora_rank)),
            spec.heads,
            spec.qk_nope_head_dim,
        )
        return cls(
            spec=spec,
            layer=layer,
            rope=rope,
            compress_q=biased("q_a_proj", rank, hidden) if rank else None,
            q_norm=packer.norm(at + "q_a_layernorm.weight", rank) if rank else None,
            q=packer.linear([(f"{at}{q}.weight", (queries, rank or hidden))]),
            compress_kv=biased("kv_a_proj_with_mqa", spec.cached_width, hidden),
            kv_norm=packer.norm(at + "kv_a_layernorm.weight", spec.kv_lora_rank),
            keys=keys,
            values=values,
            output=biased("o_proj", hidden, of_head),
            residual=Residual.load(packer, after),
        )

    def bind(self, workspace: Workspace, hidden_size: int) -> Part:
        spec, layer, rope, kv_norm, scale = self.spec, self.layer, self.rope, self.kv_norm, self.spec.scale
        compress_q, q_norm, q, compress_kv = self.compress_q, self.q_norm, self.q, self.compress_kv
        keys, values, output = self.keys, self.values, self.output
        heads, rank = spec.heads, spec.kv_lora_rank
        take = workspace.take
        compressed_q = take("compressed_q", max(1, spec.q_lora_rank), "float32")  # [T, q_lora_rank]
        normed_q = take("normed_q", max(1, spec.q_lora_rank))
        both = take("q", heads * (spec.qk_nope_head_dim + spec.qk_rope_head_dim), "float32")  # [T, H·(N + R)]
        compressed = take("compressed_kv", spec.cached_width, "float32")  # [T, C + R]
        nope = take("q_nope", heads * spec.qk_nope_head_dim)  # [T, H·N]
        queries = take("queries", heads * spec.cached_width)  # [T, H·(C + R)]
        mixed = take("mixed", heads * rank)  # [T, H·C]
        attn_out = take("attn_out", heads * spec.v_head_dim)  # [T, H·V]
        add = self.residual.bind(workspace, hidden_size)

        def run(batch: ForwardPass, normed: Activation, hidden: Activation) -> None:
            if compress_q is None:
                batch.linear(normed, q, both)
            else:
                batch.linear(normed, compress_q, compressed_q)
                batch.rms_norm(compressed_q, q_norm, _EPS, normed_q)
                batch.linear(normed_q, q, both)
            batch.linear(normed, compress_kv, compressed)
            batch.rope_and_write_latent(both, compressed, layer, rope, kv_norm, _EPS, nope, queries)
            batch.by_head(nope, keys, queries)
            batch.attention(queries, layer, scale, 0, mixed)
            batch.by_head(mixed, values, attn_out)
            add(batch, attn_out, output, hidden)

        return run
