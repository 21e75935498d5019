"""Rows of tables for the tokens of a pass: their embeddings, those of positions and of token types."""

from __future__ import annotations

import numpy as np

from inflight.execution.backends.matrices import Int8Matrix
from inflight.execution.backends.protocol import Array
from inflight.execution.backends.protocol.handles import Activation, Table
from inflight.execution.ops.numpy_pass import NumpyPass
from inflight.execution.program import operation


@operation()
def embed(on: NumpyPass, table: Table, out: Activation) -> None:
    """Look up the pass's tokens → out float32[T, E]."""
    ids, weight = on.token_ids, table.weight
    if isinstance(weight, Int8Matrix):  # of each token `shares` rows, which have a scale each
        at = (ids[:, None] * table.shares + np.arange(table.shares)).ravel()
        rows = weight.values[at].astype(np.float32) * weight.scales[at]
        out.write(rows.reshape(len(ids), table.columns))
    elif isinstance(weight, np.ndarray):
        out.write(on.act.load(weight[ids]))
    else:
        out.write(weight.rows(ids))


@operation()
def add_positions(on: NumpyPass, table: Table, first: int, out: Activation) -> None:
    """out float32[T, E] plus, for each of the pass's tokens, row `first` + its position of a table that `pack_rows`
    has made."""
    _add_rows(on, table, on.metadata.positions + first, out)


@operation()
def add_token_types(on: NumpyPass, table: Table, out: Activation) -> None:
    """out float32[T, E] plus row 1 of such a table for tokens of the second text of a pair, row 0 for others."""
    _add_rows(on, table, on.token_types(), out)


def _add_rows(on: NumpyPass, table: Table, rows: Array, out: Activation) -> None:
    out.written[:] += on.act.load(table.weight[rows])
