"""Compute what any order of eviction could reach on turns that are known: the blocks that are needed last go first.

Belady's rule is the best that there is where all blocks are of one size, and it is applied to sessions here: all blocks
of one are needed with its next turn, ends of texts go before their beginnings, and what will never come back goes at
once. Counts blocks; the turns come when they came in the run that is looked at, so that what other hits would change in
time is left out. What all sessions share stays.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class ServedTurn(NamedTuple):
    """begins: when it came. tokens: of its prompt; answer: that follow."""

    session: str
    begins: float
    ends: float
    tokens: int
    answer: int


@dataclass(slots=True)
class _Held:
    """Blocks of a session, beyond the shared ones; due: its next turn, None: one is running."""

    blocks: int = 0
    due: float | None = None


def foreseen(turns: Sequence[ServedTurn], num_blocks: int, block_size: int, shared_tokens: int) -> float:
    """Share of the prompts' tokens that would be cached."""
    shared, held = shared_tokens // block_size, {one.session: _Held() for one in turns}
    space, hits = num_blocks - shared, 0
    for _, is_end, turn, due in _events(turns):
        mine = held[turn.session]
        if is_end:
            mine.blocks = min(mine.blocks, (turn.tokens + turn.answer) // block_size - shared)
            mine.due = due
            continue
        hits += shared + min(mine.blocks, (turn.tokens - 1) // block_size - shared)
        mine.due = None
        mine.blocks = max(mine.blocks, -(-(turn.tokens + turn.answer) // block_size) - shared)
        _make_room(list(held.values()), space)
    return block_size * hits / sum(one.tokens for one in turns)


def _events(turns: Sequence[ServedTurn]) -> list[tuple[float, bool, ServedTurn, float]]:
    """Begins and ends in the order of time, ends with when the session comes back."""
    events: list[tuple[float, bool, ServedTurn, float]] = []
    back: dict[str, float] = {}
    for turn in sorted(turns, key=lambda one: one.begins, reverse=True):
        events.append((turn.begins, False, turn, 0.0))
        events.append((turn.ends, True, turn, back.get(turn.session, math.inf)))
        back[turn.session] = turn.begins
    return sorted(events, key=lambda one: (one[0], not one[1]))


def _make_room(held: list[_Held], space: int) -> None:
    over = sum(one.blocks for one in held) - space
    resting = sorted((one for one in held if one.due is not None and one.blocks), key=lambda one: -(one.due or 0.0))
    for one in resting:
        if over <= 0:
            return
        taken = min(over, one.blocks)
        one.blocks -= taken
        over -= taken
