"""Operations on the states of recurrent layers, as kernels: short convolutions and the gated delta rule.

Knows how tokens, chunks and states lie, and how work is divided; `execution.ops`
has the definitions. A convolution is computed token by token side by side, and its states are written when all
tokens have read them. Of the delta rule, a program keeps some columns of one head's state in registers over a whole
chunk: memory is read and written once, whatever the chunk's length, and no sum depends on which other chunks there are.
Products and sums are fused, which each launch says: what Triton does by itself differs from version to version.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from inflight.execution.backends.torch.device_pass import DevicePass
from inflight.execution.backends.torch.tensors import PassTensors, StateTensors

CHANNELS = 256  # of a convolution in one program
COLUMNS = 16  # of a head's state in one program
HEADS = 8  # of one token or several, that one program norms


def convolve(on: DevicePass, x: Tensor, layer: int, weight: Tensor, out: Tensor) -> None:
    _convolve(on, x, layer, weight, None, out)


def convolve_gated(on: DevicePass, x: Tensor, layer: int, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    _convolve(on, x, layer, weight, bias, out, gated=True)


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
        qkv, gates, decay, step_bias, matrices, matrices.stride(0), found, *_chunks(pass_, moves),
        HEADS=heads, SHARED=heads // key_heads, KEY_DIM=key_dim, VALUE_DIM=value_dim,
        KEYS=triton.next_power_of_2(key_dim), COLUMNS=columns, num_warps=1, enable_fp_fusion=True,
    )  # fmt: skip
    norm_and_gate_kernel[triton.cdiv(tokens * heads, HEADS),](
        found, projected, projected.shape[1], qkv.shape[1], norm, eps, out, tokens * heads,
        HEADS=heads, VALUE_DIM=value_dim, VALUES=triton.next_power_of_2(value_dim), BLOCK=HEADS,
        num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip


def _convolve(
    on: DevicePass, x: Tensor, layer: int, weight: Tensor, bias: Tensor | None, out: Tensor, gated: bool = False
) -> None:
    """Where every chunk is one token, what computes it leaves its state behind; else a second kernel does."""
    ((states, _), moves), pass_ = on.recurrent(layer), on.tensors
    tokens, chunks, (_, kept, channels) = len(x), len(pass_.rows), states.shape
    if not tokens:
        return
    pieces, whole = triton.cdiv(channels, CHANNELS), tokens == chunks
    of_states = x, x.shape[1], states, states.stride(0), *_chunks(pass_, moves)
    of_layer = channels, kept, gated
    convolve_kernel[tokens, pieces](
        *of_states, pass_.chunk_of, weight, bias, out, *of_layer, whole, CHANNELS, num_warps=2, enable_fp_fusion=True
    )
    if not whole:
        keep_inputs_kernel[chunks, pieces](*of_states, *of_layer, CHANNELS, num_warps=2, enable_fp_fusion=True)


def _chunks(pass_: PassTensors, moves: StateTensors) -> tuple[Tensor, ...]:
    """In the order in which the kernels have them."""
    return pass_.rows, pass_.query_start, pass_.context_len, moves.snapshot_start, moves.positions, moves.places


@triton.jit
def convolve_kernel(
    x,
    width,
    states,
    state_stride,
    rows,
    query_start,
    context_len,
    snapshot_start,
    positions,
    places,
    chunk_of,
    weight,
    bias,
    out,
    CHANNELS: tl.constexpr,
    KEPT: tl.constexpr,
    GATED: tl.constexpr,
    WHOLE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (t, piece): channels of token t. WHOLE: it is all of its chunk."""
    token, channel = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there, chunk = channel < CHANNELS, tl.load(chunk_of + token)
    start, before = tl.load(query_start + chunk), tl.load(context_len + chunk) > 0
    state = states + tl.load(rows + chunk).to(tl.int64) * state_stride
    sums = tl.zeros([BLOCK], tl.float32)
    for tap in tl.static_range(KEPT + 1):
        index = (token - start).to(tl.int32) - KEPT + tap
        seen = _seen(x, width, state, start, before, index, channel, there, CHANNELS, KEPT, GATED)
        sums += tl.load(weight + tap * CHANNELS + channel, mask=there, other=0) * seen.to(tl.float32)
    if GATED:
        if bias is not None:
            sums += tl.load(bias + channel, mask=there, other=0)
        found = tl.load(x + token * width + CHANNELS + channel, mask=there, other=0) * sums
    else:
        found = sums / (1 + tl.exp(-sums))
    tl.store(out + token * CHANNELS + channel, found.to(out.dtype.element_ty), mask=there)
    if WHOLE:
        first, last = tl.load(snapshot_start + chunk), tl.load(snapshot_start + chunk + 1)
        for entry in range(first, last + 1):
            place = tl.load(places + entry, mask=entry < last, other=0)
            place = tl.where(entry < last, place, tl.load(rows + chunk)).to(tl.int64)
            _keep(
                x, width, state, states + place * state_stride, start, before, 1, channel, there, CHANNELS, KEPT, GATED
            )


@triton.jit
def keep_inputs_kernel(
    x,
    width,
    states,
    state_stride,
    rows,
    query_start,
    context_len,
    snapshot_start,
    positions,
    places,
    CHANNELS: tl.constexpr,
    KEPT: tl.constexpr,
    GATED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program (c, piece): channels of the inputs that chunk c leaves behind, in snapshots first and then in its row."""
    chunk, channel = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there, start, context = channel < CHANNELS, tl.load(query_start + chunk), tl.load(context_len + chunk)
    row, end = tl.load(rows + chunk), context + tl.load(query_start + chunk + 1) - start
    state = states + row.to(tl.int64) * state_stride
    first, last = tl.load(snapshot_start + chunk), tl.load(snapshot_start + chunk + 1)
    for entry in range(first, last + 1):
        due = tl.load(positions + entry, mask=entry < last, other=0)
        place = tl.load(places + entry, mask=entry < last, other=0)
        done = tl.where(entry < last, due, end) - context
        target = states + tl.where(entry < last, place, row).to(tl.int64) * state_stride
        _keep(x, width, state, target, start, context > 0, done, channel, there, CHANNELS, KEPT, GATED)


@triton.jit
def _keep(
    x,
    width,
    state,
    target,
    start,
    before,
    done,
    channel,
    there,
    CHANNELS: tl.constexpr,
    KEPT: tl.constexpr,
    GATED: tl.constexpr,
):
    """Store the last inputs after `done` tokens of a chunk to `target`: the oldest first, so that it may be `state`."""
    for slot in tl.static_range(KEPT):
        seen = _seen(x, width, state, start, before, done - KEPT + slot, channel, there, CHANNELS, KEPT, GATED)
        tl.store(target + slot * CHANNELS + channel, seen, mask=there)


@triton.jit
def _seen(
    x,
    width,
    state,
    start,
    before,
    index,
    channel,
    there,
    CHANNELS: tl.constexpr,
    KEPT: tl.constexpr,
    GATED: tl.constexpr,
):
    """act[channels], an input of a chunk by its index in it; from -KEPT to -1 it came before, if anything did."""
    of_chunk, of_state = there & (index >= 0), there & (index < 0) & before
    token = x + (start + index).to(tl.int64) * width + channel
    fresh = tl.load(token, mask=of_chunk, other=0)
    if GATED:
        fresh *= tl.load(token + 2 * CHANNELS, mask=of_chunk, other=0)
    kept = tl.load(state + (KEPT + index) * CHANNELS + channel, mask=of_state, other=0)
    return tl.where(index >= 0, fresh.to(kept.dtype), kept)


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
