"""Each format: its published form, text around calls, broken calls, any cutting into pieces, and garbage."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inflight.frontend.parsers.parser_choice import ParserNames
from inflight.frontend.parsers.registry import TOOL_FORMATS, ChosenParsers
from tests.frontend.parsers.examples import ARGUMENTS, CALLS, TOOLS, deltas_of, parsed

_PIECES = sorted({mark for one in TOOL_FORMATS.values() for mark in one.marks})
_SOME = ('{"name"', ': "f"', ', "arguments": {', "}", "]", '"', "\\", "\n", " ", "call:f{", "f(", "a=", "<function=f>")
_GARBAGE = st.lists(st.sampled_from([*_PIECES, *_SOME]) | st.text(max_size=4), max_size=25).map("".join)


def _cut(text: str, places: list[int]) -> list[str]:
    ends = sorted({place % (len(text) + 1) for place in places} | {0, len(text)})
    return [text[begin:end] for begin, end in itertools.pairwise(ends)]


@pytest.mark.parametrize("name", CALLS)
def test_calls_follow_the_content_before_them(name: str) -> None:
    _, content, calls = parsed([CALLS[name]], ParserNames(name))
    assert content == "Let me look."
    assert [called for called, _ in calls] == ["get_weather", "now"]
    assert [json.loads(arguments) for _, arguments in calls] == [ARGUMENTS, {}]


@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=25, deadline=None)
@given(places=st.lists(st.integers(0, 10**4), max_size=40), length=st.integers(0, 10**4), garbage=_GARBAGE)
def test_deltas_do_not_depend_on_how_the_text_is_cut(name: str, places: list[int], length: int, garbage: str) -> None:
    names = ParserNames(name, "openai_gptoss" if name == "openai" else "qwen3")
    for text in (CALLS[name], CALLS[name][: length % len(CALLS[name])], garbage, CALLS[name][:length] + garbage):
        whole = deltas_of([text], names)
        assert deltas_of(_cut(text, places), names) == whole
        assert deltas_of(list(text), names) == whole


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("opened", [False, True])
def test_reasoning_before_calls_loses_neither(name: str, opened: bool) -> None:
    names, reasoning = ParserNames(name, "qwen3"), "Shall I <tool_call> it?"
    text = f"{'' if opened else '<think>'}{reasoning}</think>\n\n{CALLS[name]}"
    if name == "openai":
        names = ParserNames(name, "openai_gptoss")
        text = f"<|channel|>analysis<|message|>{reasoning}<|end|><|start|>assistant{CALLS[name]}"
    for pieces in ([text], list(text)):  # a whole answer in one delta, and a delta for each character
        found, content, calls = parsed(pieces, names, in_reasoning=opened)
        assert (found, content) == (reasoning, "Let me look.")
        assert [(called, json.loads(arguments)) for called, arguments in calls] == [
            ("get_weather", ARGUMENTS),
            ("now", {}),
        ]


@pytest.mark.parametrize("name", sorted(set(CALLS) - {"openai"}))
def test_text_without_a_call_is_content(name: str) -> None:
    for text in ("Hello.\n", " <b>[1, 2]</b> {x} \n"):
        assert parsed([text], ParserNames(name)) == ("", text, [])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", 'See <tool_call>\n{"nam": 3}\n</tool_call> end'),
        ("hermes", "<tool_call> no JSON"),
        ("llama3_json", '{"name": "f"}'),
        ("llama3_json", '{"a": [1, {"b": 2}]}'),
        ("mistral", "[TOOL_CALLS] what a name is this"),
        ("qwen3_coder", "<tool_call>\n<func"),
        ("glm45", "<tool_call>is it one"),
        ("gemma4", "<|tool_call>call f"),
        ("llama4_pythonic", "[1, 2, 3]"),
    ],
)
def test_what_was_never_a_call_is_content(name: str, text: str) -> None:
    assert parsed([text], ParserNames(name)) == ("", text, [])


def test_arguments_that_do_not_parse_are_passed_on() -> None:
    text = '<tool_call>{"name": "f", "arguments": {city: Paris}}</tool_call>'
    assert parsed([text], ParserNames("hermes")) == ("", "", [("f", "{city: Paris}")])


def test_truncated_arguments_are_returned_as_far_as_they_go() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"city": "Par'
    assert parsed([text], ParserNames("hermes")) == ("", "", [("f", '{"city": "Par')])


def test_arguments_written_as_a_string_are_the_json_in_it() -> None:
    text = '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>'
    assert parsed([text], ParserNames("hermes")) == ("", "", [("f", '{"a": 1}')])


def test_without_tools_calls_are_text() -> None:
    assert parsed([CALLS["hermes"]], ParserNames("hermes"), tools=()) == ("", CALLS["hermes"], [])


def test_arguments_stream_before_the_call_is_whole() -> None:
    parser = ChosenParsers(ParserNames("hermes")).parser(TOOLS, in_reasoning=False)
    parser.push('<tool_call>{"name": "f", "arguments": ')
    (delta,) = parser.push('{"city": "Pa')
    assert getattr(delta, "arguments", None) == '{"city": "Pa'
