"""Rotation of queries and keys; keys and values are written into the KV cache."""

from __future__ import annotations

from inflight.execution.backends.protocol.handles import Activation, Rope, Vector
from inflight.execution.program import Program, operation


@operation
def rope_and_write_kv(
    program: Program,
    qkv: Activation,
    layer: int,
    rope: Rope | None,
    q_norm: Vector | None,
    k_norm: Vector | None,
    eps: float,
    q_out: Activation,
    norms_last: bool = False,
    v_norm: Vector | None = None,
) -> None:
    """qkv float32[T, (H + 2G)·D], heads in the order q, k, v. Applies the optional RMS norms, of each
    head (float32[D]) or of all at once (float32[H·D], float32[G·D]; of values of each head), rotates q and k unless
    `rope` is None (norms_last: first that, then their norms, which are of each head), writes k and v of every token
    into the KV cache, and q into q_out act[T, H·D]. All keys and values of the pass are written before any is read:
    chunks may read each other's blocks. qkv float32[T, (H + G)·D]: keys as they come are the values, too. qkv
    float32[T, H·D]: nothing is written; the queries will read what an earlier layer, `layer`, wrote. Over keys in
    int8 q and k are transformed last, before they are rounded, by the rule of `channel_mixing`."""


@operation
def rope_and_write_latent(
    program: Program,
    q: Activation,
    kv: Activation,
    layer: int,
    rope: Rope,
    kv_norm: Vector,
    eps: float,
    nope_out: Activation,
    q_out: Activation,
) -> None:
    """Latent attention, whose cache holds of a token one key and no values (`KVLayer`): C compressed numbers, then
    R rotated ones. q float32[T, H·(N + R)], kv float32[T, C + R]: the RMS norm of the first C of kv and the rotated
    rest go into the cache; of each head of q the first N into nope_out act[T, H·N], and the rotated rest into the
    last R of the head in q_out act[T, H·(C + R)], whose first C stay as they are (`by_head` writes them)."""
