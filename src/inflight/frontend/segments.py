"""Define the segments of an answer, in the order in which the model wrote them: text and tool calls."""

from __future__ import annotations

from msgspec import Struct


class TextSegment(Struct):
    """Consecutive text of one kind. tokens: number of the content's tokens; 0 for reasoning."""

    is_reasoning: bool
    pieces: list[str] = []
    tokens: int = 0

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class ToolCall(Struct):
    """A tool call so far; its arguments are JSON text."""

    call_id: str
    name: str
    pieces: list[str] = []

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)


Segment = TextSegment | ToolCall
