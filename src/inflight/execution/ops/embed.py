"""Rows of tables for the tokens of a pass: their embeddings, those of positions and of token types."""

from __future__ import annotations

from inflight.execution.backends.protocol.handles import Activation, Table
from inflight.execution.program import Program, operation


@operation
def embed(program: Program, table: Table, out: Activation) -> None:
    """Look up the pass's tokens → out float32[T, E]."""


@operation
def add_positions(program: Program, table: Table, first: int, out: Activation) -> None:
    """out float32[T, E] plus, for each of the pass's tokens, row `first` + its position of a table that `pack_rows`
    has made."""


@operation
def add_token_types(program: Program, table: Table, out: Activation) -> None:
    """out float32[T, E] plus row 1 of such a table for tokens of the second text of a pair, row 0 for others."""
