"""Grammars of forced calls, asked of llguidance: what they let through is what the format's parser reads as calls."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from inflight.core.types.grammar import Grammar
from inflight.frontend.parsers.parser_choice import ParserNames, Tool, ToolChoice
from inflight.frontend.parsers.registry import TOOL_FORMATS, ChosenParsers, ParserError
from tests.frontend.parsers.examples import TOOLS, parsed

llguidance = pytest.importorskip("llguidance")

_FORCED = [name for name, one in TOOL_FORMATS.items() if one.syntax is not None]
_STRICT = tuple(Tool(tool.name, tool.parameters, strict=True) for tool in TOOLS)
_SPECIAL = {"<tool_call>": 257, "</tool_call>": 258}
_CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


class _Bytes:
    """A vocabulary of bytes, an end, and two special tokens."""

    eos_token_id, bos_token_id = 256, None
    tokens = (*(bytes([number]) for number in range(256)), b"<end>", b"<tool_call>", b"</tool_call>")
    special_token_ids = (256, 257, 258)

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


_TOKENIZER = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()))


def _accepts(grammar: Grammar | None, token_ids: Sequence[int]) -> bool:
    assert grammar is not None and grammar.kind == "lark"
    matcher = llguidance.LLMatcher(_TOKENIZER, llguidance.grammar_from("lark", grammar.source))
    assert not matcher.get_error()
    return bool(matcher.validate_tokens([*token_ids, 256]) == len(token_ids) + 1)


def _grammar(
    name: str, choice: ToolChoice, content: Grammar | None = None, special: dict[str, int] | None = None
) -> Grammar | None:
    return ChosenParsers(ParserNames(name), special=special).grammar_of_calls(_STRICT, choice, content)


def _forced_call(name: str, arguments: str) -> str:
    syntax = TOOL_FORMATS[name].syntax
    assert syntax is not None
    return syntax.opens + syntax.begin.replace("{name}", "get_weather") + arguments + syntax.end + syntax.closes


@pytest.mark.parametrize("name", _FORCED)
def test_a_required_call_is_one_and_its_arguments_are_valid(name: str) -> None:
    grammar = _grammar(name, ToolChoice("required"))
    text = _forced_call(name, '{"city": "Paris"}')
    assert _accepts(grammar, text.encode())
    assert parsed([text], ParserNames(name))[2] == [("get_weather", '{"city": "Paris"}')]
    assert not _accepts(grammar, _forced_call(name, '{"city": 3}').encode())
    assert not _accepts(grammar, b"Hello.")


@pytest.mark.parametrize("name", _FORCED)
def test_strict_tools_leave_text_free_and_bind_calls(name: str) -> None:
    grammar = _grammar(name, ToolChoice("auto"))
    assert _accepts(grammar, b"Hello.\n")
    assert _accepts(grammar, ("Hello. " + _forced_call(name, '{"city": "Paris"}')).encode())
    assert not _accepts(grammar, ("Hello. " + _forced_call(name, '{"city": 3}')).encode())


def test_a_named_call_is_of_that_tool_and_one() -> None:
    grammar = _grammar("hermes", ToolChoice("named", ("get_weather",), parallel=False))
    assert _accepts(grammar, _CALL.encode())
    assert not _accepts(grammar, f"{_CALL}\n{_CALL}".encode())
    assert not _accepts(grammar, b'<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>')


def test_several_calls_may_be_required() -> None:
    assert _accepts(_grammar("hermes", ToolChoice("required")), f"{_CALL}\n{_CALL}".encode())


def test_marks_that_are_special_tokens_are_forced_as_such() -> None:
    inside = _CALL.removeprefix("<tool_call>").removesuffix("</tool_call>").encode()
    for mode in ("required", "auto"):
        choice = ToolChoice(mode)
        grammar = _grammar("hermes", choice, special=_SPECIAL)
        assert _accepts(grammar, [257, *inside, 258])
        assert _accepts(grammar, [257, *inside, 258, 10, 257, *inside, 258])
        assert not _accepts(grammar, [257, *b"Hello", 258])


def test_an_answer_with_a_schema_may_call_instead() -> None:
    schema = Grammar("json_schema", json.dumps({"type": "array", "items": {"type": "integer"}}))
    grammar = _grammar("hermes", ToolChoice("auto"), schema)
    assert _accepts(grammar, b"[1, 2]") and _accepts(grammar, _CALL.encode())
    assert not _accepts(grammar, b"Hello.")


def test_what_cannot_be_forced_is_refused_in_words() -> None:
    for name, choice, content in (
        ("openai", ToolChoice("required"), None),
        ("hermes", ToolChoice("auto"), Grammar("regex", "a+")),
    ):
        with pytest.raises(ParserError, match="tool_choice"):
            _grammar(name, choice, content)


def test_nothing_is_forced_where_nothing_is_asked() -> None:
    chosen = ChosenParsers(ParserNames("hermes"))
    assert chosen.grammar_of_calls(TOOLS, ToolChoice("auto"), None) is None
