"""Snapshot slots: how many copies of recurrent state an engine has room for, where nobody says how many.

Knows arithmetic; what is kept in them is `core.kv`'s, how large a state is the model's.
"""

from __future__ import annotations

PER_ROW = 2  # for the end of its prompt, and for where it is
SHARE = 0.25  # of the memory that live states leave free; the rest is worth more as blocks, which every hit needs
MAX_PER_ROW = 16  # of small states, as of short convolutions: conversations that wait for their next turn have two each
SMALL_SHARE = 1 / 64  # of that memory, which these may take


def usual_slots(rows: int, bytes_per_state: float, free_bytes: float) -> int:
    """Two for each row, in a quarter of the free memory, and more where a sixty-fourth of it holds more, up to sixteen
    for each row; one at least, since samples of a request and preempted sequences go on from one."""
    small = min(MAX_PER_ROW * rows, int(SMALL_SHARE * free_bytes // bytes_per_state))
    return max(1, small, min(PER_ROW * rows, int(SHARE * free_bytes // bytes_per_state)))
