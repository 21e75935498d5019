"""Short convolutions over the last inputs of sequences, as kernels.

A convolution is computed token by token side by side, and its states are written when all tokens have read them.
Products and sums are fused, which each launch says: Triton's own choice differs from version to version.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from inflight.execution.backends.torch.device_pass import DevicePass
from inflight.execution.backends.torch.tensors import PassTensors, StateTensors

CHANNELS = 256  # of a convolution in one program


def convolve(on: DevicePass, x: Tensor, layer: int, weight: Tensor, out: Tensor) -> None:
    _convolve(on, x, layer, weight, None, out)


def convolve_gated(on: DevicePass, x: Tensor, layer: int, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    _convolve(on, x, layer, weight, bias, out, gated=True)


def _convolve(
    on: DevicePass, x: Tensor, layer: int, weight: Tensor, bias: Tensor | None, out: Tensor, gated: bool = False
) -> None:
    """Where every chunk is one token, what computes it leaves its state behind; else a second kernel does."""
    ((states, _), moves), pass_ = on.recurrent(layer), on.tensors
    tokens, chunks, (_, kept, channels) = len(x), len(pass_.rows), states.shape
    if not tokens:
        return
    pieces, whole = triton.cdiv(channels, CHANNELS), tokens == chunks
    of_states = x, x.shape[1], states, states.stride(0), *chunks_of(pass_, moves)
    of_layer = channels, kept, gated
    convolve_kernel[tokens, pieces](
        *of_states, pass_.chunk_of, weight, bias, out, *of_layer, whole, CHANNELS, num_warps=2, enable_fp_fusion=True
    )
    if not whole:
        keep_inputs_kernel[chunks, pieces](*of_states, *of_layer, CHANNELS, num_warps=2, enable_fp_fusion=True)


def chunks_of(pass_: PassTensors, moves: StateTensors) -> tuple[Tensor, ...]:
    """Return the tensors that describe chunks, in the order of the kernels' arguments."""
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
