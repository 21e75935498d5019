"""Give tools to models whose chat template knows none: a system text, tool calls and answers as JSON, and a grammar.

An answer is `{"tool_calls": [{"name": …, "arguments": {…}}, …]}` or `{"response": "text"}`.
"""

from __future__ import annotations

import json
import string
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from inflight.core.types.sampling import Grammar
from inflight.frontend.parsers.forced_calls import NAME, CallGrammars, CallSyntax, calls_of, content_of
from inflight.frontend.parsers.json_calls import JsonCallParser
from inflight.frontend.parsers.lark import Lark
from inflight.frontend.parsers.parser_choice import Tool, ToolChoice
from inflight.frontend.parsers.pull_parser import Steps
from inflight.frontend.parsers.tool_format import ToolFormat
from inflight.frontend.parsers.tool_schema import SchemaError, ToolSchema

GENERIC_NAME = "generic"
_CALLS, _RESPONSE = '{"tool_calls"', '{"response"'
_SYSTEM = """You can call these functions:
{tools}
Answer in JSON: either call functions, as {"tool_calls": [{"name": "function name", "arguments": {...}}]}, or, if no \
call is needed or its result is known, answer with text, as {"response": "text"}."""
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}

Message = dict[str, Any]


class GenericParser(JsonCallParser):
    def walk(self) -> Steps[None]:
        while mark := (yield from self.until((_CALLS, _RESPONSE), self.content)):
            is_response = mark == _RESPONSE
            self.record()
            yield from self.white()
            has_colon = bool((yield from self.literal(":")))
            mark += self.recorded()
            if not has_colon:
                self.content(mark)
            elif is_response:
                yield from self._response()
                yield from self._closing()
            else:
                calls = self._calls
                yield from self.json_calls(mark)
                if self._calls > calls:
                    yield from self._closing()

    def _response(self) -> Steps[None]:
        """Emit the text of a JSON string, or any other JSON value as it is written."""
        yield from self.white()
        if not (yield from self.literal('"')):
            yield from self.json_value(self.content)
            return
        while (yield from self.until(('"', "\\"), self.content)) == "\\":
            self.content((yield from self._escaped()))

    def _escaped(self) -> Steps[str]:
        """Consume an escape after its backslash; return its character. Half a surrogate pair becomes U+FFFD."""
        yield from self.next_character()
        letter = self.take(1)
        if letter != "u":
            return _ESCAPES.get(letter, letter)
        code = yield from self._code()
        if 0xD800 <= code < 0xDC00 and (yield from self.literal("\\u")):
            low = yield from self._code()
            if 0xDC00 <= low < 0xE000:
                return chr(0x10000 + (code - 0xD800) * 0x400 + low - 0xDC00)
        return "\ufffd" if 0xD800 <= code < 0xE000 else chr(code)

    def _code(self) -> Steps[int]:
        digits = ""
        while len(digits) < 4 and (yield from self.next_character()) in _HEX:
            digits += self.take(1)
        return int(digits, 16) if len(digits) == 4 else 0xFFFD

    def _closing(self) -> Steps[None]:
        self.record()
        yield from self.white()
        if (yield from self.literal("}")):
            self.recorded()
        else:
            self.no_call("")


_HEX = frozenset(string.hexdigits)


class GenericGrammars(CallGrammars):
    """Constrain every answer, also under `tool_choice` auto; arguments always follow the tool's schema, and have no
    other properties than it names."""

    def or_content(self, tools: Sequence[Tool], choice: ToolChoice, content: str) -> Grammar:
        schema = msgspec.json.decode(content) if content.startswith("{") else {}
        if schema.get("type", "object") not in ("object", "array") or {"enum", "const"} & {*schema}:
            raise SchemaError(
                "A response_format whose value may be a string cannot be combined with this model's tools; put the "
                "value into an object, or send tool_choice none."
            )
        return self._answers(tools, choice, content)

    def free(self, tools: Sequence[Tool], choice: ToolChoice) -> Grammar:
        return self._answers(tools, choice, '{"type": "string"}')

    def _answers(self, tools: Sequence[Tool], choice: ToolChoice, content: str) -> Grammar:
        lark = Lark({})
        calls = calls_of(lark, _SYNTAX, tools, replace(choice, mode="required"))
        response = f"{lark.text(f'{_RESPONSE}: ')} {content_of(lark, content)} {lark.text('}')}"
        return Grammar("lark", lark.grammar(f"{calls} | {response}"))


