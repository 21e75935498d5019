"""Kernels of products against the definitions, the same bits in every company, and what they take of a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from breadth import first_of

from inflight.execution import ops
from inflight.execution.backends import fp8, int8
from inflight.execution.backends.torch.definitions import widened
from inflight.execution.backends.torch.kernels import tiles
from inflight.execution.backends.torch.kernels.launching import quantize_rows
from inflight.execution.backends.torch.kernels.linear import widen
from inflight.execution.backends.torch.kernels.tiles import INVARIANT, parts_for, tiles_for
from inflight.execution.backends.torch.weights import (
    DeviceGateUp,
    DeviceHeads,
    DeviceLinear,
    Fp8Matrix,
    GroupedMatrix,
    Int8Matrix,
    PackedMatrix,
    PlainMatrix,
)

from ..material import normal
from ..test_int4 import MXFP4, matrix, out_of_order
from . import matrices
from .compiled import Compiler
from .launched import Given, define, launch
from .matrices import eight_bits, in_fp8, in_groups, in_int4, in_int8, moved, plain, stacked

ROWS, COLUMNS = 50, 200  # neither fills a tile


def held(kind: str, rows: int, columns: int, act: torch.dtype, seed: int = 2) -> PackedMatrix:
    if kind == "plain":
        return plain(normal(seed, rows, columns), act)
    if kind in ("int8", "fp8"):
        return (in_int8 if kind == "int8" else in_fp8)(normal(seed, rows, columns))
    if kind.startswith("int8 in"):
        group, offsets = {"int8 in groups": (32, False), "int8 in 128s": (128, False), "int8 in 16s": (16, True)}[kind]
        return in_groups(eight_bits(rows, columns, group, offsets, seed))
    group = {"int4": 128, "offsets": 32, "mxfp4": 32, "out of order": 64, "group of 16": 16}[kind]
    source = matrix(
        rows, columns, group, kind in ("offsets", "group of 16"), MXFP4 if kind == "mxfp4" else np.arange(-8, 8)
    )
    return in_int4(out_of_order(source) if kind == "out of order" else source, act)


GROUPS_OF_INT8 = ["int8 in groups", "int8 in 128s", "int8 in 16s"]
KINDS = ["plain", "int8", "int4", "offsets", "mxfp4", "out of order", "group of 16", *GROUPS_OF_INT8]

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # of the interpreter's numpy


def on(device: torch.device, seed: int, *shape: int, act: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.from_numpy(normal(seed, *shape)).to(device, act)


def assert_close(found: torch.Tensor, want: torch.Tensor, act: torch.dtype = torch.float32) -> None:
    """Sums of float32 in another order; of float16, rounded once more at the end."""
    largest = float(want.float().abs().max())
    assert torch.isfinite(found).all() and largest > 0
    assert float((found.float() - want.float()).abs().max()) <= largest * (2e-6 if act == torch.float32 else 2**-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", first_of([1, 70, 5, 20], usual=2))
def test_a_product_is_its_reference(kind: str, tokens: int, act: torch.dtype, device: torch.device) -> None:
    x = on(device, 1, tokens, COLUMNS, act=act)
    weight = moved(matrices.linear([held(kind, ROWS, COLUMNS, act)], COLUMNS, normal(3, ROWS)), device)
    found, want = torch.full((2, tokens, ROWS), torch.nan, device=device)
    for by, out in ((launch, found), (define, want)):
        by(ops.linear, Given(act=act), x, weight, out)
    if kind == "int8" and device.type == "cpu":
        assert torch.equal(found, want)
    elif kind == "int8":  # a GPU adds the bias to the scaled sum at once
        torch.testing.assert_close(found, want, rtol=1e-6, atol=1e-6)
    elif act == torch.float16 and kind != "plain":
        assert_close(found, want, act)  # the reference rounds weights to float16, the kernel does not
    else:
        assert_close(found, want)


def test_codes_of_fp8_are_multiplied_with_float32_sums(device: torch.device) -> None:
    """Numbers that the format holds, since Triton's interpreter does not round to it."""
    x = on(device, 1, 5, COLUMNS).to(torch.float8_e4m3fn).float()
    x[:, 0] = 448
    weight = moved(matrices.linear([held("fp8", ROWS, COLUMNS, torch.float32)], COLUMNS), device)
    found, want = torch.full((2, 5, ROWS), torch.nan, device=device)
    for by, out in ((launch, found), (define, want)):
        by(ops.linear, Given(), x, weight, out)
    assert_close(found, want)


