"""An answer parser tells a model's text apart as it comes: content, reasoning, calls of tools.

Knows the text of one answer; not tokens, wire formats, or which tools there are. Whole answers are parsed by the same
code as streamed ones: what is told of a text does not depend on how it was cut into pieces.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct


class ContentDelta(Struct, frozen=True):
    """More text for the reader. tokens: of the content that have come with it; a parser knows none, and leaves them to
    whoever feeds it."""

    text: str
    tokens: int = 0


class ReasoningDelta(Struct, frozen=True):
    """More of what the model thinks before it answers."""

    text: str


class ToolCallDelta(Struct, frozen=True):
    """More of the answer's tool call number `index`, from 0. The first delta of a call has its name, later ones none;
    nothing else is told between them.
    arguments: more of them, as JSON text; all pieces together are one JSON object. call_id: where the model writes ids
    itself; None otherwise, and the server makes one."""

    index: int
    name: str | None = None
    arguments: str = ""
    call_id: str | None = None


AnswerDelta = ContentDelta | ReasoningDelta | ToolCallDelta


class AnswerParser(Protocol):
    """Parses one answer, piece by piece."""

    @property
    def in_reasoning(self) -> bool:
        """Whether what was pushed last is reasoning: tokens are counted by it."""

    def push(self, text: str) -> list[AnswerDelta]:
        """What this piece adds. Text that may be the beginning of a mark is held back until more is known."""

    def finish(self) -> list[AnswerDelta]:
        """What was held back, at the end of the answer. A tool call that is not complete is told as far as it goes;
        what was never a call is content."""
