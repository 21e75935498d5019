"""What comes before a grammar begins: reasoning, up to the tokens that end it, with a budget.

Knows output tokens alone, one after the other.
"""

from __future__ import annotations

from copy import copy
from typing import Self


class Prelude:
    """is_over: the tokens that end it have been there."""

    def __init__(self, end: tuple[int, ...], most_tokens: int | None) -> None:
        """end: what ends it; empty: it is over at once. most_tokens: that may come before those; then they are
        forced."""
        self._end, self._most = end, most_tokens
        self._matched = 0  # leading tokens of `end` that the output ends with
        self._taken = 0
        self.is_over = not end

    def take(self, token_id: int) -> None:
        self._taken += 1
        while self._matched and self._end[self._matched] != token_id:
            self._matched = self._shorter(self._matched)
        self._matched += self._end[self._matched] == token_id
        self.is_over = self._matched == len(self._end)

    @property
    def forced(self) -> int | None:
        """The token that must come next; None: any may."""
        is_spent = self._most is not None and self._taken >= self._most
        return self._end[self._matched] if is_spent and not self.is_over else None

    def copy(self) -> Self:
        return copy(self)

    def _shorter(self, matched: int) -> int:
        """The next shorter beginning of the end that so many of its tokens end with."""
        seen = self._end[:matched]
        return next(length for length in range(matched - 1, -1, -1) if seen[matched - length :] == self._end[:length])