@pytest.mark.parametrize("scale", [1.0, 1e-31, 1e30])
def test_rows_in_int8_are_the_rule_to_the_last_bit(scale: float, device: torch.device) -> None:
    x = normal(1, 6, COLUMNS) * np.float32(scale)
    x[0, :5] = np.array([254, 127.0, 1.0, 3.0, 5.0], np.float32) * np.abs(x).max() / 127  # ties: halves of steps
    x[1] = 0
    x[2, 3], x[3, 4] = np.inf, np.nan
    found = quantize_rows(torch.from_numpy(x).to(device), torch.int8)
    for one, want in zip(found, int8.quantize(x), strict=True):
        np.testing.assert_array_equal(one.cpu().numpy(), want)


def test_rows_in_fp8_are_its_reference(device: torch.device) -> None:
    """Numbers that the format holds once they are scaled, since Triton's interpreter does not round to it."""
    x = on(device, 1, 6, COLUMNS).to(torch.float8_e4m3fn).float()
    x[:, 0] = 448
    x *= torch.tensor([1, 0, 2.0**-20, 2.0**30, 0.5, 1], device=device)[:, None]
    x[5, 3] = torch.nan
    codes, scales = quantize_rows(x, torch.float8_e4m3fn)
    want, want_scales = fp8.quantize(x.cpu().numpy())
    np.testing.assert_array_equal(scales.cpu().numpy(), want_scales)
    np.testing.assert_array_equal(codes.float().cpu().numpy(), fp8.E4M3[want])
    assert codes[2].float().abs().max() == 448


@pytest.mark.parametrize("kind", ["plain", "int8", "int8 in groups", "int4"])
def test_a_long_sum_is_shared_by_programs_and_added_up(kind: str, device: torch.device) -> None:
    columns = 8424  # which the last program has less of
    x, bias = on(device, 1, 3, columns), normal(3, 20)
    weight = moved(matrices.linear([held(kind, 20, columns, torch.float32)], columns, bias), device)
    assert parts_for(weight.parts[0], tiles_for(weight.parts[0], x.dtype, 3, False), 3, 20, columns, False).number > 1
    found, want = torch.ones(2, 3, 20, device=device)
    for by, out in ((launch, found), (define, want)):
        by(ops.linear_residual, Given(), x, weight, out)
    assert_close(found, want)
    assert kind != "int8" or torch.equal(found, want)


def test_parts_lie_beside_each_other_and_are_added_to_what_is_there(device: torch.device) -> None:
    parts = [held("plain", 7, COLUMNS, torch.float32), held("int8", 9, COLUMNS, torch.float32, seed=5)]
    weight = moved(matrices.linear(parts, COLUMNS, normal(3, 16)), device)
    x, found, want = on(device, 1, 3, COLUMNS), torch.ones(3, 16, device=device), torch.ones(3, 16, device=device)
    for by, out in ((launch, found), (define, want)):
        by(ops.linear_residual, Given(), x, weight, out)
    assert_close(found, want)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("kind", ["plain", "int8", "int8 in groups", "int4", "two parts"])
