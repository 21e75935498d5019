"""Blocks of GGUF's types as the kernels pack them themselves: the bytes that packing what the blocks stand for gives.

Any bytes are blocks, so that all scales there are come by: subnormal ones, infinities and NaNs.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.execution.backends.matrices import BlockMatrix, rows_of
from inflight.execution.backends.native import NativeBackend
from inflight.execution.checkpoints.gguf.blocks import PACKED_HERE, as_they_lie, readable

from .conftest import ISAS
from .material import held, normal

TYPES = {
    kind: gguf.GGML_QUANT_SIZES[Type[kind]] for kind in readable() if kind not in ("F32", "F16", "BF16", *PACKED_HERE)
}
SIZES = [(1, 256), (31, 512), (33, 768), (96, 1024), (130, 4864)]


def blocks(kind: str, rows: int, columns: int, seed: int = 0, likely: bool = False) -> BlockMatrix:
    """Any bytes; likely: the scales of weights as models have them, so that no output is none."""
    values, nbytes = TYPES[kind]
    found = np.random.default_rng(seed).integers(0, 256, (rows * columns // values, nbytes), np.uint8)
    if likely:
        for at in {"Q6_K": (208,), "Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2)}.get(kind, (0,)):
            found[:, at + 1] = 0x14 | (found[:, at + 1] & 0x03)
        if kind == "MXFP4":
            found[:, 0] = 112 + found[:, 0] % 8
    return as_they_lie(kind, found, (rows, columns), values)


def contents(backend: NativeBackend, *linears: Any) -> list[Any]:
    """Return each one's packed weights and scales, as bytes, when all of them are packed."""
    return [backend._kernels.contents(one) for one in linears]


@pytest.fixture
def backend(dtype: str, isa: str) -> NativeBackend:
    return NativeBackend(dtype, 2, isa)  # type: ignore[arg-type]


@pytest.mark.parametrize("likely", [False, True])
@pytest.mark.parametrize("kind", TYPES)
def test_packed_bytes_are_those_of_what_the_blocks_stand_for(backend, kind, likely):
    for rows, columns in SIZES:
        matrix = blocks(kind, rows, columns - columns % TYPES[kind][0], rows, likely)
        with np.errstate(all="ignore"):
            unpacked = matrix.unpacked()
        found, expected = contents(backend, backend.pack_linear([matrix]), backend.pack_linear([unpacked]))
        assert found == expected, (rows, columns)


@pytest.mark.parametrize("kind", TYPES)
def test_gate_and_up_and_stacked_parts_of_one_type(backend, kind):
    gate, up = blocks(kind, 40, 512, 1, True), blocks(kind, 40, 512, 2, True)
    found, expected = contents(
        backend, backend.pack_gate_up(gate, up), backend.pack_gate_up(gate.unpacked(), up.unpacked())
    )
    assert found == expected
    few = blocks(kind, 5, 512, 3, True)
    found, expected = contents(
        backend,
        backend.pack_linear([few, gate, few]),
        backend.pack_linear([few.unpacked(), gate.unpacked(), few.unpacked()]),
    )
    assert found == expected


@pytest.mark.parametrize("kind", TYPES)
def test_beside_plain_numbers_and_codes_in_one_group_of_outputs(backend, kind):
    """Lanes of one group of 32 outputs that come in three ways."""
    matrix, plain = blocks(kind, 7, 256, 4, True), normal(5, 9, 256)
    hold = "int4" if kind == "Q4_0" else "int8"
    parts = [matrix, plain, blocks(kind, 3, 256, 6, True).unpacked(), matrix]
    expected = [one.unpacked() if isinstance(one, BlockMatrix) else one for one in parts]
    both = (backend.pack_linear(one, hold=hold) for one in (parts, expected))
    found, wanted = contents(backend, *both)
    assert found == wanted


@pytest.mark.parametrize(("gate", "up"), [("Q4_0", "Q8_0"), ("Q4_0", "Q4_1"), ("Q4_K", "Q4_1"), ("Q6_K", "Q8_0")])
def test_gate_and_up_of_two_types(backend, gate, up):
    parts = blocks(gate, 33, 256, 7, True), blocks(up, 33, 256, 8, True)
    both = (backend.pack_gate_up(*one) for one in (parts, [part.unpacked() for part in parts]))
    found, expected = contents(backend, *both)
    assert found == expected


@pytest.mark.parametrize("kind", TYPES)
def test_a_table_has_the_numbers_of_its_blocks(ops, reference, dtype, kind):
    """Plain: of 8 bits without the rounding that a matrix has. Tied: as the matrix is held."""
    table = blocks(kind, 70, 512, 9, True)
    ids = np.array([0, 69, 31, 32, 5], np.int32)
    rows = []
    for one in (ops, reference):
        plain, tied = one.pack_rows([table], 70, 512), one.pack_table(table)
        found = np.empty((2, len(ids), 512), np.float32)
        one.embed(plain, ids, found[0])
        one.embed(tied, ids, found[1])
        rows.append(found)
    np.testing.assert_array_equal(rows[0], rows[1])
    expected = ops.pack_rows([table.numbers()], 70, 512)
    again = np.empty((len(ids), 512), np.float32)
    ops.embed(expected, ids, again)
    np.testing.assert_array_equal(rows[0][0], again)


