"""Traces that name each block of a prompt by a hash of it and of all before it: equal ids, equal prompts so far."""

from __future__ import annotations

from typing import Any

from inflight.workload.traces.lines import is_whole_list
from inflight.workload.traces.rows import Rows


class HashedBlocks:
    """Reads `hash_ids`, blocks of `size` tokens, and watches that there are as many as the prompt has blocks."""

    def __init__(self, size: int, rows: Rows):
        self._size = size
        self._rows = rows
        self._others = 0
        self._first = 0

    def read(self, line: int, row: dict[str, Any], prompt_tokens: int) -> tuple[int, ...] | None:
        """The prompt's content ids; None where the row is malformed, which is counted."""
        ids = row.get("hash_ids")
        if not is_whole_list(ids):
            self._rows.broken(line, "hash_ids is no list of whole numbers")
            return None
        blocks = -(-prompt_tokens // self._size)
        if len(ids) != blocks:
            self._first = self._first or line
            self._others += 1
            if len(ids) > blocks:
                del ids[max(0, blocks) :]
        return tuple(ids)

    def note_mismatches(self) -> None:
        if self._others:
            self._rows.note(
                f"Rows with another number of hash_ids than blocks of {self._size} tokens: {self._others:,}, the first "
                f"in line {self._first:,}; ids beyond the prompt's end were left out, missing ones count as the "
                "prompt's own tokens."
            )
