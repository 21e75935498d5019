"""The minimum share of background lanes: tokens of each step that are theirs while foreground work would take all.

A background lane yields to the foreground in everything, so a foreground that never rests would starve it. While both
have work, each step adds its share to the lanes' deficits. A lane whose deficit is worth a chunk of a prompt has one
more sequence protected: it has the next free row and the blocks that it needs, has its tokens in every step, is not
preempted by foreground work, and runs to its end, since its work would otherwise be computed twice. Its tokens are
taken off the deficit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

from msgspec import Struct

CHUNK = 16  # tokens of a prompt that are worth a row
MAX_DEFICIT = 16 * CHUNK  # tokens, above and below 0: a lane that cannot use its share loses the rest
MAX_SHARE_OF_STEP = 0.25  # of a step's tokens that are reserved at once, where the share itself is not larger


class MinShareError(ValueError):
    """The share cannot be kept; the message names it."""


class Deficit(Struct, eq=False):
    """The account of one background lane.

    Attributes:
        tokens: What the lane has still to get; below 0: what it had ahead.
        reserved_tokens: Tokens of the step under construction that are its own.
        reserved_rows: Rows that its newcomers have before others.
        reserved_blocks: Blocks that its newcomers have before others.
    """

    tokens: float = 0.0
    reserved_tokens: int = 0
    reserved_rows: int = 0
    reserved_blocks: int = 0

    @property
    def is_due(self) -> bool:
        """Whether one more sequence of the lane is to be protected."""
        return self.tokens >= CHUNK

    def take(self, tokens: int, protected: bool) -> None:
        """Subtract tokens that the lane was served. What foreground work left over is not held against it later."""
        left = self.tokens - tokens
        self.tokens = max(-MAX_DEFICIT, left) if protected else max(min(self.tokens, 0.0), left)

    def reserve(self, tokens: int = 0, rows: int = 0, blocks: int = 0) -> None:
        self.reserved_tokens, self.reserved_rows, self.reserved_blocks = tokens, rows, blocks


class Sharing(Protocol):
    """A lane."""

    @property
    def deficit(self) -> Deficit: ...
    @property
    def weight(self) -> float: ...


class MinShare:
    def __init__(self, share: float):
        """Keep a share of the steps' tokens for all background lanes together; 0: none.

        Raises:
            MinShareError: The share is below 0, or leaves nothing to others.
        """
        if not 0 <= share < 1:
            raise MinShareError(
                f"The lane floor is {share}; give a share of the steps' tokens from 0 (none) to below 1."
            )
        self.share = share

    def max_tokens(self, token_budget: int) -> int:
        """Return the tokens of a step that may be reserved; one is left to others, where there are two."""
        return max(1, min(token_budget - 1, math.ceil(token_budget * max(MAX_SHARE_OF_STEP, self.share))))

    def add(self, lanes: Iterable[Sharing], held_up: Iterable[Sharing], tokens: int) -> None:
        """Add a step's share to the deficits, by weight. held_up: lanes with work that foreground work holds up."""
        waiting = list(held_up)
        weights = sum(lane.weight for lane in waiting)
        for lane in lanes:
            deficit = lane.deficit
            if lane in waiting:
                deficit.tokens = min(MAX_DEFICIT, deficit.tokens + self.share * tokens * lane.weight / weights)
            else:
                deficit.tokens = min(0.0, deficit.tokens)
