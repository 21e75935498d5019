"""The kernel that multiplies: a tile of x · Wᵀ, for every way to pack a matrix, and what becomes of it.

A product may end with a bias, a sum with what is there, or gate and up as one. W may be one matrix of a stack: of the
head that a program has, or of the expert that its rows are sorted to. `tiles` has the sizes, `launching` the launches.

No sum depends on what else is in a batch: an output adds up its own row's inputs, in blocks whose size and order follow
from the matrix and the tile. Gates and ups stand in turns in a tile, so that both of a pair meet in one thread.
"""

from __future__ import annotations

import triton
import triton.language as tl

from inflight.execution.backends.torch.kernels.codes import halves_of, widened
from inflight.execution.backends.torch.kernels.functions import activated, times_sigmoid

_TOGETHER = tl.constexpr(8)  # tiles of rows that go over the same outputs at a time


@triton.jit(do_not_specialize=["num_rows"])
def multiply(
    x,  # act, int8 or float8_e4m3fn [rows, columns]
    x_scales,  # float32[rows], or of a head [rows, H]; None of act
    weight,  # [N, K]; of codes of groups uint8[N, K / 2] or int8[N, K], K filled up to whole groups
    scales,  # float32[N], of codes [N, groups]; None of act
    offsets,  # float32[N, groups] or None
    permutation,  # int32[columns] or None
    meanings,  # act[16] or None
    bias,  # float32[N] or None
    out,  # float32, or act if GATING or heads
    sorted_rows,  # int32[num_rows]: pairs of token and rank, from 1, by expert; 0 is no pair. None: rows as they are
    matrices,  # int32[num_rows / BLOCK_M]: the expert of a tile, from 1; 0 is none
    partial,  # float32 or int32 [PARTS, num_rows, N]: sums for `finish` to add up; None where one program has all parts
    num_rows,
    N,
    K,  # columns of x
    x_stride,
    out_stride,
    head_stride,  # of out
    x_share,  # pairs that have one row of x
    HEADS: tl.constexpr,  # as many matrices and parts of x, side by side in programs; 0: no heads
    GROUP: tl.constexpr,  # inputs that share a scale; 0: not in codes of groups
    CODING: tl.constexpr,  # what codes mean (`codes`)
    GATING: tl.constexpr,  # a name, or "": of 2 · F outputs F are written
    ADD: tl.constexpr,
    PARTS: tl.constexpr,  # of the inputs, whose sums are added up in order
    WHOLE: tl.constexpr,  # K is a multiple of BLOCK_K · PARTS
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    row_tile, output_tile = _tile(num_rows, N, BLOCK_M, BLOCK_N)
    slots = row_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    matrix, head = tl.program_id(1).to(tl.int64), tl.program_id(1)
    if sorted_rows is None:
        is_row, rows, x_rows = slots < num_rows, slots, slots
    else:
        matrix = tl.load(matrices + row_tile).to(tl.int64) - 1
        if matrix < 0:
            return
        pairs = tl.load(sorted_rows + slots)
        is_row, rows, x_rows = pairs > 0, pairs - 1, (pairs - 1) // x_share
    outputs = _outputs(output_tile, N, GATING, BLOCK_N)
    is_output = outputs < N
    valid = tl.where(is_output, outputs, 0).to(tl.int64)
    x_at = x + tl.where(is_row, x_rows, 0).to(tl.int64) * x_stride
    if HEADS:
        x_at += head * K
        x_rows = x_rows * HEADS + head
    part = tl.program_id(2)
    if GROUP:
        groups = tl.cdiv(K, GROUP)
        BYTES: tl.constexpr = GROUP // halves_of(CODING)
        weight_at = weight + matrix * N * groups * BYTES + valid * groups * BYTES
        scales_at = scales + matrix * N * groups + valid * groups
        offsets_at = None if offsets is None else offsets + matrix * N * groups + valid * groups
        order = None if permutation is None else permutation + matrix * K
    else:
        weight_at, scales_at, offsets_at, order = weight + matrix * N * K + valid * K, None, None, None
    sums = _sums_of(
        x_at, is_row, weight_at, scales_at, offsets_at, order, meanings, K, part,
        GROUP, CODING, PARTS, WHOLE, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    if partial is not None:
        places = (part * num_rows + rows).to(tl.int64)[:, None] * N + outputs[None, :]
        tl.store(partial + places, sums, mask=is_row[:, None] & is_output[None, :])
    else:
        for later in range(1, PARTS):
            sums += _sums_of(
                x_at, is_row, weight_at, scales_at, offsets_at, order, meanings, K, later,
                GROUP, CODING, PARTS, WHOLE, BLOCK_M, BLOCK_N, BLOCK_K,
            )  # fmt: skip
        meant = _meant(sums, x_scales, x_rows, is_row, scales, bias, matrix * N + valid)
        out_at = out + head * head_stride + rows.to(tl.int64) * out_stride
        _write(meant, out_at, is_row, output_tile, N, GATING, ADD, BLOCK_M, BLOCK_N)


@triton.jit(do_not_specialize=["num_rows"])
def finish(
    partial,
    x_scales,
    scales,
    bias,
    out,
    num_rows,
    N,
    out_stride,
    GATING: tl.constexpr,
    ADD: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Add up the partial sums that several programs of `multiply` left of a product, in order of the inputs."""
    row_tile, output_tile = _tile(num_rows, N, BLOCK_M, BLOCK_N)
    rows = row_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    outputs = _outputs(output_tile, N, GATING, BLOCK_N)
    is_row, is_output = rows < num_rows, outputs < N
    valid = tl.where(is_output, outputs, 0)
    mask = is_row[:, None] & is_output[None, :]
    sums = tl.load(partial + rows.to(tl.int64)[:, None] * N + outputs[None, :], mask=mask, other=0)
    for part in tl.static_range(1, PARTS):
        places = (part * num_rows + rows).to(tl.int64)[:, None] * N + outputs[None, :]
        sums += tl.load(partial + places, mask=mask, other=0)
    meant = _meant(sums, x_scales, rows, is_row, scales, bias, valid)
    _write(meant, out + rows.to(tl.int64) * out_stride, is_row, output_tile, N, GATING, ADD, BLOCK_M, BLOCK_N)


@triton.jit
def _tile(num_rows, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Which tiles of rows and outputs this program has. A few of rows meet the same outputs one after the other, then
    the next outputs: what they share is still in the cache."""
    program = tl.program_id(0)
    of_rows, of_outputs = tl.cdiv(num_rows, BLOCK_M), tl.cdiv(N, BLOCK_N)
    first = program // (_TOGETHER * of_outputs) * _TOGETHER
    together = tl.minimum(of_rows - first, _TOGETHER)
    place = program % (_TOGETHER * of_outputs)
    return first + place % together, place // together


@triton.jit
def _outputs(tile, N, GATING: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return the tile's outputs int32[BLOCK_N], N and more where there are none; gate and up alternate, each pair side
    by side."""
    places = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    if GATING == "":
        return places
    return tl.where(places < N, places // 2 + places % 2 * (N // 2), N)


@triton.jit
def _sums_of(
    x_at, is_row, weight_at, scales_at, offsets_at, permutation, meanings, K, part,
    GROUP: tl.constexpr, CODING: tl.constexpr, PARTS: tl.constexpr, WHOLE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Return sums over a part of the inputs [BLOCK_M, BLOCK_N]."""
    if GROUP:
        return _sums_of_codes(
            x_at, is_row, weight_at, scales_at, offsets_at, permutation, meanings, K, part,
            GROUP, CODING, PARTS, WHOLE, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
    else:
        return _sums(x_at, is_row, weight_at, K, part, PARTS, WHOLE, BLOCK_M, BLOCK_N, BLOCK_K)


@triton.jit
def _sums(
    x_at,
    is_row,
    weight_at,
    K,
    part,
    PARTS: tl.constexpr,
    WHOLE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Return sums of numbers that are multiplied as they are stored: float32[BLOCK_M, BLOCK_N], of int8 int32."""
    KIND: tl.constexpr = tl.int32 if x_at.dtype.element_ty == tl.int8 else tl.float32
    EXACT: tl.constexpr = min(BLOCK_K, 128)  # of fp8: inputs after which sums are kept in float32, not in tensor cores
    inputs = tl.arange(0, BLOCK_K)
    x_at, weight_at = x_at[:, None] + inputs[None, :], weight_at[None, :] + inputs[:, None]
    sums = tl.zeros([BLOCK_M, BLOCK_N], KIND)
    blocks = tl.cdiv(tl.cdiv(K, BLOCK_K), PARTS)
    for block in range(part * blocks, (part + 1) * blocks):
        first = block * BLOCK_K
        if WHOLE:
            of_x = tl.load(x_at + first, mask=is_row[:, None], other=0.0)
            of_weight = tl.load(weight_at + first)
        else:
            is_input = inputs < K - first
            of_x = tl.load(x_at + first, mask=is_row[:, None] & is_input[None, :], other=0.0)
            of_weight = tl.load(weight_at + first, mask=is_input[:, None], other=0.0)
        sums = tl.dot(of_x, of_weight, sums, input_precision="ieee", max_num_imprecise_acc=EXACT, out_dtype=KIND)
    return sums


@triton.jit
def _sums_of_codes(
    x_at, is_row, weight_at, scales_at, offsets_at, permutation, meanings, K, part,
    GROUP: tl.constexpr, CODING: tl.constexpr, PARTS: tl.constexpr, WHOLE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Return sums of codes of groups: float32[BLOCK_M, BLOCK_N]. Codes meet x as whole numbers, which `act` holds
    exactly; the sum of a group is scaled as one."""
    KIND: tl.constexpr = x_at.dtype.element_ty
    HALVES: tl.constexpr = halves_of(CODING)
    BYTES: tl.constexpr = GROUP // HALVES
    places = tl.arange(0, max(BYTES, 16))  # which tensor cores take at least
    x_at, weight_at = x_at[:, None], weight_at[None, :] + places[:, None]
    groups = tl.cdiv(K, GROUP)
    sums = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    blocks = tl.cdiv(tl.cdiv(K, BLOCK_K), PARTS)
    for block in range(part * blocks, (part + 1) * blocks):
        for place in tl.static_range(BLOCK_K // GROUP):
            group = block * (BLOCK_K // GROUP) + place
            first = group * GROUP
            if not WHOLE:
                group = tl.minimum(group, groups - 1)
            scale = tl.load(scales_at + group)[None, :]  # before what waits for it
            offset = scale
            if offsets_at is not None:
                offset = tl.load(offsets_at + group)[None, :]
            codes = tl.load(weight_at + group * BYTES, mask=(places < BYTES)[:, None] if BYTES < 16 else None)
            found = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
            together = tl.zeros([BLOCK_M, BLOCK_N if BLOCK_M <= 16 else 1], tl.float32)
            for half in tl.static_range(HALVES):
                inputs, is_input = first + half * BYTES + places, is_row[:, None]
                if not WHOLE:
                    is_input = is_input & (inputs < K)[None, :]
                    inputs = tl.where(inputs < K, inputs, 0)
                if BYTES < 16:
                    is_input = is_input & (places < BYTES)[None, :]
                    inputs = tl.where(places < BYTES, inputs, 0)
                if permutation is not None:
                    inputs = tl.load(permutation + inputs)
                of_x = tl.load(x_at + inputs[None, :], mask=is_input, other=0.0)
                meant = widened(codes, meanings, CODING, half == 1, KIND)
                found = tl.dot(of_x, meant, found, input_precision="ieee")
                if offsets_at is not None:
                    if BLOCK_M <= 16:  # tensor cores are idle: a product by ones is a sum that every thread has
                        ones = tl.full([places.shape[0], BLOCK_N], 1.0, KIND)
                        together = tl.dot(of_x, ones, together, input_precision="ieee")
                    else:
                        together += tl.sum(of_x.to(tl.float32), axis=1)[:, None]
            sums += found * scale
            if offsets_at is not None:
                sums += together * offset
    return sums


@triton.jit
def _meant(sums, x_scales, rows, is_row, scales, bias, outputs):
    """Scale sums to float32 numbers: of 8 bits times the scales of row and output; plus the bias where there is one."""
    if x_scales is not None:
        sums = sums.to(tl.float32) * tl.load(x_scales + rows, mask=is_row, other=0.0)[:, None]
        sums = sums * tl.load(scales + outputs)[None, :]
    if bias is not None:
        sums += tl.load(bias + outputs)[None, :]
    return sums


@triton.jit
def _write(
    sums,
    out_at,
    is_row,
    tile,
    N,
    GATING: tl.constexpr,
    ADD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Write sums float32[BLOCK_M, BLOCK_N] of the tile's outputs → out."""
    if GATING != "":
        gate, up = sums.reshape(BLOCK_M, BLOCK_N // 2, 2).split()
        found = _gated(gate, up, GATING)
        outputs, count = tile * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2), N // 2
    else:
        found = sums
        outputs, count = tile * BLOCK_N + tl.arange(0, BLOCK_N), N
    at, mask = out_at[:, None] + outputs[None, :], is_row[:, None] & (outputs < count)[None, :]
    if ADD:
        found += tl.load(at, mask=mask, other=0.0)
    tl.store(at, found.to(out_at.dtype.element_ty), mask=mask)


@triton.jit
def _gated(gate, up, GATING: tl.constexpr):
    """activation(gate) · up; `Gating` has the formulas."""
    if GATING == "clamped_swiglu":
        gate = tl.minimum(gate, 7.0)
        up = tl.minimum(tl.maximum(up, -7.0), 7.0)
        return times_sigmoid(gate, 1.702 * gate) * (up + 1.0)
    else:
        return activated(gate, GATING, 0.0, 0.0) * up


@triton.jit
def gate_kernel(both, out, F, GATING: tl.constexpr, BLOCK: tl.constexpr):
    """float32[rows, 2 · F], the gates first → act[rows, F], where a product came as several."""
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(both + row * 2 * F + at, mask=at < F, other=0.0)
    up = tl.load(both + row * 2 * F + F + at, mask=at < F, other=0.0)
    tl.store(out + row * F + at, _gated(gate, up, GATING).to(out.dtype.element_ty), mask=at < F)
