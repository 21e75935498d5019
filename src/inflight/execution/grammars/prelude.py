"""The output before a grammar begins: reasoning, up to the tokens that end it, with a budget.

Where the prompt has not opened it, the output's first tokens decide: those that open reasoning, or others, and then
there is none. Knows output tokens alone, one after the other.
"""

from __future__ import annotations

from copy import copy
from typing import Self

from inflight.core.types.sampling import Grammar


class Prelude:
    """is_over: the tokens that end it have been there, or there is none. begun: tokens of an opening that is not
    complete; where the output turns out to have none, all that is the grammar's."""

    def __init__(self, grammar: Grammar) -> None:
        """Begin; it is over at once where no tokens are known that end it."""
        self._opening, self._end, self._most = (
            grammar.opening_token_ids,
            grammar.after_token_ids,
            grammar.max_tokens_before,
        )
        self._matched = 0  # leading tokens of `end` that the output ends with
        self._taken = 0
        self.begun: tuple[int, ...] = ()
        self.is_over = not self._end

    def take(self, token_id: int) -> None:
        next_of_opening = self.opening
        if next_of_opening is not None:
            self.begun += (token_id,)
            if token_id != next_of_opening:
                self.is_over = True
                return
            if self.begun == self._opening:
                self.begun = ()
        self._taken += 1
        while self._matched and self._end[self._matched] != token_id:
            self._matched = self._shorter(self._matched)
        self._matched += self._end[self._matched] == token_id
        self.is_over = self._matched == len(self._end)

    @property
    def opening(self) -> int | None:
        """The token that goes on opening it, where it is not open yet: any other means that there is none."""
        is_open = self.is_over or self._taken >= len(self._opening)
        return None if is_open else self._opening[self._taken]

    @property
    def forced(self) -> int | None:
        """The token that must come next; None: any may."""
        is_spent = self._most is not None and self._taken >= self._most
        return self._end[self._matched] if is_spent and not self.is_over and self.opening is None else None

    def copy(self) -> Self:
        return copy(self)

    def _shorter(self, matched: int) -> int:
        """Return the next shorter beginning of the end that so many of its tokens end with."""
        seen = self._end[:matched]
        return next(length for length in range(matched - 1, -1, -1) if seen[matched - length :] == self._end[:length])
