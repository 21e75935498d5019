"""A run over time: what was offered and completed, what ran, and how many tokens came, in equal pieces of time.

Knows observations, whoever made them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from inflight.metrics.observation import Observation

MOST_PIECES = 3_600
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1_800, 3_600)  # seconds


@dataclass(frozen=True, slots=True)
class Series:
    """Piece k lasts from k × step to (k + 1) × step seconds. running: requests under way, mean over the piece, by
    intended send time and end. Where single tokens were not watched, all count at their request's end."""

    step: float
    offered: tuple[int, ...]
    completed: tuple[int, ...]
    output_tokens: tuple[int, ...]
    running: tuple[float, ...]


def series(observations: Sequence[Observation]) -> Series:
    """From 0 to the last end, in pieces of a second; longer ones where there would be more than an hour of them."""
    end = max((one.ended for one in observations), default=0.0)
    step = next((step for step in _STEPS if end < step * MOST_PIECES), math.ceil(end / MOST_PIECES) + 1)
    pieces = math.floor(end / step) + 1
    offered, completed, tokens = ([0] * pieces for _ in range(3))
    running = [0.0] * pieces

    def place(time: float) -> int:
        return min(max(math.floor(time / step), 0), pieces - 1)

    for one in observations:
        offered[place(one.intended)] += 1
        if one.outcome == "completed":
            completed[place(one.ended)] += 1
        for time in one.token_times or (one.ended,) * one.output_tokens:
            tokens[place(time)] += 1
        for piece in range(place(one.intended), place(one.ended) + 1):
            within = min(one.ended, (piece + 1) * step) - max(one.intended, piece * step)
            running[piece] += max(within, 0.0) / step
    return Series(step, tuple(offered), tuple(completed), tuple(tokens), tuple(running))
