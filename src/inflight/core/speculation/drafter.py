"""A drafter guesses the tokens that a decode will bring, so that one step yields several where it guessed right.

Wrong drafts cost time, never tokens: what is sampled is the same whatever was drafted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from msgspec import Struct

from inflight.core.plugin import Plugin, check_finite_number, check_whole_number
from inflight.core.sequence import SequenceView


class Proposal(NamedTuple):
    """Tokens that may follow. chances: of each, from 0 to 1, that it is right if those before it are: beliefs."""

    token_ids: tuple[int, ...]
    chances: tuple[float, ...]


NOTHING = Proposal((), ())


class Drafter(Protocol):
    """Makes drafts when a step is planned. name: in records and metrics, such as "suffix"."""

    name: str

    def propose(self, view: SequenceView, most: int) -> Proposal:
        """Return drafts behind a sequence's tokens, at most so many; `NOTHING` where it has none."""

    def finished(self, view: SequenceView) -> None:
        """Forget a sequence that has ended; its output may be remembered."""


class ExecutorDrafter(Struct, frozen=True):
    """Stands for drafts that the executor makes inside of a step. most: of a sequence in a step."""

    name: str
    most: int


class Guarded:
    """A drafter that may fail. Its answers are checked; after a wrong one nothing is drafted any more."""

    def __init__(self, drafter: Drafter, vocab_size: int, report: Callable[[str], None]):
        """report: is given one sentence when the drafter fails."""
        self._plugin = Plugin("drafter", drafter, "decoding token by token", report)
        self._drafter = drafter
        self._vocab_size = vocab_size
        self.name = self._plugin.name

    def propose(self, view: SequenceView, most: int) -> Proposal:
        return self._plugin.ask("propose", lambda: self._checked(self._drafter.propose(view, most), most)) or NOTHING

    def finished(self, view: SequenceView) -> None:
        self._plugin.ask("finished", lambda: self._drafter.finished(view))

    def _checked(self, proposal: Proposal, most: int) -> Proposal:
        """Raises TypeError or ValueError."""
        token_ids, chances = proposal
        token_ids, chances = tuple(token_ids), tuple(chances)
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
        return Proposal(token_ids, chances)
