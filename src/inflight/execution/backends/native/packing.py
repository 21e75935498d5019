"""Packing: a checkpoint's matrices, by kind and by how they are held, as the compiled module takes them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from inflight.execution.backends.grouped import hold_scales
from inflight.execution.backends.matrices import (
    INT8_GROUP,
    LINEAR_CODES,
    BlockMatrix,
    Fp8Matrix,
    Int4Matrix,
    Int8Matrix,
    Matrix,
    ReorderedMatrix,
    Rows,
    in_int8,
)
from inflight.execution.backends.protocol import Array, Hold


class _Layout(NamedTuple):
    """How the module packs a matrix. Of int8 and int4: inputs of a group, whether there are offsets, the values that
    codes of 4 bits stand for, and the order of the inputs (int32; none: as they are). mixed: of plain numbers in int8,
    as `grouped.py` has it."""

    hold: Hold
    group: int = 0
    offsets: bool = False
    mixed: bool = False
    meanings: bytes = bytes(16)
    order: bytes = b""


def pieces(parts: Sequence[Matrix], hold: Hold, group: int) -> list[tuple[Any, ...]]:
    """Neighbours of one layout together, as the module takes them: matrices, then the fields of the layout."""
    laid = [_laid(part, hold, group) for part in parts]
    return [
        (
            [matrix for _, matrix in run],
            *layout[:4],
            np.frombuffer(layout.meanings, np.int8),
            np.frombuffer(layout.order, np.int32) if layout.order else None,
        )
        for layout, run in itertools.groupby(laid, key=itemgetter(0))
    ]


def taken_rows(rows: Rows, share: int) -> Any:
    """Convert a table's rows to what the module takes. share: columns that get one scale, 0 where rows are stored as
    they are; shares that begin within a block are read here."""
    if not isinstance(rows, BlockMatrix):
        return rows
    return rows.numbers() if share % rows.block_values else _blocks(rows)


def _laid(matrix: Matrix, hold: Hold, group: int) -> tuple[_Layout, Any]:
    if isinstance(matrix, BlockMatrix):
        if matrix.is_int8:
            return _Layout("int8", matrix.group, matrix.has_offsets), _blocks(matrix)
        return _Layout("int4", matrix.group, matrix.has_offsets, meanings=matrix.meanings.tobytes()), _blocks(matrix)
    if isinstance(matrix, Fp8Matrix):
        return _laid(in_int8(matrix), hold, group)
    if isinstance(matrix, ReorderedMatrix):
        layout, laid = _laid(matrix.matrix, hold, group)
        return layout._replace(order=matrix.order.astype(np.int32).tobytes()), laid
    if isinstance(matrix, Int8Matrix):
        return _grouped(_Layout("int8"), matrix.values.view(np.uint8), matrix)
    if isinstance(matrix, Int4Matrix):
        return _grouped(_Layout("int4", meanings=matrix.meanings.tobytes()), matrix.codes, matrix)
    if hold == "int8":
        return _Layout("int8", INT8_GROUP, mixed=True), matrix
    return (_Layout("int4", group, True, meanings=LINEAR_CODES.tobytes()) if hold == "int4" else _Layout(hold)), matrix


def _grouped(layout: _Layout, codes: Array, matrix: Int4Matrix | Int8Matrix) -> tuple[_Layout, Any]:
    held = hold_scales(matrix)
    offsets = None if held.offsets is None else np.ascontiguousarray(held.offsets)
    laid = (np.ascontiguousarray(codes), np.ascontiguousarray(held.scales), offsets, held.factors)
    return layout._replace(group=held.group, offsets=offsets is not None), laid


def _blocks(matrix: BlockMatrix) -> tuple[str, Array, int, Array | None]:
    return matrix.kind, np.ascontiguousarray(matrix.rows), matrix.columns, matrix.pages
