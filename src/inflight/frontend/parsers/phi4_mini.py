"""Parse `<|tool_call|>[{"name": …, "arguments": {…}}, …]<|/tool_call|>` or `functools[…]`: Phi-4-mini, Granite 3."""

from __future__ import annotations

from inflight.frontend.parsers.forced_calls import NAME, CallSyntax, forced_by
from inflight.frontend.parsers.json_calls import JsonCallParser
from inflight.frontend.parsers.pull_parser import Steps
from inflight.frontend.parsers.tool_format import ToolFormat

_BEGIN, _END, _OLD_BEGIN = "<|tool_call|>", "<|/tool_call|>", "functools["


class Phi4MiniParser(JsonCallParser):
    def walk(self) -> Steps[None]:
        while mark := (yield from self.until((_BEGIN, _OLD_BEGIN), self.content)):
            if mark == _OLD_BEGIN:
                self.put_back("[")
                mark = mark[:-1]
            calls = self._calls
            yield from self.json_calls(mark)
            if self._calls > calls:
                yield from self.literal(_END)


PHI4_MINI = ToolFormat(
    lambda tools: Phi4MiniParser(),
    marks=(_BEGIN, _END),
    grammars=forced_by(
        CallSyntax(
            f'{{"name": "{NAME}", "arguments": ',
            "}",
            opens=f"{_BEGIN}[",
            closes=f"]{_END}",
            separator=", ",
            triggers=(_BEGIN, _OLD_BEGIN),
        )
    ),
    in_template=("<|tool_call|>",),
    in_calls=(_BEGIN, _OLD_BEGIN),
)
