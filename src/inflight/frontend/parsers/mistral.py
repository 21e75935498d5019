"""Parse Mistral's `[TOOL_CALLS]` with a list of objects (until 2024), or `[TOOL_CALLS]name[ARGS]{…}` for each call.

Some versions of the newer form omit `[ARGS]`, others add `[CALL_ID]`.
"""

from __future__ import annotations

import re

from inflight.frontend.parsers.forced_calls import NAME, CallSyntax, forced_by
from inflight.frontend.parsers.json_calls import JsonCallParser
from inflight.frontend.parsers.pull_parser import Steps
from inflight.frontend.parsers.tool_format import ToolFormat

_BEGIN, _ARGUMENTS, _CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_A_NAME = re.compile(r"[\w.:-]+")


class MistralParser(JsonCallParser):
    def walk(self) -> Steps[None]:
        while mark := (yield from self.until((_BEGIN,), self.content)):
            self.record()
            space = yield from self.white()
            if (yield from self.next_character()) in ("[", "{", ""):
                self.recorded()
                yield from self.json_calls(mark + space)
            else:
                yield from self._named_call(mark)

    def _named_call(self, mark: str) -> Steps[None]:
        name, end = yield from self.collect_until((_ARGUMENTS, _CALL_ID, "{", "\n"))
        call_id = ""
        if end == _CALL_ID:
            call_id, end = yield from self.collect_until((_ARGUMENTS, "{"))
        name, call_id = name.strip(), call_id.strip()
        if end not in (_ARGUMENTS, "{") or not (_A_NAME.fullmatch(name) and _A_NAME.fullmatch(call_id or name)):
            self.no_call(mark)
            return
        if end == "{":
            self.put_back(end)
        self.recorded()
        self.begin_call(name, call_id=call_id or None)
        yield from self.json_value(self.arguments)


MISTRAL = ToolFormat(
    lambda tools: MistralParser(),
    marks=(_BEGIN, _ARGUMENTS, _CALL_ID),
    grammars=forced_by(CallSyntax(f"{_BEGIN}{NAME}{_ARGUMENTS}", triggers=(_BEGIN,))),
    in_template=(_BEGIN, _ARGUMENTS),
    in_calls=(_BEGIN,),
)
MISTRAL_LIST = ToolFormat(
    lambda tools: MistralParser(),
    marks=(_BEGIN,),
    grammars=forced_by(
        CallSyntax(f'{{"name": "{NAME}", "arguments": ', "}", f"{_BEGIN}[", "]", separator=", ", triggers=(_BEGIN,))
    ),
    in_template=(_BEGIN,),
    in_calls=(_BEGIN,),
)
