"""Parse tool calls of DeepSeek V3 (type, name, fenced JSON) and V3.1 (name, JSON), by one parser."""

from __future__ import annotations

import re

from inflight.frontend.parsers.forced_calls import NAME, CallSyntax, forced_by
from inflight.frontend.parsers.pull_parser import PullParser, Steps
from inflight.frontend.parsers.tool_format import ToolFormat

_ALL_BEGIN, _ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"  # noqa: RUF001
_BEGIN, _SEPARATOR, _END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"  # noqa: RUF001
_A_NAME = re.compile(r"[\w.:-]+")
_MARKS = (_ALL_BEGIN, _ALL_END, _BEGIN, _SEPARATOR, _END)


class DeepSeekParser(PullParser):
    def walk(self) -> Steps[None]:
        while mark := (yield from self.until((_ALL_BEGIN, _ALL_END, _BEGIN), self.content)):
            if mark == _BEGIN:
                yield from self._call()

    def _call(self) -> Steps[None]:
        self.record()
        name, mark = yield from self.collect_until((_SEPARATOR, _END))
        if mark == _SEPARATOR:
            yield from self.white()
            if (yield from self.next_character()) != "{" and name.strip() == "function":  # it was the type
                name, end = yield from self.collect_until(("```json", "{", _END))
                if end == "{":
                    self.put_back(end)
                mark = "" if end == _END else mark
        if mark != _SEPARATOR or not _A_NAME.fullmatch(name.strip()):
            self.no_call(_BEGIN)
            return
        self.recorded()
        self.begin_call(name.strip())
        if (yield from self.json_value(self.arguments)):
            yield from self.white()
            yield from self.literal("```")
            yield from self.white()
            yield from self.literal(_END)


DEEPSEEK_V3 = ToolFormat(
    lambda tools: DeepSeekParser(),
    marks=_MARKS,
    grammars=forced_by(
        CallSyntax(
            f"{_BEGIN}function{_SEPARATOR}{NAME}\n```json\n",
            f"\n```{_END}",
            opens=_ALL_BEGIN,
            closes=_ALL_END,
            separator="\n",
            triggers=(_ALL_BEGIN, _BEGIN),
        )
    ),
    in_template=(_ALL_BEGIN, "```json"),
    in_calls=(_ALL_BEGIN, _BEGIN),
)
DEEPSEEK_V31 = ToolFormat(
    lambda tools: DeepSeekParser(),
    marks=_MARKS,
    grammars=forced_by(
        CallSyntax(
            f"{_BEGIN}{NAME}{_SEPARATOR}", _END, opens=_ALL_BEGIN, closes=_ALL_END, triggers=(_ALL_BEGIN, _BEGIN)
        )
    ),
    in_template=(_ALL_BEGIN,),
    in_calls=(_ALL_BEGIN, _BEGIN),
)
