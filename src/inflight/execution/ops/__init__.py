"""The operations of a forward pass: each one's signature, meaning and definition in numpy, in the file of its kind.

An operation is called with a `Program`, which records it. Its definition is the function's body, which runs in a
`NumpyPass`: the reference of every backend's kernels, and what the reference backend runs. Definitions are batch
invariant by brute force: every token, query and sampled row is computed by itself, in a call whose shapes depend on it
only. They round where their docstrings say, and attention's probabilities, which kernels round too.

Letters: T tokens of the pass, S rows of a product (all tokens, or those gathered), H query heads, G key/value heads,
D head dimension, E hidden size, F feed-forward size, V vocabulary, X experts. `out` is written in place.
"""

from __future__ import annotations

from inflight.execution.ops.attention import attention
from inflight.execution.ops.by_head import by_head
from inflight.execution.ops.convolution import convolve, convolve_gated
from inflight.execution.ops.delta_rule import delta_rule
from inflight.execution.ops.elementwise import activate, add_gated, clear, gate, scale, soft_cap, to_act
from inflight.execution.ops.embed import add_positions, add_token_types, embed
from inflight.execution.ops.experts import experts
from inflight.execution.ops.gather import gather, mean
from inflight.execution.ops.linear import gate_up, linear, linear_act, linear_residual
from inflight.execution.ops.norm import add, layer_norm, layer_norm_sum, rms_norm
from inflight.execution.ops.rope import rope_and_write_kv, rope_and_write_latent

__all__ = [
    "activate",
    "add",
    "add_gated",
    "add_positions",
    "add_token_types",
    "attention",
    "by_head",
    "clear",
    "convolve",
    "convolve_gated",
    "delta_rule",
    "embed",
    "experts",
    "gate",
    "gate_up",
    "gather",
    "layer_norm",
    "layer_norm_sum",
    "linear",
    "linear_act",
    "linear_residual",
    "mean",
    "rms_norm",
    "rope_and_write_kv",
    "rope_and_write_latent",
    "scale",
    "soft_cap",
    "to_act",
]