@pytest.mark.parametrize("likely", [False, True])
@pytest.mark.parametrize("kind", TYPES)
def test_a_table_of_bytes_has_the_numbers_of_its_blocks(ops, reference, kind, likely):
    """Shares that are whole blocks, that begin within one, and that are longer than what is converted at a time."""
    pieces = [blocks(kind, rows, 768, 13 + rows, likely) for rows in (1, 40, 29)]
    ids = np.array([0, 69, 1, 40, 41, 5], np.int32)
    for share in (768, 256, 96, 48, 1):
        with np.errstate(all="ignore"):
            packed, expected = (one.pack_rows(iter(pieces), 70, 768, share) for one in (ops, reference))
        out, want = np.full((6, 768), np.inf, np.float32), np.empty((6, 768), np.float32)
        ops.embed(packed, ids, out)
        reference.embed(expected, ids, want)
        np.testing.assert_array_equal(out, want, f"shares of {share}")
        assert np.count_nonzero(want) > 0


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K", "Q6_K"])
def test_some_of_the_rows_in_another_order(backend, kind):
    matrix, order = blocks(kind, 40, 512, 10, True), np.arange(40)[::-3]
    for chosen in (order, slice(3, 37)):
        both = (backend.pack_linear([rows_of(one, chosen)]) for one in (matrix, matrix.unpacked()))
        found, expected = contents(backend, *both)
        assert found == expected


@pytest.mark.parametrize("kind", TYPES)
def test_products_have_the_bits_of_their_reference(ops, reference, dtype, kind):
    matrix, x = blocks(kind, 40, 512, 11, True), held(dtype, normal(12, 5, 512))
    outs = []
    for one in (ops, reference):
        out = np.full((5, 40), np.nan, np.float32)
        one.linear(x, one.pack_linear([matrix]), out)
        outs.append(out)
    np.testing.assert_array_equal(*outs)


@given(
    st.sampled_from(sorted(TYPES)), st.integers(1, 70), st.integers(1, 12), st.integers(0, 2**32), st.sampled_from(ISAS)
)
@settings(deadline=None, max_examples=60)
def test_of_any_size(kind, rows, many, seed, isa):
    backend = NativeBackend("bfloat16", 2, isa)
    matrix = blocks(kind, rows, many * TYPES[kind][0], seed)
    with np.errstate(all="ignore"):
        unpacked = matrix.unpacked()
    found, expected = contents(backend, *(backend.pack_linear([one]) for one in (matrix, unpacked)))
    assert found == expected


def test_what_waits_is_packed_in_order_and_before_the_first_pass(dtype, isa, tmp_path: Path):
    """More than is taken at once, from a file whose pages are given back, among matrices that are packed at once; of
    sources without another owner."""
    backend = NativeBackend(dtype, 2, isa)
    given = [blocks("Q4_0", 640, 1024, seed, True) for seed in range(6)]
    path = tmp_path / "blocks"
    path.write_bytes(b"".join(one.rows.tobytes() for one in given))
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    packed, expected = [], []
    for at, one in enumerate(given):
        rows = np.frombuffer(mapped, np.uint8, one.rows.size, at * one.rows.size)
        packed.append(backend.pack_linear([as_they_lie("Q4_0", rows, one.shape, 32, rows)]))
        packed.append(backend.pack_linear([normal(at, 1024, 256)]))
        expected += [one.unpacked(), normal(at, 1024, 256)]
        assert np.array_equal(rows.reshape(one.rows.shape), one.rows)  # read again from the file
    del rows, one
    backend.finish_packing()
    assert contents(backend, *packed) == contents(backend, *(backend.pack_linear([one]) for one in expected))
    mapped.close()  # nothing holds a view of it any more


def test_what_fits_nowhere_is_refused_with_a_sentence(backend):
    kernels, rows = backend._kernels, np.zeros((4, 18), np.uint8)

    def piece(
        kind: object,
        given: np.ndarray,
        columns: int,
        hold: str = "int4",
        group: int = 32,
        offsets: bool = False,
        mixed: bool = False,
    ):
        return ([(kind, given, columns, None)], hold, group, offsets, mixed, np.arange(16, dtype=np.int8), None)

    kernels.pack_linear([piece("Q4_0", rows, 32)], None)
    for wrong, said in (
        (piece("Q9_9", rows, 32), "no blocks of the type Q9_9"),
        (piece("Q4_0", rows, 33), "rows of 33 values are no blocks of 32"),
        (piece("Q4_0", rows, 64), r"rows of blocks must have shape \[any, 36\]"),
        (piece("Q4_0", rows.astype(np.int8), 32), "uint8"),
        (piece("Q4_0", rows, 32, "act"), "their own layout"),
        (piece("Q4_0", rows, 32, group=64), "their own layout"),
        (piece("Q4_0", rows, 32, offsets=True), "their own layout"),
        (piece("Q8_0", np.zeros((4, 34), np.uint8), 32), "their own layout"),
        (piece("Q8_0", np.zeros((4, 34), np.uint8), 32, "int8", mixed=True), "of plain numbers only"),
        (piece("Q4_0", rows, 32, mixed=True), "mixed in int8"),
    ):
        with pytest.raises(ValueError, match=said):
            kernels.pack_linear([wrong], None)
    with pytest.raises(ValueError, match="those of a file"):  # giving numpy's own memory back would lose what it holds
        kernels.pack_linear([([("Q4_0", rows, 32, rows.ravel())], *piece("Q4_0", rows, 32)[1:])], None)
    with pytest.raises(ValueError, match="do not make 5 rows of 32"):
        kernels.pack_rows(iter([("Q4_0", np.zeros((6, 18), np.uint8), 32, None)]), 5, 32, 0)
    with pytest.raises(ValueError, match="a share of 16 columns is no blocks of 32"):
        kernels.pack_rows(iter([("Q4_0", rows, 32, None)]), 4, 32, 16)
