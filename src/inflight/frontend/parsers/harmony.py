"""Messages with channels: gpt-oss. Analysis is reasoning, messages to `functions.…` are calls, all else is content.

Knows that a recipient may stand in front of the channel or behind it.
"""

from __future__ import annotations

import re

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
                return  # a header that was cut off is nobody's text
            yield from self._message(_CHANNEL + header)
            mark = yield from self.until((_START, _CHANNEL), self.content)

    def _message(self, header: str) -> Steps[None]:
        called = _RECIPIENT.search(header)
        if called is not None:
            self.begin_call(called.group(1))
        is_reasoning = called is None and _ANALYSIS.search(header) is not None
        self.in_reasoning = is_reasoning
        tell = self.reasoning if is_reasoning else self.content if called is None else self.arguments
        mark = yield from self.until(_ENDS, tell)
        self.in_reasoning = False
        if mark in (_START, _CHANNEL):
            self.put_back(mark)


HARMONY = ToolFormat(
    lambda tools: HarmonyParser(),
    marks=(_START, _CHANNEL, _MESSAGE, "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"),
    in_template=(_START, _CHANNEL, _MESSAGE),
    reasons=True,
)
REASONING_END = f"{_CHANNEL}final{_MESSAGE}"