def test_gates_meet_ups_where_they_are_summed(
    kind: str, activation: str, act: torch.dtype, device: torch.device
) -> None:
    if kind == "two parts":
        parts = [held("plain", 25, COLUMNS, act), held("int8", 25, COLUMNS, act, seed=5)]
    else:
        parts = [held(kind, ROWS, COLUMNS, act)]
    weight = moved(DeviceGateUp(matrices.linear(parts, COLUMNS, normal(3, ROWS))), device)
    x = on(device, 1, 5, COLUMNS, act=act) / 4
    found, want = torch.full((2, 5, ROWS // 2), torch.nan, device=device, dtype=act)
    for by, out in ((launch, found), (define, want)):
        by(ops.gate_up, Given(act=act), x, weight, out, activation)
    assert_close(found, want, act)


@pytest.mark.parametrize("kind", ["plain", "int8", "int8 in groups", "offsets"])
def test_each_head_has_its_matrix_and_writes_no_more_than_its_numbers(kind: str, device: torch.device) -> None:
    heads, columns, rows = 3, 40, 5
    stack = stacked([held(kind, rows, columns, torch.float32, seed) for seed in range(heads)])
    weight = moved(DeviceHeads(stack, heads, rows, columns, 0), device)
    x, (found, want) = on(device, 9, 4, heads * columns), torch.full((2, 4, heads * (rows + 2)), 7.0, device=device)
    for by, out in ((launch, found), (define, want)):
        by(ops.by_head, Given(), x, weight, out)
    assert_close(found, want)
    assert (found.view(4, heads, -1)[..., rows:] == 7).all()


def test_nothing_is_launched_for_no_rows(device: torch.device) -> None:
    weight = moved(matrices.linear([held("int8", ROWS, COLUMNS, torch.float32)], COLUMNS), device)
    launch(ops.linear, Given(), torch.empty(0, COLUMNS, device=device), weight, torch.empty(0, ROWS, device=device))


@pytest.mark.parametrize("kind", ["plain", "int8", *GROUPS_OF_INT8, "int4", "offsets"])
def test_a_row_has_the_same_bits_among_any_others(kind: str, act: torch.dtype, device: torch.device) -> None:
    x = on(device, 1, 70, COLUMNS, act=act)
    weight = moved(matrices.linear([held(kind, ROWS, COLUMNS, act)], COLUMNS), device)
    found = {}
    for tokens in (1, 8, 64, 70):
        found[tokens] = torch.full((tokens, ROWS), torch.nan, device=device)
        launch(ops.linear, Given(act=act, invariant=True), x[:tokens], weight, found[tokens])
    assert all(torch.equal(one, found[70][: len(one)]) for one in found.values())


def test_parts_of_inputs_are_added_up_alike_by_one_program_and_by_many(
    act: torch.dtype, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = 2048
    x = on(device, 1, 5, columns, act=act)
    weight = moved(matrices.linear([held("plain", 20, columns, act)], columns), device)
    found = []
    for programs in (256, 0):  # below which inputs are shared
        monkeypatch.setattr(tiles, "SEPARATE_BELOW", programs)
        matrix = weight.parts[0]
        parts = parts_for(matrix, tiles_for(matrix, act, 5, True), 5, 20, columns, True)
        assert parts.number > 1 and parts.separate == (programs > 0)
        found.append(torch.full((5, 20), torch.nan, device=device))
        launch(ops.linear, Given(act=act, invariant=True), x, weight, found[-1])
    assert torch.equal(*found)


@pytest.mark.parametrize("kind", ["int4", "offsets", "mxfp4", "out of order", "group of 16", *GROUPS_OF_INT8])
def test_a_matrix_is_widened_as_its_reference_is(kind: str, act: torch.dtype, device: torch.device) -> None:
    matrix = held(kind, ROWS, COLUMNS, act)
    moved_there = moved(matrices.linear([matrix], COLUMNS), device).parts[0]
    want = torch.from_numpy(widened(matrix, COLUMNS)).to(act)
    assert torch.equal(widen(moved_there, COLUMNS, act).cpu(), want)


def test_tiles_that_may_meet_the_same_row_add_up_alike() -> None:
    """Blocks of inputs of one size, by a warp group each (64 rows and more for 4 warps)."""
    for kind in ("plain", "fp8", "int4", "grouped int8"):
        some, many = INVARIANT[kind].values()  # type: ignore[index]
        assert some.inputs == many.inputs and some.rows >= 64 and many.rows >= 64
        assert some.warps % 4 == 0 and many.warps % 4 == 0


# -- on GPUs that are not there ---------------------------------------------------------------------------------------


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(*shape, dtype=dtype, device="meta")


def nowhere(kind: str, rows: int, columns: int) -> DeviceLinear:
    """A matrix without numbers, beside activations in bfloat16."""
    scales = empty(rows, dtype=torch.float32)
    group = 128 if kind == "int4" else 32
    of_groups, of_16, of_128 = (empty(rows, columns // one, dtype=torch.float32) for one in (group, 16, 128))
    codes = empty(rows, columns // 2, dtype=torch.uint8)
    found: dict[str, PackedMatrix] = {
        "plain": PlainMatrix(empty(rows, columns)),
        "int8": Int8Matrix(empty(rows, columns, dtype=torch.int8), scales),
        "fp8": Fp8Matrix(empty(rows, columns, dtype=torch.float8_e4m3fn), scales),
        "int8 in groups": GroupedMatrix(empty(rows, columns, dtype=torch.int8), of_groups, None, group),
        "int8 in 16s": GroupedMatrix(empty(rows, columns, dtype=torch.int8), of_16, of_16, 16),
        "int8 in 128s": GroupedMatrix(empty(rows, columns, dtype=torch.int8), of_128, None, 128),
        "int4": GroupedMatrix(codes, of_groups, None, group),
        "offsets": GroupedMatrix(codes, of_groups, of_groups, group),
        "mxfp4": GroupedMatrix(codes, of_groups, None, group, None, empty(16), True),
        "table": GroupedMatrix(codes, of_groups, None, group, None, empty(16)),
    }
    return DeviceLinear((found[kind],), rows, columns, 0)


_FEW, _SOME, _MANY = (4, 168, 72 << 10), (64, 255, 99 << 10), (256, 255, 112 << 10)
_DESKTOP = 99 << 10  # shared memory of a program on sm_86, 89 and 120, whose tensor cores are used as sm_80's are
_USUAL = [("plain", _FEW), ("plain", _MANY), ("int8", _FEW), ("fp8", _FEW), ("int4", _FEW), ("int4", _MANY)]
_USUAL += [("int8 in groups", _FEW), ("int8 in groups", _MANY)]
_KINDS = ("plain", "int8", "fp8", *GROUPS_OF_INT8, "int4", "offsets", "mxfp4", "table")
_EVERY = [(kind, bounds) for kind in _KINDS for bounds in (_FEW, _SOME, _MANY)]


@pytest.mark.parametrize(
    ("kind", "bounds"), [pytest.param(*one, marks=() if one in _USUAL else pytest.mark.wide) for one in _EVERY]
)
def test_what_a_product_takes(kind: str, bounds: tuple[int, int, int], compiler: Compiler) -> None:
    """Fit three programs of few rows on a multiprocessor, and one of many rows."""
    tokens, registers, shared = bounds
    x, out = empty(tokens, 4096), empty(tokens, 8192, dtype=torch.float32)
    weight = nowhere(kind, 8192, 4096)

    def call() -> None:
        launch(ops.linear_residual, Given(invariant=tokens > 4), x, weight, out)

    spilled = 128 if kind in ("offsets", "int8 in 16s") and tokens > 4 else 0  # on sm_100
    compiler.fits(call, registers, shared, (90, 100), spilled)
    if kind != "fp8":  # which is sm_89's and later
        compiler.fits(call, registers, min(shared, _DESKTOP), (80,))


@pytest.mark.parametrize(("tokens", "wide"), first_of([(512, True), (513, False), (256, True), (4096, False)], 2))
def test_wide_tiles_have_one_sum(compiler: Compiler, monkeypatch: pytest.MonkeyPatch, tokens: int, wide: bool) -> None:
    """Where a program may have the shared memory; that of more rows would spill."""
    monkeypatch.setattr(tiles, "_shared", lambda matrix: 200 << 10)
    x, weight, out = empty(tokens, 4096), nowhere("plain", 4096, 4096), empty(tokens, 4096, dtype=torch.float32)

    def call() -> None:
        launch(ops.linear_residual, Given(invariant=True), x, weight, out)

    compiler.fits(call, 255, 160 << 10, (90, 100))
    if compiler.arch == 90:
        assert (max(one.shared for one in compiler.compile(call)) > 99 << 10) == wide


def test_what_heads_and_shared_sums_take(compiler: Compiler) -> None:
    """Take few outputs, whose inputs several programs share: another kernel adds up."""
    heads = DeviceHeads(PlainMatrix(empty(16, 512, 128)), 16, 512, 128, 0)
    compiler.fits(
        lambda: launch(ops.by_head, Given(), empty(4, 16 * 128), heads, empty(4, 16 * 576)),
        registers=72,
        shared=64 << 10,
    )
    x, weight, out = empty(4, 4096), nowhere("int8", 1024, 4096), empty(4, 1024, dtype=torch.float32)
    compiler.fits(lambda: launch(ops.linear, Given(), x, weight, out), registers=72, shared=64 << 10)
    names = [one.name for one in compiler.compile(lambda: launch(ops.linear, Given(), x, weight, out))]
    assert names == ["quantize_kernel", "multiply", "finish"]
