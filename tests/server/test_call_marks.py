"""By which tokens the engine knows that an answer calls a tool."""

from __future__ import annotations

import pytest

from inflight.build import BUILT_IN
from inflight.core.types.request import Request
from inflight.frontend.parsers.parser_choice import ParserNames, Tool
from inflight.frontend.parsers.registry import TOOL_FORMATS, ChosenParsers
from inflight.frontend.prompts import PromptEncoder
from inflight.server.common.fields import ChatSettings
from inflight.server.common.prepared import PreparedChat, Prompt, packed
from inflight.server.parsers import call_marks
from inflight.server.tenants import ANYONE
from inflight.server.translating import RequestTranslator
from inflight.text import Tokenizer

CALLS = {
    "hermes": 'I look.\n<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>',
    "llama3_json": '{"name": "weather", "parameters": {}}',
    "phi4_mini_json": 'functools[{"name": "weather", "arguments": {}}]',
    "mistral": "[TOOL_CALLS]weather[ARGS]{}",
    "qwen3_coder": "Well: <tool_call>\n<function=weather>\n</function>\n</tool_call>",
    "gemma4": "<|tool_call>call:weather{}<tool_call|>",
    "deepseek_v31": "So <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{}",
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(BUILT_IN)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_has_its_marks_and_an_answer_has_none(name: str, tokenizer: Tokenizer) -> None:
    marks = call_marks(ChosenParsers(ParserNames(name)), tokenizer)

    def called(text: str) -> bool:
        token_ids = tuple(tokenizer.encode(text, add_special_tokens=False))
        return any(token_ids[at : at + len(mark)] == mark for mark in marks for at in range(len(token_ids)))

    assert called(CALLS[name]) and not called("It is sunny in Zürich [all day]: 20 degrees, {light} wind.")


def test_a_mark_that_is_a_token_is_that_token(tokenizer: Tokenizer) -> None:
    marks = call_marks(ChosenParsers(ParserNames("hermes")), tokenizer)
    assert marks == ((tokenizer.token_ids["<tool_call>"],),)


def test_formats_without_such_texts_say_nothing(tokenizer: Tokenizer) -> None:
    assert call_marks(ChosenParsers(ParserNames("llama4_pythonic")), tokenizer) == ()
    assert call_marks(ChosenParsers(ParserNames()), tokenizer) == call_marks(None, tokenizer) == ()
    assert {name for name, one in TOOL_FORMATS.items() if not one.in_calls} == {"llama4_pythonic"}


def test_the_engine_knows_where_tools_are_offered() -> None:
    translator = RequestTranslator(
        encoder=PromptEncoder(None, None, 0), models=(), now=lambda: 0.0, call_marks=((7,), (8, 9))
    )

    def asked(*tools: Tool) -> Request:
        prepared = PreparedChat(ChatSettings(), (Prompt(packed([1, 2])),), tools=tools)
        return translator.call(prepared, ANYONE).requests[0]

    assert asked(Tool("weather")).call_marks == ((7,), (8, 9)) and asked().call_marks == ()
