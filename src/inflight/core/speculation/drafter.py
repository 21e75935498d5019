"""A drafter guesses the tokens that a decode will bring, so that one step yields several where it guessed right.

Knows what it is asked and what it may answer; which decodes have drafts, and how many, the controller says, and the
executor whether they were right. Wrong ones cost time, never tokens: what is sampled is the same whatever was drafted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from msgspec import Struct

from inflight.core.plugin import Plugin, check_finite_number, check_whole_number
from inflight.core.sequence import SequenceView


class Proposal(NamedTuple):
    """Tokens that may follow those that there are, and of each the chance that it is right if those before it are, as
    the drafter believes it, from 0 to 1."""

    token_ids: tuple[int, ...]
    chances: tuple[float, ...]


NOTHING = Proposal((), ())


class Drafter(Protocol):
    """Drafts when the step is planned. name: in records and metrics, such as "suffix"."""

    name: str

    def propose(self, view: SequenceView, most: int) -> Proposal:
        """Drafts behind a sequence's tokens, at most so many; `NOTHING` where it has no idea."""

    def finished(self, view: SequenceView) -> None:
        """A sequence has ended, however it did. What was kept for it may go, and its output may be remembered."""


class ExecutorDrafter(Struct, frozen=True):
    """Drafts are made by the executor, inside of the step. name: as a drafter's. most: drafts of a sequence in a step
    that it can make."""

    name: str
    most: int


class Guarded:
    """A drafter that may fail: what it answers are tokens and chances, or nothing is drafted any more."""

    def __init__(self, drafter: Drafter, vocab_size: int, report: Callable[[str], None]):
        """report: told once, in a sentence, when the drafter failed."""
        self._plugin = Plugin("drafter", drafter, "decoding token by token", report)
        self._drafter = drafter
        self._vocab_size = vocab_size
        self.name = self._plugin.name

    def propose(self, view: SequenceView, most: int) -> Proposal:
        return self._plugin.ask("propose", lambda: self._proposed(view, most)) or NOTHING

    def finished(self, view: SequenceView) -> None:
        self._plugin.ask("finished", lambda: self._drafter.finished(view))

    def _proposed(self, view: SequenceView, most: int) -> Proposal:
        proposed = self._drafter.propose(view, most)
        token_ids, chances = proposed
        if type(token_ids) is not tuple or type(chances) is not tuple:
            token_ids, chances = tuple(token_ids), tuple(chances)
        if not token_ids and not chances:
            return NOTHING
        # At a glance, since a step asks for every row; what is wrong, `_check` says.
        if (
            len(token_ids) == len(chances) <= most
            and {*map(type, token_ids)} == {int}
            and {*map(type, chances)} == {float}
            and 0 <= min(token_ids) <= max(token_ids) < self._vocab_size
            and sum(chances) >= 0.0  # which it is not where one is not a number
            and 0.0 <= min(chances) <= max(chances) <= 1.0
        ):
            return Proposal(token_ids, chances)
        self._check(token_ids, chances, most)
        return Proposal(token_ids, chances)

    def _check(self, token_ids: tuple[int, ...], chances: tuple[float, ...], most: int) -> None:
        if len(token_ids) > most:
            raise ValueError(f"more than {most} tokens were drafted")
        if len(chances) != len(token_ids):
            raise ValueError(f"{len(token_ids)} tokens were drafted with {len(chances)} chances; each has its own")
        for token_id in token_ids:
            check_whole_number(token_id, 0, self._vocab_size - 1, "a draft")
        for chance in chances:
            check_finite_number(chance, "a chance")
            if not 0 <= chance <= 1:
                raise ValueError(f"a chance is {chance}; it must be from 0 to 1")
