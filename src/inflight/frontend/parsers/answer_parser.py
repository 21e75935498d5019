"""Define the interface of answer parsers, which split the text of an answer into content, reasoning and tool calls.

Streamed and whole answers are parsed by the same code: the deltas, joined, do not depend on how the text was cut into
pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class ContentDelta(Struct, frozen=True):
    """More content. tokens: number of its tokens; parsers leave it 0, and the caller fills it in."""

    text: str
    tokens: int = 0


class ReasoningDelta(Struct, frozen=True):
    """More of the reasoning."""

    text: str


class ToolCallDelta(Struct, frozen=True):
    """More of one tool call. The deltas of a call come without others between them.

    Attributes:
        index: Number of the call in the answer, from 0.
        name: In the first delta of a call; None in later ones.
        arguments: More JSON text; all pieces together are one JSON object.
        call_id: If the model writes ids; None: the server makes one.
    """

    index: int
    name: str | None = None
    arguments: str = ""
    call_id: str | None = None


AnswerDelta = ContentDelta | ReasoningDelta | ToolCallDelta


def joined_deltas(deltas: Sequence[AnswerDelta]) -> list[AnswerDelta]:
    """Return deltas of which neighbours of one kind are joined."""
    if len(deltas) < 2:
        return list(deltas)
    result: list[AnswerDelta] = []
    for delta in deltas:
        last = result[-1] if result else None
        if isinstance(delta, ContentDelta) and isinstance(last, ContentDelta):
            result[-1] = ContentDelta(last.text + delta.text, last.tokens + delta.tokens)
        elif isinstance(delta, ReasoningDelta) and isinstance(last, ReasoningDelta):
            result[-1] = ReasoningDelta(last.text + delta.text)
        elif isinstance(delta, ToolCallDelta) and isinstance(last, ToolCallDelta) and delta.index == last.index:
            arguments = last.arguments + delta.arguments
            result[-1] = ToolCallDelta(last.index, last.name, arguments, last.call_id)
        else:
            result.append(delta)
    return result


class AnswerParser(Protocol):
    """Parse one answer, piece by piece."""

    @property
    def in_reasoning(self) -> bool:
        """Whether the text that was pushed last is reasoning; reasoning tokens are counted by it."""

    def push(self, text: str) -> list[AnswerDelta]:
        """Parse a piece of text; return the new deltas. Text that may begin a mark is withheld until more comes."""

    def finish(self) -> list[AnswerDelta]:
        """Return withheld text at the end of the answer. An incomplete tool call is returned as far as it goes; text
        that was no call is content."""


class ContentParser:
    """Parse answers that have only content."""

    in_reasoning = False

    def push(self, text: str) -> list[AnswerDelta]:
        return [ContentDelta(text)] if text else []

    def finish(self) -> list[AnswerDelta]:
        return []
