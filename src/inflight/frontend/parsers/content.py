"""Parse answers that have only content."""

from __future__ import annotations

from inflight.frontend.parsers.answer_parser import AnswerDelta, ContentDelta


class ContentParser:
    in_reasoning = False

    def push(self, text: str) -> list[AnswerDelta]:
        return [ContentDelta(text)] if text else []

    def finish(self) -> list[AnswerDelta]:
        return []
