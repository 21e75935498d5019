"""Multi-head latent attention (DeepSeek): all heads read one compressed vector and one rotated key of each token.

What a token leaves in the cache is its compressed vector, normed, and behind it the rotated key. Keys and values of the
heads would be products of the vector with a matrix for each head; instead those matrices are taken to the other side:
a query goes through its head's matrix of keys into the space of the vector and meets it there, and what comes of the
vectors goes through the head's matrix of values. So nothing is made of a cached token again, and the cache is a single
KV head, whose values are the first numbers of its keys.

The norms of compressed vectors have an eps of their own, which no config.json says.
"""

from __future__ import annotations

from inflight.execution import ops
from inflight.execution.backends.protocol import Activation, Heads, Linear, Rope, Vector
from inflight.execution.layers.norm import Residual
from inflight.execution.packer import Packer
from inflight.execution.parts import PartWeights, computes
from inflight.execution.program import Program
from inflight.models.mixers.mla import LatentAttention

_EPS = 1e-6


@computes(LatentAttention)
class LatentWeights(PartWeights, frozen=True):
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
    def load(cls, packer: Packer, spec: LatentAttention, layer: int, after: str | None) -> LatentWeights:
        rope = packer.rope(spec.rope)
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

    def forward(self, program: Program, x: Activation, hidden: Activation) -> None:
        spec, heads = self.spec, self.spec.heads
        q = program.take("q", heads * (spec.qk_nope_head_dim + spec.qk_rope_head_dim), "float32")  # [T, H·(N + R)]
        compressed = program.take("compressed_kv", spec.cached_width, "float32")  # [T, C + R]
        nope = program.take("q_nope", heads * spec.qk_nope_head_dim)  # [T, H·N]
        queries = program.take("queries", heads * spec.cached_width)  # [T, H·(C + R)]
        mixed = program.take("mixed", heads * spec.kv_lora_rank)  # [T, H·C]
        attn_out = program.take("attn_out", heads * spec.v_head_dim)  # [T, H·V]
        if self.compress_q is None:
            ops.linear(program, x, self.q, q)
        else:
            compressed_q = program.take("compressed_q", spec.q_lora_rank, "float32")  # [T, q_lora_rank]
            normed_q = program.take("normed_q", spec.q_lora_rank)
            ops.linear(program, x, self.compress_q, compressed_q)
            ops.rms_norm(program, compressed_q, self.q_norm, _EPS, normed_q)
            ops.linear(program, normed_q, self.q, q)
        ops.linear(program, x, self.compress_kv, compressed)
        ops.rope_and_write_latent(program, q, compressed, self.layer, self.rope, self.kv_norm, _EPS, nope, queries)
        ops.by_head(program, nope, self.keys, queries)
        ops.attention(program, queries, self.layer, spec.scale, 0, mixed)
        ops.by_head(program, mixed, self.values, attn_out)
        self.residual.add(program, attn_out, self.output, hidden)
