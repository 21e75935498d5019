"""A drafter guesses the tokens that a decode will bring, so that one step yields several where it guessed right.

Wrong drafts cost time, never tokens: what is sampled is the same whatever was drafted.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from msgspec import Struct

from inflight.core.sequence import SequenceView


class Proposal(NamedTuple):
    """Tokens that may follow. chances: of each, from 0 to 1, that it is right if those before it are: beliefs."""

    token_ids: tuple[int, ...]
    chances: tuple[float, ...]


NOTHING = Proposal((), ())


class Drafter(Protocol):
    """Makes drafts when a step is planned. name: in records and metrics, such as "suffix"."""

    name: str

    def propose(self, view: SequenceView, max_drafts: int) -> Proposal:
        """Return drafts behind a sequence's tokens, at most so many; `NOTHING` if there are none."""

    def finished(self, view: SequenceView) -> None:
        """Forget a sequence that has ended; its output may be remembered."""


class ExecutorDrafter(Struct, frozen=True):
    """Stands for drafts that the executor makes inside of a step. max_drafts: of a sequence in a step."""

    name: str
    max_drafts: int
