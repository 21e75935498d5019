"""Tools and forms of answers in bodies: what is refused with its place, and what of them reaches the engine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inflight.build import BUILT_IN
from inflight.core.types.sampling import Grammar
from inflight.frontend.prompts import PromptEncoder
from inflight.server.common.prepared import Limits, PreparedChat
from inflight.server.common.schemas import MAX_SCHEMA_DEPTH
from inflight.server.errors import ApiError
from inflight.server.preprocessing.worker import Preprocessor
from inflight.text import ChatTemplate, Tokenizer
from tests.server.marked_parser import MarkedChoice

TOOL_WRITING = (
    "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content or '' }}{{ m.reasoning_content or '' }}"
    "{% for c in m.tool_calls or [] %}({{ c.function.name }} {{ ARGUMENTS }}){% endfor %};{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}<r></r>{% else %}<r>{% endif %}"
)
TOKENIZER = Tokenizer.load(BUILT_IN)
HELLO = [{"role": "user", "content": "Hi"}]


def tool(name: str = "f", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def preprocessor(
    parsers: MarkedChoice | None = None, arguments: str = "c.function.arguments|tojson", keeps: bool = True
) -> Preprocessor:
    template = ChatTemplate(TOOL_WRITING.replace("ARGUMENTS", arguments))
    return Preprocessor(PromptEncoder(TOKENIZER, template, 0), TOKENIZER, Limits(keeps_grammars=keeps), parsers)


def prepared(of: Preprocessor, **body: Any) -> PreparedChat:
    made = of.prepared("chat", json.dumps({"messages": HELLO, **body}).encode())
    assert isinstance(made, PreparedChat)
    return made


def prompt(made: PreparedChat) -> str:
    return TOKENIZER.decode(made.prompts[0].ids(), skip_special_tokens=False)


def refusal(of: Preprocessor, **body: Any) -> ApiError:
    with pytest.raises(ApiError) as refused:
        prepared(of, **body)
    assert refused.value.status == 400
    return refused.value


@pytest.mark.parametrize(
    ("body", "field", "sentence"),
    [
        ({"tools": [tool(), tool("no name")]}, "tools[1].function.name", "'no name', which is no name of a tool"),
        ({"tools": [tool(), tool()]}, "tools[1].function.name", "names must differ"),
        ({"tools": [tool(str(n)) for n in range(513)]}, "tools", "at most 512 entries"),
        ({"tools": [tool(parameters={"$ref": "http://x/y"})]}, "tools[0].function.parameters", "not fetched"),
        ({"tools": [tool()], "tool_choice": tool("g")}, "tool_choice", "'g', which is none of the tools"),
        ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"tools": [tool()], "functions": [{"name": "g"}]}, "functions", "both given"),
        ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "function_call", "'g'"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [tool(arguments="{")]}]},
            "messages[0].tool_calls[0].function.arguments",
            "not a JSON object",
        ),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format", "no schema"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", "both constrain"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
        ({"guided_choice": ["a", ""]}, "guided_choice", "an empty text at 1"),
        ({"guided_json": "{"}, "guided_json", "not a schema in JSON"),
        ({"guided_regex": "a" * 20_000}, "guided_regex", "20,000 characters"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_is_wrong_is_reported_with_its_path(body: dict[str, Any], field: str, sentence: str) -> None:
    error = refusal(preprocessor(MarkedChoice()), **body)
    assert error.param == field and sentence in error.message


def test_a_schema_has_a_depth() -> None:
    schema: dict[str, Any] = {}
    for _ in range(MAX_SCHEMA_DEPTH):
        schema = {"items": schema}
    sentence = refusal(preprocessor(), guided_json=schema).message
    assert f"may be {MAX_SCHEMA_DEPTH}" in sentence and "$defs" not in sentence


def test_a_reference_by_address_is_left_to_the_engine_where_parts_have_addresses() -> None:
    part = {"$id": "part.json", "type": "string"}
    schema = {"$id": "https://example.org/whole.json", "$ref": "part.json", "$defs": {"part": part}}
    made = prepared(preprocessor(), guided_json=schema)
    assert "part.json" in str(made)


def test_tools_are_refused_where_the_form_of_calls_is_unknown() -> None:
    assert "--tool-parser" in refusal(preprocessor(), tools=[tool()]).message
    assert prompt(prepared(preprocessor(), tools=[tool()], tool_choice="none")).startswith("user")


def test_forms_are_refused_where_the_engine_keeps_none() -> None:
    of = preprocessor(MarkedChoice(), keeps=False)
    for body in ({"guided_regex": "a"}, {"tools": [tool()], "tool_choice": "required"}):
        assert refusal(of, **body).code == "unsupported_field"
    assert prepared(of, tools=[tool()]).grammar is None


def test_tools_reach_prompt_parser_and_grammar() -> None:
    made = prepared(preprocessor(MarkedChoice()), tools=[tool("f"), tool("g")], tool_choice=tool("g"))
    assert prompt(made).startswith("[f][g]user") and [one.name for one in made.tools] == ["g"]
    assert made.grammar is not None and made.grammar.source == "forced named g"
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [tool("f")]}}
    made = prepared(preprocessor(MarkedChoice()), tools=[tool("f"), tool("g")], tool_choice=allowed)
    assert made.grammar is not None and made.grammar.source == "forced required f"
    assert not prepared(preprocessor(MarkedChoice()), tools=[tool()], parallel_tool_calls=False).parallel_calls
    assert prepared(preprocessor(MarkedChoice()), functions=[{"name": "f"}]).old_functions


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        ("c.function.arguments|tojson", '{"a": 1}'),
        ("c.function.arguments", '{"a":1}'),
        ("'' ~ c.function['arguments']", '{"a":1}'),
    ],
)
def test_calls_come_back_as_the_template_takes_them(arguments: str, written: str) -> None:
    of = preprocessor(arguments=arguments)
    for given in ('{"a":1}', {"a": 1}):
        said = {"role": "assistant", "content": None, "reasoning": "why", "tool_calls": [tool(arguments=given)]}
        answered = {"role": "tool", "tool_call_id": "1", "content": "7"}
        text = prompt(prepared(of, messages=[*HELLO, said, answered]))
        assert f"assistant:why(f {written});tool:7;" in text.replace(" :", ":")
    old = {"role": "assistant", "function_call": {"name": "f", "arguments": '{"a":1}'}}
    text = prompt(prepared(of, messages=[*HELLO, old, {"role": "function", "name": "f", "content": "7"}]))
    assert f"(f {written});tool:7;" in text


@pytest.mark.parametrize(
    ("body", "grammar"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Grammar("json_object")),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "null"}}}},
            Grammar("json_schema", '{"type":"null"}'),
        ),
        ({"structured_outputs": {"json": '{"type": "null"}'}}, Grammar("json_schema", '{"type":"null"}')),
        ({"structured_outputs": {"choice": ["a", "b"]}}, Grammar("choice", '["a","b"]')),
        ({"guided_regex": "a+"}, Grammar("regex", "a+")),
        ({"guided_grammar": 'start: "a"'}, Grammar("lark", 'start: "a"')),
        ({"guided_json": {"type": "null"}}, Grammar("json_schema", '{"type":"null"}')),
    ],
    ids=lambda value: str(value)[:50],
)
def test_each_way_to_ask_for_a_form_is_read(body: dict[str, Any], grammar: Grammar | None) -> None:
    assert prepared(preprocessor(), **body).grammar == grammar


def test_a_form_begins_behind_the_reasoning() -> None:
    end = tuple(TOKENIZER.encode("</r>", add_special_tokens=False))
    of = preprocessor(MarkedChoice())
    made = prepared(of, guided_regex="a", thinking_token_budget=7)
    assert made.in_reasoning and made.grammar == Grammar("regex", "a", end, 7)
    assert prepared(of, thinking_token_budget=7).grammar == Grammar("none", "", end, 7)
    for silent in ({"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}):
        made = prepared(preprocessor(MarkedChoice()), guided_regex="a", **silent)
        assert not made.in_reasoning and made.grammar == Grammar("regex", "a")


@pytest.mark.parametrize(
    "body", [{"tools": [tool()], "tool_choice": "required"}, {"guided_regex": "a"}, {"thinking_token_budget": 7}]
)
def test_where_the_prompt_does_not_open_reasoning_the_form_has_what_would(body: dict[str, Any]) -> None:
    template = ChatTemplate(TOOL_WRITING.replace("{% else %}<r>", "").replace("ARGUMENTS", "1"))
    of = Preprocessor(PromptEncoder(TOKENIZER, template, 0), TOKENIZER, Limits(keeps_grammars=True), MarkedChoice())
    grammar = prepared(of, **body).grammar
    assert grammar is not None
    assert TOKENIZER.decode(list(grammar.opening_token_ids)) == "<r>"
    assert TOKENIZER.decode(list(grammar.after_token_ids)) == "</r>"
    assert prepared(of).grammar is None


def test_the_clients_word_on_thinking_is_above_the_effort() -> None:
    made = prepared(
        preprocessor(MarkedChoice()), reasoning_effort="high", chat_template_kwargs={"enable_thinking": False}
    )
    assert not made.in_reasoning


def test_grammars_of_whole_answers_do_not_wait_for_the_end_of_reasoning() -> None:
    class Whole(MarkedChoice):
        calls_cover_reasoning = True

    of = preprocessor(Whole())
    forced = prepared(of, tools=[tool()], tool_choice="required").grammar
    assert forced is not None and forced.source.startswith("forced") and not forced.after_token_ids
    error = refusal(of, tools=[tool()], tool_choice="required", thinking_token_budget=9)
    assert error.param == "thinking_token_budget"
    free = prepared(of, tools=[tool()], response_format={"type": "json_object"})
    assert free.grammar is not None and free.grammar.after_token_ids
