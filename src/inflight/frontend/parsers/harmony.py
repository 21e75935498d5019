"""Parse gpt-oss's messages with channels: analysis is reasoning, messages to `functions.…` are calls, others content.

A recipient may precede or follow the channel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from inflight.core.types.request import ReasoningText
from inflight.core.types.sampling import Grammar
from inflight.frontend.parsers.forced_calls import NAME, CallSyntax, calls_of, content_of
from inflight.frontend.parsers.lark import Lark, without
from inflight.frontend.parsers.parser_choice import ReasoningEnds, Tool, ToolChoice
from inflight.frontend.parsers.pull_parser import PullParser, Steps
from inflight.frontend.parsers.tool_format import ToolFormat

_START, _CHANNEL, _MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", _START, _CHANNEL)
_RECIPIENT = re.compile(r"to=functions\.([^\s<]+)")
_ANALYSIS = re.compile(r"<\|channel\|>\s*analysis")


class HarmonyParser(PullParser):
    def walk(self) -> Steps[None]:
        mark = yield from self.until((_START, _CHANNEL), self.content)
        while mark:
            header, mark = yield from self.collect_until((_MESSAGE,))
            if not mark:
                return  # a truncated header is not content
            yield from self._message(_CHANNEL + header)
            mark = yield from self.until((_START, _CHANNEL), self.content)

    def _message(self, header: str) -> Steps[None]:
        called = _RECIPIENT.search(header)
        if called is not None:
            self.begin_call(called.group(1))
        is_reasoning = called is None and _ANALYSIS.search(header) is not None
        self.in_reasoning = is_reasoning
        emit = self.reasoning if is_reasoning else self.content if called is None else self.arguments
        if called is not None and (yield from self.next_character()) == "{":
            yield from self.json_value(emit)  # a mark within a string is text
        mark = yield from self.until(_ENDS, emit)
        self.in_reasoning = False
        if mark in (_START, _CHANNEL):
            self.put_back(mark)


class HarmonyGrammars:
    """Write grammars of whole answers, including the reasoning.

    A call is in another channel than content, so no single mark ends the reasoning of both. An answer has one call,
    whose end is the answer's.
    """

    def __init__(self, mark_ids: Mapping[str, int]):
        self._mark_ids = mark_ids

    def required(self, tools: Sequence[Tool], choice: ToolChoice) -> Grammar:
        lark = Lark(self._mark_ids)
        return Grammar("lark", lark.grammar(f"{self._before(lark)} {self._call(lark, tools, choice)}"))

    def or_content(self, tools: Sequence[Tool], choice: ToolChoice, content: str) -> Grammar:
        lark = Lark(self._mark_ids)
        final = f"{lark.text(REASONING_END)} {content_of(lark, content)}"
        return Grammar("lark", lark.grammar(f"{self._before(lark)} ({self._call(lark, tools, choice)} | {final})"))

    def free(self, tools: Sequence[Tool], choice: ToolChoice) -> Grammar:
        lark = Lark(self._mark_ids)
        final = f"{lark.text(REASONING_END)} {lark.terminal(_TEXT)}"
        return Grammar("lark", lark.grammar(f"{self._before(lark)} ({self._call(lark, tools, choice)} | {final})"))

    def _before(self, lark: Lark) -> str:
        """Return a rule of reasoning and of commentary before a call."""
        # Each header is one text: no token of a grammar may be the beginning of another.
        headers = [lark.text(f"{_CHANNEL}{channel}{_MESSAGE}") for channel in ("analysis", "commentary")]
        return lark.rule(f"(({' | '.join(headers)}) {lark.ended(_TEXT, _NEXT)})*")

    def _call(self, lark: Lark, tools: Sequence[Tool], choice: ToolChoice) -> str:
        return calls_of(lark, _SYNTAX, tools, replace(choice, parallel=False))


_NEXT = f"<|end|>{_START}assistant"
_TEXT = without(*_ENDS)
_SYNTAX = CallSyntax(f"{_CHANNEL}commentary to=functions.{NAME} <|constrain|>json{_MESSAGE}", names=r"[^\s<]+")
REASONING_TEXT = ReasoningText((_CHANNEL,), (f"{_CHANNEL}final",))  # a word may stand between it and the message
REASONING_END = f"{_CHANNEL}final{_MESSAGE}"
REASONING_ENDS = ReasoningEnds(_CHANNEL, REASONING_END)  # the final channel ends any other
HARMONY = ToolFormat(
    lambda tools: HarmonyParser(),
    marks=(_START, _CHANNEL, _MESSAGE, "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"),
    grammars=HarmonyGrammars,
    in_template=(_START, _CHANNEL, _MESSAGE),
    reasons=True,
    in_calls=("<|call|>",),
)
