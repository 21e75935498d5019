"""What an answer is made of, in the order in which the model wrote it: stretches of text, and calls of tools.

Knows what has come; not how it is told apart (`parsers`), nor what it looks like on a wire.
"""

from __future__ import annotations

from msgspec import Struct


class TextSegment(Struct):
    """Text of one kind without anything between. tokens: how many of the content's tokens it is made of; 0 of the
    reasoning's."""

    is_reasoning: bool
    pieces: list[str] = []
    tokens: int = 0

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class ToolCall(Struct):
    """arguments: JSON text, as far as it has come."""

    call_id: str
    name: str
    pieces: list[str] = []

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)


Segment = TextSegment | ToolCall
