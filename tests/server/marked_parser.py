"""A parser of answers for tests: `<r>…</r>` is reasoning, `<c>NAME ARGUMENTS</c>` a call, each mark a token's text."""

from __future__ import annotations

from collections.abc import Sequence

from inflight.core.types.request import ReasoningText
from inflight.core.types.sampling import Grammar
from inflight.frontend.parsers.answer_parser import (
    AnswerDelta,
    ContentDelta,
    ReasoningDelta,
    ToolCallDelta,
)
from inflight.frontend.parsers.parser_choice import ParserNames, ReasoningEnds, Tool, ToolChoice


class MarkedParser:
    def __init__(self, calls: bool, in_reasoning: bool):
        self.in_reasoning = in_reasoning
        self._takes_calls, self._in_call, self._named, self._count = calls, False, False, 0

    def push(self, text: str) -> list[AnswerDelta]:
        if text == "boom":
            raise RuntimeError("of the test")
        if text in ("<r>", "</r>"):
            self.in_reasoning = text == "<r>"
            return []
        if self._takes_calls and text in ("<c>", "</c>"):
            self._count += self._in_call
            self._in_call, self._named = text == "<c>", False
            return []
        if self.in_reasoning:
            return [ReasoningDelta(text)]
        if self._in_call and not self._named:
            self._named = True
            return [ToolCallDelta(self._count, text)]
        return [ToolCallDelta(self._count, None, text)] if self._in_call else [ContentDelta(text)]

    def finish(self) -> list[AnswerDelta]:
        return []


class MarkedChoice:
    """Prompts that end in `<r>` open the reasoning. Forced calls are the grammar `FORCED`."""

    names = ParserNames("marked", "marked")
    visible_marks = ("<r>", "</r>", "<c>", "</c>")
    texts_in_calls = ("<c>",)
    reasoning_ends = ReasoningEnds("<r>", "</r>")
    calls_cover_reasoning = short_call_ids = False

    def reasoning_text(self, is_open: bool) -> ReasoningText:
        return ReasoningText(("<r>",), ("</r>",), is_open)

    def opens_in_prompt(self, prompt_text: str) -> bool:
        return prompt_text.endswith("<r>")

    def parser(self, tools: Sequence[Tool], in_reasoning: bool) -> MarkedParser:
        return MarkedParser(bool(tools), in_reasoning)

    def grammar_of_calls(self, tools: Sequence[Tool], choice: ToolChoice, content: Grammar | None) -> Grammar | None:
        if choice.mode == "auto":
            return content
        return Grammar("lark", f"forced {choice.mode} {' '.join(one.name for one in tools)}")
