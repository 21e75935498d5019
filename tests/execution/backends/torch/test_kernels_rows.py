"""Numbers row by row as kernels against the definitions: to a few last bits, since exponentials and sums differ
there. Where nothing but moves, products and single sums is done, to the last."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from inflight.execution import ops
from inflight.execution.backends import int4, int8
from inflight.execution.backends.torch.weights import DeviceTable, GroupedMatrix, Int8Matrix, PackedMatrix, PlainMatrix

from ..material import normal
from .compiled import Compiler
from .launched import Given, define, launch, one_token
from .matrices import eight_bits, in_groups, in_int4, moved

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")  # the interpreter's numpy
SHAPES = [(1, 64), (3, 50), (5, 1100), (2, 1), (0, 32)]


def random(device: torch.device, seed: int, *shape: int, times: float = 3) -> Tensor:
    return torch.from_numpy(times * normal(seed, *shape)).float().to(device)


def same(got: Tensor, want: Tensor, atol: float = 2e-6) -> None:
    rtol = 2**-10 if got.dtype == torch.float16 else 3e-6
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol)


@pytest.mark.parametrize(("count", "width"), SHAPES)
def test_norms(device: torch.device, act: torch.dtype, count: int, width: int) -> None:
    x, weight, bias = (random(device, seed, *shape) for seed, shape in enumerate([(count, width), (width,), (width,)]))
    given = Given(act=act)
    got, want = (torch.full((count, width), torch.nan, dtype=act, device=device) for _ in range(2))
    for by, out in ((launch, got), (define, want)):
        by(ops.rms_norm, given, x, weight, 1e-5, out)
    same(got, want)
    for shift in (None, bias):
        for by, out in ((launch, got), (define, want)):
            by(ops.layer_norm, given, 100 + x, weight, shift, 1e-5, out)
        same(got, want, atol=2e-5)


@pytest.mark.parametrize(("count", "width", "parts"), [(1, 64, 1), (9, 72, 3), (3, 50, 50), (0, 8, 2)])
def test_what_is_added(device: torch.device, count: int, width: int, parts: int) -> None:
    x, norm, before = (
        random(device, 1, count, width),
        random(device, 2, width // parts),
        random(device, 3, count, width),
    )
    for weight in (None, norm):
        got, want = before.clone(), before.clone()
        for by, out in ((launch, got), (define, want)):
            by(ops.add, Given(), x, weight, 1e-6, 0.22, out)
        same(got, want, atol=0 if weight is None else 2e-6)


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh", "relu", "relu2", "tanh", "xielu"])
def test_activation_functions(device: torch.device, act: torch.dtype, kind: str) -> None:
    special = torch.tensor([0, -1e-7, -1e-3, 100, -100, -88, -10, 6], device=device)
    x = torch.cat([special, random(device, 1, 3 * 1050 - 8)]).view(3, 1050)
    curve, factors = torch.tensor([0.8, 1.3], device=device), random(device, 2, 3, 2200)
    for by in (None, factors):
        got, want = (torch.full((3, 1050), torch.nan, dtype=act, device=device) for _ in range(2))
        for run, out in ((launch, got), (define, want)):
            run(ops.activate, Given(act=act), x, kind, out, curve, by, 100)
        same(got, want, atol=1e-5)


@pytest.mark.parametrize(("count", "width"), SHAPES)
def test_gates(device: torch.device, act: torch.dtype, count: int, width: int) -> None:
    x, gates = random(device, 1, count, width), random(device, 2, count, width)
    sums = [random(device, 3, count, width) for _ in range(2)]
    products = [x.to(act, copy=True) for _ in range(2)]
    for by, total, product in zip((launch, define), sums, products, strict=True):
        by(ops.add_gated, Given(act=act), x, gates[:, :1].contiguous(), total)
        by(ops.gate, Given(act=act), gates, product)
    same(*sums)
    same(*products)


def looked_up(device: torch.device, matrix: PackedMatrix, columns: int, share_scales: Tensor | None = None) -> None:
    """As the definition does, to the last bit."""
    table = DeviceTable(matrix, 11, columns, 0, None, share_scales)
    ids = torch.tensor([3, 0, 10, 3], dtype=torch.int32, device=device)
    act = matrix.values.dtype if isinstance(matrix, PlainMatrix) else torch.float32
    for count in (0, 4):
        got, want = (torch.full((count, columns), torch.nan, device=device) for _ in range(2))
        given = Given(one_token(device)._replace(token_ids=ids[:count]), act=act)
        launch(ops.embed, given, table, got)
        define(ops.embed, given, table, want)
        assert torch.equal(got, want)


@pytest.mark.parametrize("columns", [24, 1100])
def test_tokens_are_looked_up_as_they_are_held(device: torch.device, act: torch.dtype, columns: int) -> None:
    looked_up(device, PlainMatrix(random(device, 1, 11, columns).to(act)), columns)


@pytest.mark.parametrize("shares", [1, 3])
def test_tokens_are_looked_up_in_int8(device: torch.device, shares: int) -> None:
    codes, scales = (torch.from_numpy(each).to(device) for each in int8.quantize(normal(1, 11 * shares, 600 // shares)))
    matrix = Int8Matrix(codes.view(11, 600), scales[:11].clone())
    looked_up(device, matrix, 600, None if shares == 1 else scales.view(11, shares))


@pytest.mark.parametrize("columns", [64, 600])
def test_tokens_are_looked_up_in_int4(device: torch.device, columns: int) -> None:
    source = int4.quantize(normal(1, 11, columns), 32)
    bent = replace(source, offsets=normal(2, *source.scales.shape), meanings=np.arange(16, dtype=np.int8) ** 2 // 2)
    for matrix in (source, replace(source, offsets=source.scales), bent):
        looked_up(device, moved(in_int4(matrix), device), columns)


@pytest.mark.parametrize(("group", "offsets"), [(16, True), (128, False)])
def test_tokens_are_looked_up_in_int8_by_groups(device: torch.device, group: int, offsets: bool) -> None:
    looked_up(device, moved(in_groups(eight_bits(11, 600, group, offsets)), device), 600)


def test_a_row_has_the_same_bits_in_every_batch(device: torch.device) -> None:
    x, weight, gates = (random(device, seed, *shape) for seed, shape in enumerate([(6, 300), (300,), (6, 1)]))

    def everything(part: slice) -> list[Tensor]:
        outs = [torch.ones(len(x[part]), 300, device=device) for _ in range(5)]
        launch(ops.rms_norm, Given(), x[part], weight, 1e-5, outs[0])
        launch(ops.layer_norm, Given(), x[part], weight, None, 1e-5, outs[1])
        launch(ops.add, Given(), x[part], weight[:100], 1e-5, 0.5, outs[2])
        launch(ops.activate, Given(), x[part], "silu", outs[3])
        launch(ops.add_gated, Given(), x[part], gates[part], outs[4])
        return outs

    whole = everything(slice(0, 6))
    for part in (slice(0, 1), slice(4, 5), slice(2, 6)):
        assert all(torch.equal(got, want[part]) for got, want in zip(everything(part), whole, strict=True))


@pytest.mark.parametrize("width", [pytest.param(896, marks=pytest.mark.wide), 4096, 16384])
def test_what_they_take(compiler: Compiler, width: int) -> None:
    x, out = torch.empty(7, width, device="meta"), torch.empty(7, width, dtype=torch.bfloat16, device="meta")
    compiler.fits(lambda: launch(ops.rms_norm, Given(), x, x[0], 1e-6, out), registers=80, shared=64)
    compiler.fits(lambda: launch(ops.layer_norm, Given(), x, x[0], x[0], 1e-6, out), registers=80, shared=64)
    compiler.fits(lambda: launch(ops.add, Given(), x, x[0], 1e-6, 0.5, x), registers=80, shared=64)


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh", "xielu"])
def test_what_activation_functions_take(compiler: Compiler, kind: str) -> None:
    x, out = torch.empty(7, 896, device="meta"), torch.empty(7, 896, dtype=torch.bfloat16, device="meta")
    compiler.fits(lambda: launch(ops.activate, Given(), x, kind, out, x[0], x), registers=40, shared=0)


def test_what_the_others_take(compiler: Compiler) -> None:
    x, held = torch.empty(7, 896, device="meta"), torch.empty(7, 896, dtype=torch.bfloat16, device="meta")
    ids, codes = (torch.empty(7, 896, dtype=kind, device="meta") for kind in (torch.int32, torch.int8))
    given = Given(one_token("meta")._replace(token_ids=ids[0, :7]))
    for call in (
        lambda: launch(ops.add, Given(), x, None, 1e-6, 0.5, x),
        lambda: launch(ops.add_gated, Given(), x, x[:, :1], x),
        lambda: launch(ops.gate, Given(), x, held),
        lambda: launch(ops.embed, given, DeviceTable(PlainMatrix(held), 7, 896, 0), x),
        lambda: launch(ops.embed, given, DeviceTable(Int8Matrix(codes, x[:, 0]), 7, 896, 0, None, x[:, :4]), x),
        lambda: launch(ops.embed, given, DeviceTable(GroupedMatrix(codes, x[:, :28], None, 32), 7, 896, 0), x),
    ):
        compiler.fits(call, registers=40, shared=0)
