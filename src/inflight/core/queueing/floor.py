"""The floor: what background lanes are owed of the steps while foreground work would take all of them.

A background lane gives way to the foreground in everything, and so a foreground that never rests would starve it. While
both have work, each step's tokens bring the background lanes credit, the floor's share of them, by their weights. Once
it is worth a chunk of a prompt, a sequence of the lane is *kept*: it has a row and its tokens in every step, as
foreground work has, is pushed out by nobody, and runs to its end, because what were taken from it half-way would have
to be computed again. What kept sequences take is paid for, beforehand or afterwards: a lane that took more than its
credit has no further sequence kept until it has repaid, and what it got by itself counts too. A newcomer has the next
row and the next blocks that come free; where none come for long, foreground work gives way to it.

The promise is a share of any WINDOW. So no more is held against a lane than LATELY brings (where rows are few, one long
request may be far more than the share), a newcomer waits no longer for others to give way than that, and what both may
take of the window is accrued in addition. Knows tokens and seconds; who is kept, the step_builder says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

from msgspec import Struct

CHUNK = 16  # tokens of a prompt that are worth a row
PATIENCE = 4 * CHUNK  # tokens of credit from which a newcomer waits no longer for foreground work to end
MOST = 4 * PATIENCE  # tokens of credit that are not forfeited where the lane cannot use them
OF_A_STEP = 0.25  # most of a step that the floor takes at once, where its share is not more
WINDOW, LATELY = 60.0, 5.0  # seconds
MARGIN = 1.05 * WINDOW / (WINDOW - 2 * LATELY)  # accrued over promised


class FloorError(ValueError):
    """The share cannot be held; the sentence names it."""


class Owed(Struct, eq=False):
    """Of one background lane. credit: tokens that it is owed; below 0 those that it had ahead. tokens, rows, blocks:

    what is reserved for it in the step under construction. lately: tokens that it was to have in LATELY.
    """

    credit: float = 0.0
    tokens: int = 0
    rows: int = 0
    blocks: int = 0
    lately: float = 0.0

    @property
    def is_due(self) -> bool:
        """Whether one more of its sequences is to be kept. Where steps are slow, a chunk's worth may take minutes."""
        return self.credit >= max(1.0, min(CHUNK, self.lately / 2))

    @property
    def is_overdue(self) -> bool:
        """Whether others are to give way to it."""
        return self.is_due and self.credit >= min(PATIENCE, self.lately)

    def take(self, tokens: int, kept: bool) -> None:
        """It was served. What came by itself is not held against it."""
        self.credit = self.credit - tokens if kept else max(min(self.credit, 0.0), self.credit - tokens)

    def reserve(self, tokens: int = 0, rows: int = 0, blocks: int = 0) -> None:
        self.tokens, self.rows, self.blocks = tokens, rows, blocks


class Owing(Protocol):
    """A lane."""

    @property
    def owed(self) -> Owed: ...
    @property
    def weight(self) -> float: ...


class Floor:
    def __init__(self, share: float):
        """share: of the steps' tokens, for all background lanes together; 0: none."""
        if not 0 <= share < 1:
            raise FloorError(f"The lane floor is {share}; give a share of the steps' tokens from 0 (none) to below 1.")
        self.share = min(share * MARGIN, (1 + share) / 2)
        self._recent = 0.0  # tokens of steps, fading over LATELY
        self._settled = -math.inf  # when the last step was

    def most(self, token_budget: int) -> int:
        """Tokens of a step that it may take at once; one is left, where there are two."""
        return max(1, min(token_budget - 1, math.ceil(token_budget * max(OF_A_STEP, self.share))))

    def settle(self, lanes: Iterable[Owing], waiting: Iterable[Owing], tokens: int, now: float) -> None:
        """A step of so many tokens is planned. waiting: those of the lanes with work that foreground work holds up."""
        self._recent = self._recent * math.exp((self._settled - now) / LATELY) + tokens
        self._settled = now
        waiting = list(waiting)
        weights = sum(lane.weight for lane in waiting)
        for lane in lanes:
            owed, share = lane.owed, self.share * lane.weight / weights if lane in waiting else 0.0
            owed.lately = share * self._recent
            owed.credit = max(-owed.lately, min(MOST if share else 0.0, owed.credit + share * tokens))
