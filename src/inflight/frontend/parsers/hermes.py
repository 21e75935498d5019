"""Parse `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen2.5, Qwen3, Granite 4, SmolLM3."""

from __future__ import annotations

from inflight.frontend.parsers.forced_calls import NAME, CallSyntax, forced_by
from inflight.frontend.parsers.json_calls import JsonCallParser
from inflight.frontend.parsers.pull_parser import Steps
from inflight.frontend.parsers.tool_format import ToolFormat

_BEGIN, _END = "<tool_call>", "</tool_call>"


class HermesParser(JsonCallParser):
    def walk(self) -> Steps[None]:
        while mark := (yield from self.until((_BEGIN,), self.content)):
            calls = self._calls
            yield from self.json_calls(mark)
            if self._calls > calls:
                yield from self.literal(_END)


HERMES = ToolFormat(
    lambda tools: HermesParser(),
    marks=(_BEGIN, _END),
    grammars=forced_by(
        CallSyntax(f'{_BEGIN}\n{{"name": "{NAME}", "arguments": ', f"}}\n{_END}", separator="\n", triggers=(_BEGIN,))
    ),
    in_template=(_BEGIN,),
    in_calls=(_BEGIN,),
)
