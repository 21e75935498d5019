"""A drafter guesses the tokens that a decode will bring, so that one step yields several where it guessed right.

Knows what it is asked and what it may answer; which decodes have drafts, and how many, the step builder says, and the
executor whether they were right. Wrong ones cost time, never tokens: what is sampled is the same whatever was drafted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Protocol

from inflight.core.plugin import Plugin, check_whole_number
from inflight.core.sequence import SequenceView


class Drafter(Protocol):
    def propose(self, view: SequenceView, most: int) -> Iterable[int]:
        """Tokens that may follow those that there are, at most so many; none where it has no idea."""


class Guarded:
    """A drafter that is not ours: what it answers are tokens, or nothing is drafted any more."""

    def __init__(self, drafter: Drafter, vocab_size: int, report: Callable[[str], None]):
        """report: told once, in a sentence, when the drafter failed."""
        self._plugin = Plugin("drafter", drafter, "decoding token by token", report)
        self._drafter = drafter
        self._vocab_size = vocab_size

    def propose(self, view: SequenceView, most: int) -> tuple[int, ...]:
        return self._plugin.ask("propose", lambda: self._checked(self._drafter.propose(view, most), most)) or ()

    def _checked(self, proposed: Iterable[int], most: int) -> tuple[int, ...]:
        drafts = tuple(islice(proposed, most + 1))
        if len(drafts) > most:
            raise ValueError(f"more than {most} tokens were drafted")
        for token_id in drafts:
            check_whole_number(token_id, 0, self._vocab_size - 1, "a draft")
        return drafts
