"""The generic form of tools: answers as JSON cut anywhere, constrained answers, and conversations rewritten for it."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.core.types.sampling import Grammar
from inflight.frontend.parsers.generic import generic_messages
from inflight.frontend.parsers.parser_choice import ParserNames, Tool, ToolChoice
from inflight.frontend.parsers.registry import ChosenParsers
from tests.frontend.parsers.examples import TOOLS, parsed

NAMES = ParserNames("generic")
AUTO = ToolChoice("auto", parallel=False)
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Say “hi”.", "parameters": {}}}
CALL = '{"name": "weather", "arguments": {"city":"Lyon"}}'


def _pieces(text: str, size: int) -> list[str]:
    return [text[begin : begin + size] for begin in range(0, len(text), size)]


# -- answers
@given(text=st.text(), is_ascii=st.booleans(), size=st.integers(1, 9))
def test_an_answers_text_is_the_string_that_the_model_wrote(text: str, is_ascii: bool, size: int) -> None:
    written = f'{{"response": {json.dumps(text, ensure_ascii=is_ascii)}}}'
    assert parsed(_pieces(written, size), NAMES) == ("", text, [])


@pytest.mark.parametrize(
    ("written", "content"),
    [
        (r'{"response": "\ud83d\ude00 \ud83d \ude00x"}', "😀 \ufffd \ufffdx"),
        (r'{"response": "\ud83d\u0041"}', "\ufffd"),
        (r'{"response": "a\/b\"', 'a/b"'),
        (r'{"response": "a\u00', "a\ufffd"),
        ('{"response": {"a": [1, "}"]}}', '{"a": [1, "}"]}'),
        ('{"response" of mine', '{"response" of mine'),
        ('{"tool_calls" : none', '{"tool_calls" : none'),
        ("Hello.", "Hello."),
    ],
)
def test_content_of_what_else_models_write(written: str, content: str) -> None:
    for size in (1, 2, len(written)):
        assert parsed(_pieces(written, size), NAMES) == ("", content, [])


def test_arguments_are_streamed_as_they_come() -> None:
    parser = ChosenParsers(NAMES).parser(TOOLS, in_reasoning=False)
    parser.push('{"tool_calls": [{"name": "now", "arguments": ')
    (delta,) = parser.push('{"city": "Pa')
    assert getattr(delta, "arguments", None) == '{"city": "Pa'


# -- grammars
def _grammar(choice: ToolChoice, content: Grammar | None = None, tools: tuple[Tool, ...] = TOOLS) -> Any:
    pytest.importorskip("llguidance")
    from tests.frontend.parsers.byte_grammar import ByteGrammar

    grammar = ChosenParsers(NAMES).grammar_of_calls(tools, choice, content)
    assert grammar is not None
    return ByteGrammar(grammar)


def test_every_answer_is_one_call_or_one_text() -> None:
    grammar, called = _grammar(AUTO), 0
    for seed in range(20):
        if (text := grammar.drawn(random.Random(seed))) is not None:
            _, content, calls = parsed([text], NAMES)
            assert len(calls) <= 1 and not (content and calls)
            called += len(calls)
    assert called and grammar.accepts_text('{"response": "Hello."}')
    assert not grammar.accepts_text("Hello.") and not grammar.accepts_text('{"name": "now", "arguments": {}}')


def test_arguments_follow_the_schema_of_a_tool_that_is_not_strict() -> None:
    def allowed(arguments: str, name: str = "get_weather") -> bool:
        return bool(_grammar(AUTO).accepts_text(f'{{"tool_calls": [{{"name": "{name}", "arguments": {arguments}}}]}}'))

    assert allowed('{"city": "Rome"}') and allowed("{}", "now")
    assert not allowed("{}") and not allowed('{"city": 3}') and not allowed('{"city": "Rome", "type": "string"}')
    free = _grammar(AUTO, tools=(Tool("any", '{"type": "object"}'),))
    assert free.accepts_text('{"tool_calls": [{"name": "any", "arguments": {"a": 1}}]}')


def test_calls_alone_are_forced_and_several_where_they_are_allowed() -> None:
    one = '{"name": "now", "arguments": {}}'
    several = _grammar(ToolChoice("required"))
    assert several.accepts_text(f'{{"tool_calls": [{one}, {one}]}}') and not several.accepts_text('{"response": "a"}')
    named = _grammar(ToolChoice("named", ("get_weather",), parallel=False))
    assert not named.accepts_text(f'{{"tool_calls": [{one}]}}')


def test_an_answers_own_schema_is_that_of_the_response() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    grammar = _grammar(AUTO, Grammar("json_schema", json.dumps(schema)))
    assert grammar.accepts_text('{"response": {"a": 1}}') and not grammar.accepts_text('{"response": "a"}')
    with pytest.raises(ValueError, match="put the value into an object"):
        _grammar(AUTO, Grammar("json_schema", '{"enum": ["a", "b"]}'))


# -- conversations
def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _calling(*ids: str, text: str = "") -> dict[str, Any]:
    function = {"name": "weather", "arguments": '{"city":"Lyon"}'}
    return {"role": "assistant", "content": text, "tool_calls": [{"id": one, "function": function} for one in ids]}


def _result(call_id: str | None, text: str, **more: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, **({"tool_call_id": call_id} if call_id else {}), **more}


def test_a_conversation_without_tools_is_unchanged() -> None:
    messages = [_user("a"), {"role": "assistant", "content": "b"}, _user("c")]
    assert generic_messages(messages, (), True) is messages


def test_tools_are_described_in_the_system_message() -> None:
    for messages in (
        [_user("a")],
        [{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}, _user("a")],
    ):
        system, user = generic_messages(messages, [WEATHER], True)
        assert '{"name": "weather", "description": "Say “hi”.", "parameters": {}}' in system["content"]
        assert system["role"] == "system" and user == _user("a")
        assert system["content"].startswith("Be brief.\n\n") == (len(messages) == 2)


def test_tools_are_described_to_the_user_where_the_template_has_no_system_message() -> None:
    (message,) = generic_messages([_user("a")], [WEATHER], False)
    assert message["role"] == "user" and message["content"].endswith('{"response": "text"}.\n\na')


def test_calls_and_results_are_written_as_the_model_writes_and_reads_them() -> None:
    history = [_user("a"), _calling("x", "y", text="Hm."), _result("y", "rain"), _result("x", "sun"), _user("b")]
    answered = [*history, {"role": "assistant", "content": 'So "sun".'}, _user("c")]
    written = generic_messages(answered, [WEATHER], True)[1:]
    assert [one["role"] for one in written] == ["user", "assistant", "user", "assistant", "user"]
    assert written[1] == {"role": "assistant", "content": f'Hm.\n{{"tool_calls": [{CALL}, {CALL}]}}'}
    assert written[2]["content"] == f"Result of {CALL}:\nrain\n\nResult of {CALL}:\nsun\n\nb"
    assert written[3]["content"] == r'{"response": "So \"sun\"."}'


def test_results_without_ids_are_those_of_the_calls_in_order_or_have_a_name() -> None:
    messages = [_user("a"), _calling("x"), _result(None, "sun"), _result(None, "1", name="f"), _result(None, "2")]
    text = generic_messages(messages, [WEATHER], True)[-1]["content"]
    assert text == f'Result of {CALL}:\nsun\n\nResult of {{"name": "f"}}:\n1\n\nResult:\n2'


def test_without_tools_results_alone_are_shown() -> None:
    messages = [_user("a"), _calling("x"), _result("x", "sun"), _user("b"), _user("c")]
    assert generic_messages(messages, (), True) == [_user(f"a\n\nResult of {CALL}:\nsun\n\nb"), _user("c")]
    (first, second, third) = generic_messages([_user("a"), _calling("x", text="Hm."), _result("x", "sun")], (), True)
    assert (first, second["content"], third["role"]) == (_user("a"), "Hm.", "user")


def test_an_answer_that_is_to_be_continued_stays_as_it_is() -> None:
    begun = {"role": "assistant", "content": "It is"}
    assert generic_messages([_user("a"), begun], [WEATHER], True)[-1] == begun
