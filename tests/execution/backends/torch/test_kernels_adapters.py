"""Kernels of adapters against the definition, the same bits in every company, and what they take of a GPU."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from inflight.execution import ops
from inflight.execution.backends.torch.adapted_matrix import FIELDS, TILE, AdaptedMatrix, AdapterRows, Extent, max_tiles
from inflight.execution.backends.torch.kernels.adapters import add_low_rank
from inflight.execution.backends.torch.kernels.linear import gate_both
from inflight.execution.backends.torch.weights import DeviceGateUp, DeviceLinear, PlainMatrix
from inflight.execution.ops.formulas import gated

from . import matrices
from .adapter_tensors import Part, a_weight, in_slots, rows_of
from .compiled import Compiler
from .launched import Given, define, launch
from .matrices import moved
from .test_kernels_linear import COLUMNS, ROWS, assert_close, held, on

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")  # of the interpreter's numpy

WIDTH = 330  # outputs, of which no part has a multiple of a tile's
SLOTS = (
    (Part(0, 4, 200), Part(200, 4, 50), Part(250, 4, 80)),
    (Part(200, 40, 50),),
    (Part(0, 16, 200), Part(250, 9, 80)),
)


def added(x: torch.Tensor, adapted: AdaptedMatrix, slots: Sequence[int]) -> torch.Tensor:
    """Add to ones by the kernels."""
    out = torch.ones(len(x), WIDTH, device=x.device)
    add_low_rank(x, adapted, rows_of(slots, len(SLOTS), x.device), out)
    return out


def defined(x: torch.Tensor, adapted: AdaptedMatrix, slots: Sequence[int]) -> torch.Tensor:
    """Add to ones by the definition: of a product with zeros whose biases are ones."""
    zeros, out = torch.zeros(WIDTH, x.shape[1], dtype=x.dtype, device=x.device), torch.empty(len(x), WIDTH)
    weight = DeviceLinear((PlainMatrix(zeros),), WIDTH, x.shape[1], 0, torch.ones(WIDTH, device=x.device))
    given = Given(adapted=adapted, rows=rows_of(slots, len(SLOTS), x.device), act=x.dtype)
    define(ops.linear, given, x, weight, out)
    return out.to(x.device)


def close(found: torch.Tensor, want: torch.Tensor, act: torch.dtype) -> None:
    """The sums in the middle are rounded to act: one that is a bit aside may be a step of act aside."""
    largest = float((want - 1).abs().max())
    assert torch.isfinite(found).all() and largest > 1
    assert float((found - want).abs().max()) <= largest * (2e-6 if act == torch.float32 else 2**-10)


@pytest.mark.parametrize("columns", [200, 1100])
@pytest.mark.parametrize(
    "slots",
    [(2,), (0, 0, 0), (-1, 2, 0, -1, 1, 2, 0, 2), (*[1] * 17, *[-1] * 3, *[0] * 33), (-1, -1)],
    ids=["one row", "one adapter", "any order", "several tiles", "none"],
)
def test_adapters_add_the_numbers_of_their_reference(
    columns: int, slots: Sequence[int], act: torch.dtype, device: torch.device
) -> None:
    x, adapted = on(device, 1, len(slots), columns, act=act), in_slots(a_weight(WIDTH, columns), SLOTS, act, device)
    found, want = added(x, adapted, slots), defined(x, adapted, slots)
    assert (found[[slot < 0 for slot in slots]] == 1).all()
    if max(slots) >= 0:
        close(found, want, act)
    if set(slots) == {1}:
        assert (found[:, :200] == 1).all() and (found[:, 250:] == 1).all()


def test_the_definition_is_a_product_of_low_rank(device: torch.device) -> None:
    x, adapted = on(device, 1, 3, 200), in_slots(a_weight(WIDTH, 200), SLOTS, torch.float32, device)
    found = defined(x, adapted, (2, -1, 0))
    for row, slot in ((0, 2), (2, 0)):
        want = torch.ones(WIDTH, device=device, dtype=torch.float64)
        for part in adapted.parts(slot):
            lowered = part.down.double() @ x[row].double()
            want[part.first : part.first + len(part.up)] += part.up.double() @ lowered
        torch.testing.assert_close(found[row].double(), want, rtol=1e-5, atol=1e-4)


def test_a_row_has_the_same_bits_in_every_company(act: torch.dtype, device: torch.device) -> None:
    """Alone, behind rows of other adapters, in another tile and place of it, and beside adapters of a higher rank."""
    x = on(device, 1, 70, 1100, act=act)
    slots = np.random.default_rng(3).integers(-1, 3, 70).tolist()
    adapted = in_slots(a_weight(WIDTH, 1100), SLOTS, act, device)
    together = added(x, adapted, slots)
    backwards = added(x.flip(0), adapted, slots[::-1]).flip(0)
    assert torch.equal(together, backwards)
    for row in range(0, 70, 17):
        assert torch.equal(added(x[row : row + 1], adapted, slots[row : row + 1])[0], together[row])
    larger = [*SLOTS[:2], (Part(0, 64, 200), Part(250, 64, 80))]
    beside = added(x, in_slots(a_weight(WIDTH, 1100), larger, act, device), slots)
    others = [row for row, slot in enumerate(slots) if slot != 2]
    assert torch.equal(beside[others], together[others])


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("kind", ["plain", "int8"])
def test_gates_that_meet_ups_later_have_the_same_bits(
    kind: str, activation: str, act: torch.dtype, device: torch.device
) -> None:
    """Compare rows without an adapter, in a pass where others have one."""
    weight = moved(DeviceGateUp(matrices.linear([held(kind, ROWS, COLUMNS, act)], COLUMNS)), device)
    x = on(device, 1, 5, COLUMNS, act=act) / 4
    at_once, later = torch.full((2, 5, ROWS // 2), torch.nan, device=device, dtype=act)
    given = Given(act=act, invariant=True)
    launch(ops.gate_up, given, x, weight, at_once, activation)
    both = torch.empty(5, ROWS, device=device)
    launch(ops.linear, given, x, weight.both, both)
    gate_both(both, weight, activation, later)  # type: ignore[arg-type]
    assert torch.equal(at_once, later)
    want = torch.from_numpy(gated(both.cpu().numpy(), activation)).to(device, act)  # type: ignore[arg-type]
    assert_close(later, want, act)


def test_nothing_is_launched_for_no_rows(device: torch.device) -> None:
    adapted = in_slots(a_weight(WIDTH, 200), SLOTS, torch.float32, device)
    assert added(torch.empty(0, 200, device=device), adapted, ()).shape == (0, WIDTH)


# -- on GPUs that are not there ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "rank"), [(32, 16), (2048, 256)])
@pytest.mark.parametrize("act", [torch.bfloat16, torch.float32], ids=["bfloat16", "float32"])
def test_what_adapters_take(tokens: int, rank: int, act: torch.dtype, compiler: Compiler) -> None:
    """Compile for a packed q, k and v of Llama-3.1-8B, with eight slots. A and B are read in vectors, whose places only
    the table has."""

    def empty(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype, device="meta")

    tiles = max_tiles(tokens, 8)
    rows = AdapterRows(empty(tiles * TILE), empty(tiles))
    adapted = AdaptedMatrix(a_weight(6144, 4096), {}, empty(8, 3, FIELDS, dtype=torch.int64), Extent(3, rank, 4096))
    x, out = empty(tokens, 4096, dtype=act), empty(tokens, 6144, dtype=torch.float32)

    def call() -> None:
        add_low_rank(x, adapted, rows, out)

    compiler.fits(call, registers=128, shared=33 << 10)
    if compiler.arch != 90:
        return
    shrink, expand = compiler.compile(call)
    assert [shrink.name, expand.name] == ["shrink_kernel", "expand_kernel"]
    of_shrink, of_expand = (re.findall(r"cp\.async\.c.\.shared[^;]*, (0x\w+)", one.ptx) for one in (shrink, expand))
    assert set(of_shrink) == {"0x10"} and "0x10" in of_expand  # bytes
