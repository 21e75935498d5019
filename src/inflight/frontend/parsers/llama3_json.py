"""Parse `{"name": …, "parameters": {…}}`, separated by semicolons, optionally after `<|python_tag|>`: Llama 3.1 to 3.3.

Since there may be no mark, an object is a call only with both name and parameters.
"""

from __future__ import annotations

from inflight.frontend.parsers.forced_calls import NAME, CallSyntax, forced_by
from inflight.frontend.parsers.json_calls import JsonCallParser
from inflight.frontend.parsers.pull_parser import Steps
from inflight.frontend.parsers.tool_format import ToolFormat

_TAG, _OBJECT = "<|python_tag|>", '{"name"'


class Llama3JsonParser(JsonCallParser):
    def walk(self) -> Steps[None]:
        space = yield from self.white()
        if (yield from self.next_character()) == "{":
            yield from self._calls_after(space)
        else:
            self.content(space)
        while mark := (yield from self.until((_TAG, _OBJECT), self.content)):
            if mark == _OBJECT:
                self.put_back(mark)
                mark = ""
            yield from self._calls_after(mark)

    def _calls_after(self, mark: str) -> Steps[None]:
        while True:
            calls = self._calls
            yield from self.json_calls(mark, needs_arguments=True)
            if self._calls == calls or not (yield from self.literal(";")):
                return
            mark = ";"


LLAMA3_JSON = ToolFormat(
    lambda tools: Llama3JsonParser(),
    marks=(_TAG,),
    grammars=forced_by(
        CallSyntax(
            f'{{"name": "{NAME}", "parameters": ',
            "}",
            separator="; ",
            triggers=(_OBJECT, _TAG),
            at_begin=r"\s*\{",
            goes_on=r"\s*;",
        )
    ),
    in_template=('"parameters": ', "<|eot_id|>"),  # not all of the versions' templates have the tag
    in_calls=(_TAG, _OBJECT),
)