def _arguments(lark: Lark, schema: ToolSchema) -> str:
    root = schema.root
    is_open = "properties" not in root or not _OPEN.isdisjoint(root)
    return lark.json(root if is_open else {**root, "additionalProperties": False})


_OPEN = {"additionalProperties", "patternProperties", "unevaluatedProperties", "$ref", "allOf", "anyOf", "oneOf", "if"}
_SYNTAX = CallSyntax(
    f'{{"name": "{NAME}", "arguments": ',
    "}",
    opens=f"{_CALLS}: [",
    closes="]}",
    separator=", ",
    arguments=_arguments,
    triggers=(_CALLS,),
)
GENERIC = ToolFormat(
    lambda tools: GenericParser(),
    grammars=lambda mark_ids: GenericGrammars(_SYNTAX, {}),
    in_calls=(_CALLS,),
    always_constrained=True,
)


# -- conversations


def generic_messages(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], has_system: bool
) -> Sequence[Message]:
    """Write tools, calls and results into messages of the roles system, user and assistant.

    Args:
        messages: In the form of `Conversation`; arguments of calls are JSON text.
        tools: Tools to describe; empty: only results are written, as a model repeats calls that it sees.
        has_system: Whether the template writes system messages; if not, the first user message describes the tools.

    Returns:
        The messages, unchanged if there are neither tools, calls nor results. A result becomes a user's message that
        names its call, joined with other user's messages beside it: templates may demand that roles alternate.
    """
    if not tools and not any(one.get("tool_calls") or one["role"] == "tool" for one in messages):
        return messages
    written = _written(messages, bool(tools))
    if not tools:
        return written
    described = "\n".join([json.dumps(one["function"], ensure_ascii=False) for one in tools])
    text, role = _SYSTEM.replace("{tools}", described), "system" if has_system else "user"
    index = next((index for index, one in enumerate(written) if one["role"] == role), None)
    if index is None:
        return [{"role": role, "content": text}, *written]
    texts = (_text(written[index]), text) if has_system else (text, _text(written[index]))
    written[index] = {**written[index], "content": "\n\n".join(texts)}
    return written


def _written(messages: Sequence[Message], has_tools: bool) -> list[Message]:
    written: list[Message] = []
    pending: dict[str, str] = {}  # calls without a result, by id
    was_result = False
    for index, message in enumerate(messages):
        is_result, calls = message["role"] == "tool", message.get("tool_calls")
        text = _text(message)
        if is_result:
            call = pending.pop(message.get("tool_call_id") or next(iter(pending), ""), None)
            call = call or (json.dumps({"name": message["name"]}) if message.get("name") else "")
            message = {"role": "user", "content": f"Result of {call}:\n{text}" if call else f"Result:\n{text}"}
        elif calls:
            texts = [_call(one["function"]) for one in calls]
            pending = {one.get("id") or str(number): texts[number] for number, one in enumerate(calls)}
            if has_tools:
                text = "\n".join([*filter(None, [text]), f"{_CALLS}: [{', '.join(texts)}]}}"])
            message = {**{key: value for key, value in message.items() if key != "tool_calls"}, "content": text}
        elif has_tools and message["role"] == "assistant" and index + 1 < len(messages):  # the last one is continued
            message = {**message, "content": f"{_RESPONSE}: {json.dumps(text, ensure_ascii=False)}}}"}
        if (is_result or was_result) and written and written[-1]["role"] == message["role"] == "user":
            written[-1] = {**written[-1], "content": f"{_text(written[-1])}\n\n{_text(message)}"}
        elif message.get("content") or not calls:
            written.append(message)
        was_result = is_result
    return written


def _call(function: Mapping[str, Any]) -> str:
    return f'{{"name": {json.dumps(function["name"])}, "arguments": {function["arguments"] or "{}"}}}'


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join([part["text"] for part in content])
