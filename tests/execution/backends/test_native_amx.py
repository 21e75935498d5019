"""Products by tile registers (native/gemm/amx.cpp) against numpy, to the bit.

No machine that this was written on has such registers: the kernels are compiled for the machine at hand, the intrinsics
by a header that does what Intel's manual says of them (`emulated_tiles.h`).
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from inflight.execution.backends import grouped, native
from inflight.execution.backends.bf16 import from_bf16, to_bf16
from inflight.execution.backends.int8 import quantize_groups
from inflight.execution.backends.matrices import Array, Int8Matrix

from .material import normal

NATIVE = Path(__file__).parents[3] / "native"
COMPILER = shutil.which(os.environ.get("CXX", "c++")) or ""
KINDS = {"bf16": 0, "int8_bf16": 1, "int8_f32": 2}
FEW = 6  # rows up to which int8 takes the other set's tile
pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="these are registers of x86-64"),
    pytest.mark.skipif(not COMPILER, reason="no C++ compiler is here"),
]
multiplies_bytes = pytest.mark.skipif(  # elsewhere x in int8 is laid out in 16 bits, for other instructions
    not any(one.runs for one in native.instruction_sets() if "vnni" in one.name),
    reason="this machine has no dot product of bytes, as every one with tile registers has",
)


class Products:
    """The compiled products, over matrices that are packed as native/types.h has it."""

    def __init__(self, library: Path) -> None:
        self._call = ctypes.CDLL(str(library)).product

    def plain(self, x: Array, weight: Array, threads: int = 2) -> Array:
        """Multiply bf16[T, K], as uint16, by bf16[N, K]."""
        (rows, columns), steps = weight.shape, -(-weight.shape[1] // 2)
        held = np.zeros((-(-rows // 32) * 32, 2 * steps), np.uint16)
        held[:rows, :columns] = weight
        packed = held.reshape(-1, 32, steps, 2).swapaxes(1, 2)
        return self._product("bf16", x, packed, np.ones(1, np.float32), (rows, columns, steps, 32, 0, 0), threads)

    def quantized(self, kind: str, x: Array, held: grouped.PackedMatrix, shares: list[int], threads: int = 2) -> Array:
        """Multiply bf16 or float32[T, K] by a held matrix, as so many rows by themselves."""
        scales, (rows, columns) = held.scales, held.shape
        inputs, groups = min(32, scales.group), -(-rows // 32)
        steps, both = -(-columns // inputs), 1 if scales.offsets is None else 2
        heads = np.zeros((both, groups * 32, steps), np.float16)
        spans = np.arange(steps) * inputs // scales.group
        heads[0, :rows] = scales.scales[:, spans]
        if scales.offsets is not None:
            heads[1, :rows] = scales.offsets[:, spans]
        values = np.zeros((groups * 32, steps * inputs), np.int8)
        values[:rows, :columns] = held.values
        codes = (values.view(np.uint8) ^ 0x80).reshape(groups, 32, steps, inputs // 4, 4).transpose(0, 2, 3, 1, 4)
        head = np.ascontiguousarray(heads.reshape(both, groups, 32, steps).transpose(1, 3, 0, 2)).view(np.uint8)
        packed = np.concatenate([head.reshape(groups, steps, -1), codes.reshape(groups, steps, -1)], axis=2)
        factors = np.zeros(groups * 32, np.float32)
        factors[:rows] = scales.factors
        layout = (rows, columns, steps, packed.shape[2] // 4, inputs, both - 1)
        return self._product(kind, x, packed, factors, layout, threads, shares)

    def _product(
        self,
        kind: str,
        x: Array,
        packed: Array,
        factors: Array,
        layout: tuple[int, ...],
        threads: int,
        shares: list[int] | None = None,
    ) -> Array:
        x, packed = np.ascontiguousarray(x), np.ascontiguousarray(packed)
        counts, out = np.array(shares or [len(x)]), np.full((len(x), layout[0]), np.inf, np.float32)
        pointers = [one.ctypes.data_as(ctypes.c_void_p) for one in (x, packed, factors, counts, out)]
        sizes = [ctypes.c_int64(one) for one in layout[:5]]
        left = self._call(
            KINDS[kind],
            threads,
            *pointers[:3],
            *sizes,
            layout[5],
            pointers[3],
            ctypes.c_int64(len(counts)),
            pointers[4],
        )
        assert left == 0, "a thread gives its registers back when a product ends"
        return out


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> Products:
    here, library = Path(__file__).parent, tmp_path_factory.mktemp("amx") / "products.so"
    flags = ["-std=gnu++20", "-O2", "-march=native", "-ffp-contract=off", "-fPIC", "-shared", "-pthread", "-w"]
    flags += [
        f"-I{NATIVE}",
        "-DINFLIGHT_ISA=avx512_amx",
        "-include",
        str(here / "emulated_tiles.h"),
        "-o",
        str(library),
    ]
    sources = [str(here / "tiled_products.cpp"), str(NATIVE / "pool/pool.cpp")]
    subprocess.run([COMPILER, *flags, *sources], check=True, timeout=240)
    return Products(library)


def halves(x: Array, weight: Array) -> Array:
    """The order of additions: in blocks of 32 inputs even and odd ones by themselves. Each product is exact."""
    x, weight = from_bf16(x), from_bf16(weight)
    found = np.zeros((len(x), len(weight)), np.float32)
    for begin in range(0, x.shape[1], 32):
        even_odd = np.zeros((2, *found.shape), np.float32)
        for k in range(begin, min(begin + 32, x.shape[1])):
            even_odd[k % 2] += x[:, k, None] * weight[None, :, k]
        found += even_odd[0] + even_odd[1]
    return found


def held_in_groups(rows: int, columns: int, group: int, with_offsets: bool) -> grouped.PackedMatrix:
    values, scales = quantize_groups(normal(3, rows, columns), min(group, columns))
    offsets = normal(4, *scales.shape) if with_offsets else None
    return grouped.hold(Int8Matrix(values, scales, offsets, group))


# Of columns in two blocks one number of tokens: the reference takes long.
SHAPES = [(tokens, *shape) for tokens in (1, 16, 17, 33, 200) for shape in ((16, 64), (33, 34), (80, 101))]


@pytest.mark.parametrize(("tokens", "rows", "columns"), [*SHAPES, (33, 40, 4490)])
def test_products_in_bf16(products: Products, tokens: int, rows: int, columns: int) -> None:
    x, weight = (to_bf16(normal(i, n, columns)) for i, n in ((1, tokens), (2, rows)))
    np.testing.assert_array_equal(products.plain(x, weight), halves(x, weight))


@multiplies_bytes
@pytest.mark.parametrize("tokens", [7, 16, 31, 70])
@pytest.mark.parametrize("with_offsets", [False, True])
@pytest.mark.parametrize(("rows", "columns", "group"), [(33, 100, 16), (80, 101, 32), (16, 384, 128), (40, 90, 90)])
def test_products_in_int8(
    products: Products, tokens: int, rows: int, columns: int, group: int, with_offsets: bool
) -> None:
    held = held_in_groups(rows, columns, group, with_offsets and group != columns)
    x = normal(1, tokens, columns) * 10
    x[0, :5], x[tokens // 2, 3] = 0, np.nan
    np.testing.assert_array_equal(products.quantized("int8_f32", x, held, [tokens]), grouped.product(x, held))
    rounded = to_bf16(x)
    want = grouped.product(from_bf16(rounded), held)
    np.testing.assert_array_equal(products.quantized("int8_bf16", rounded, held, [tokens]), want)


@multiplies_bytes
def test_int8_sums_go_on_from_block_to_block(products: Products) -> None:
    held, x = held_in_groups(40, 9000, 32, False), normal(1, 70, 9000)
    np.testing.assert_array_equal(products.quantized("int8_f32", x, held, [70]), grouped.product(x, held))


@multiplies_bytes
def test_shares_of_different_sizes_and_numbers_of_threads_change_no_bit(products: Products) -> None:
    held, x = held_in_groups(200, 96, 32, True), normal(1, 70, 96)
    plain, weight = to_bf16(x), to_bf16(normal(2, 200, 96))
    for threads in (1, 3):
        found = products.quantized("int8_f32", x, held, [1, 40, 2, 0, 27], threads)
        np.testing.assert_array_equal(found, grouped.product(x, held))
        np.testing.assert_array_equal(products.plain(plain, weight, threads), halves(plain, weight))


@multiplies_bytes
@pytest.mark.parametrize("kind", ["int8_bf16", "int8_f32"])
def test_products_in_int8_of_few_rows_are_the_other_sets(products: Products, kind: str) -> None:
    held, x = held_in_groups(32, 64, 32, False), normal(1, 2 * FEW, 64)
    x = to_bf16(x) if kind == "int8_bf16" else x
    assert np.isnan(products.quantized(kind, x[:FEW], held, [FEW])).all()
    assert np.isnan(products.quantized(kind, x, held, [1, 2 * FEW - 1])).all(), "so many for each share in the mean"
    assert not np.isnan(products.quantized(kind, x[: FEW + 1], held, [FEW + 1])).any()
