"""The gated delta rule as a kernel, and the gated norm behind it.

A program keeps some columns of one head's state in registers over a whole chunk: memory is read and written once,
whatever the chunk's length, and no sum depends on which other chunks there are. Products and sums are fused, which each
launch says: Triton's own choice differs from version to version.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from inflight.execution.backends.torch.device_pass import DevicePass
from inflight.execution.backends.torch.kernels.convolution import chunks_of

COLUMNS = 16  # of a head's state in one program
HEADS = 8  # of one token or several, that one program norms


def delta_rule(
    on: DevicePass,
    qkv: Tensor,
    projected: Tensor,
    gates: Tensor,
    layer: int,
    key_heads: int,
    decay: Tensor,
    step_bias: Tensor,
    norm: Tensor,
    eps: float,
    out: Tensor,
) -> None:
    (states, moves), pass_ = on.recurrent(layer), on.tensors
    tokens, matrices = len(qkv), states.matrices
    _, heads, key_dim, value_dim = matrices.shape
    if not tokens:
        return
    found = torch.empty(tokens, heads * value_dim, dtype=torch.float32, device=qkv.device)
    columns = min(COLUMNS, triton.next_power_of_2(value_dim))
    delta_kernel[len(pass_.rows), heads, triton.cdiv(value_dim, columns)](
        qkv, gates, decay, step_bias, matrices, matrices.stride(0), found, *chunks_of(pass_, moves),
        HEADS=heads, SHARED=heads // key_heads, KEY_DIM=key_dim, VALUE_DIM=value_dim,
        KEYS=triton.next_power_of_2(key_dim), COLUMNS=columns, num_warps=1, enable_fp_fusion=True,
    )  # fmt: skip
    norm_and_gate_kernel[triton.cdiv(tokens * heads, HEADS),](
        found, projected, projected.shape[1], qkv.shape[1], norm, eps, out, tokens * heads,
        HEADS=heads, VALUE_DIM=value_dim, VALUES=triton.next_power_of_2(value_dim), BLOCK=HEADS,
        num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip


@triton.jit
def delta_kernel(
    qkv, gates, decay, step_bias, matrices, matrix_stride, found,
    rows, query_start, context_len, snapshot_start, positions, places,
    HEADS: tl.constexpr, SHARED: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    KEYS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Program (c, h, piece): columns of head h's state, over the tokens of chunk c, up to each place where a copy is
    due and then to its end. SHARED: heads that have the same keys. The next token is loaded while one is computed."""
    chunk, head = tl.program_id(0), tl.program_id(1)
    key, column = tl.arange(0, KEYS), tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    there = (key < KEY_DIM)[:, None] & (column < VALUE_DIM)[None, :]
    of_head = (head * KEY_DIM + key)[:, None] * VALUE_DIM + column[None, :]
    start, context, row = tl.load(query_start + chunk), tl.load(context_len + chunk), tl.load(rows + chunk)
    length = tl.load(query_start + chunk + 1) - start
    source = matrices + row.to(tl.int64) * matrix_stride + of_head
    state = tl.load(source, mask=there & (context > 0), other=0)
    rate, step = tl.load(decay + head), tl.load(step_bias + head)

    q, k, v, b, a = _token(qkv, gates, start, length > 0, head, key, column, HEADS, SHARED, KEY_DIM, VALUE_DIM)
    first, last = tl.load(snapshot_start + chunk), tl.load(snapshot_start + chunk + 1)
    for entry in range(first, last + 1):
        # Loaded again: Triton 3.6 takes a bound that one turn leaves to the next for what it was at first.
        done = tl.load(positions + entry - 1, mask=entry > first, other=context) - context
        due = tl.load(positions + entry, mask=entry < last, other=0) - context
        place = tl.load(places + entry, mask=entry < last, other=0)
        until, place = tl.where(entry < last, due, length), tl.where(entry < last, place, row)
        for at in range(done, until):
            unit_q = q / tl.sqrt(tl.sum(q * q) + 1e-6) * KEY_DIM**-0.5
            unit_k = k / tl.sqrt(tl.sum(k * k) + 1e-6)
            raw = a + step
            kept = tl.exp(rate * (tl.maximum(raw, 0) + tl.log(1 + tl.exp(-tl.abs(raw)))))
            beta, value = 1 / (1 + tl.exp(-b)), v
            q, k, v, b, a = _token(
                qkv, gates, start + at + 1, at + 1 < length, head, key, column, HEADS, SHARED, KEY_DIM, VALUE_DIM
            )
            state *= kept
            delta = (value - tl.sum(state * unit_k[:, None], axis=0)) * beta
            state += unit_k[:, None] * delta[None, :]
            token = (start + at).to(tl.int64) * HEADS + head
            tl.store(
                found + token * VALUE_DIM + column, tl.sum(state * unit_q[:, None], axis=0), mask=column < VALUE_DIM
            )
        tl.store(matrices + place.to(tl.int64) * matrix_stride + of_head, state, mask=there)


@triton.jit
def _token(
    qkv,
    gates,
    token,
    is_there,
    head,
    key,
    column,
    HEADS: tl.constexpr,
    SHARED: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
):
    """Load one token and head: q and k float32[keys], v float32[columns], b and a; zeros where there is none."""
    PART: tl.constexpr = HEADS // SHARED * KEY_DIM
    numbers = qkv + token.to(tl.int64) * (2 * PART + HEADS * VALUE_DIM)
    of_keys, of_values = is_there & (key < KEY_DIM), is_there & (column < VALUE_DIM)
    q = tl.load(numbers + head // SHARED * KEY_DIM + key, mask=of_keys, other=0)
    k = tl.load(numbers + PART + head // SHARED * KEY_DIM + key, mask=of_keys, other=0)
    v = tl.load(numbers + 2 * PART + head * VALUE_DIM + column, mask=of_values, other=0)
    b = tl.load(gates + token * 2 * HEADS + head, mask=is_there, other=0)
    a = tl.load(gates + token * 2 * HEADS + HEADS + head, mask=is_there, other=0)
    return q, k, v, b, a


@triton.jit(do_not_specialize=["count"])
def norm_and_gate_kernel(
    found,
    projected,
    width,
    first,
    norm,
    eps,
    out,
    count,
    HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """found float32[T, H · value_dim] → out act: each head's RMS norm, times silu of z, which begins at column `first`
    of `projected`. One program has BLOCK heads, counted over all tokens."""
    one, column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, VALUES)
    there = (one < count)[:, None] & (column < VALUE_DIM)[None, :]
    x = tl.load(found + one[:, None] * VALUE_DIM + column[None, :], mask=there, other=0)
    of_z = one // HEADS * width + first + one % HEADS * VALUE_DIM
    z = tl.load(projected + of_z[:, None] + column[None, :], mask=there, other=0)
    weight = tl.load(norm + column, mask=column < VALUE_DIM, other=0)
    scale = 1 / tl.sqrt(tl.sum(x * x, axis=1) / VALUE_DIM + eps)
    gated = x * scale[:, None] * weight[None, :] * (z / (1 + tl.exp(-z)))
    tl.store(out + one[:, None] * VALUE_DIM + column[None, :], gated.to(out.dtype.element_ty), mask=there)
