"""The built-in model's folder: plain chats as they always were, tools in a form that our own parser finds
by itself, training on the very tokens that the template writes, and answers as the quick start shows them."""

from __future__ import annotations

import importlib
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from inflight import LLM, SamplingParams
from inflight.build import BUILT_IN
from inflight.frontend.parsers.answer_parser import ToolCallDelta
from inflight.frontend.parsers.parser_choice import ParserNames, Tool
from inflight.frontend.parsers.registry import choose
from inflight.text import ChatTemplate, Conversation, Tokenizer

TRAINING = Path(__file__).parents[1] / "builtin"
TEMPLATE = ChatTemplate.load(BUILT_IN)
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"anyOf": []}}},
    },
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Lyon"}}\n</tool_call>'


def rendered(*messages: dict[str, Any], **more: Any) -> str:
    return TEMPLATE.render(Conversation(messages, **more))


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def calling(*arguments: object, content: str | None = None) -> dict[str, Any]:
    calls = [{"type": "function", "function": {"name": "get_weather", "arguments": each}} for each in arguments]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def test_a_plain_chat_is_rendered_without_a_word_of_tools() -> None:
    parts = [{"type": "text", "text": "What "}, {"type": "text", "text": "is it?"}]
    said = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    answer = {"role": "assistant", "content": ""}
    expected = "<|system|>\nBe brief.<|end|>\n<|user|>\nWhat is it?<|end|>\n<|assistant|>\n<|end|>\n"
    assert rendered(*said, answer, add_generation_prompt=False) == expected
    assert rendered(*said, answer, tools=[]) == expected + "<|assistant|>\n"


def test_tools_are_listed_as_the_calls_that_they_take() -> None:
    bare = {"type": "function", "function": {"name": "stop"}}
    assert rendered({"role": "system", "content": "Be brief."}, user("Hi"), tools=[WEATHER, bare]) == (
        '<|system|>\nTools:\n{"name": "get_weather", "arguments": {"city": "string", "days": "any"}}\n'
        '{"name": "stop", "arguments": {}}<|end|>\n'
        "<|system|>\nBe brief.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\n"
    )


def test_calls_and_results_are_rendered() -> None:
    result = {"role": "tool", "tool_call_id": "1", "content": "sunny"}
    assert rendered(calling({"city": "Lyon"}), result) == f"<|assistant|>\n{CALL}<|end|>\n<|tool|>\nsunny<|end|>\n" + (
        "<|assistant|>\n"
    )
    both = calling('{"city": "Lyon"}', {"city": "Lyon"}, content="I ask.")
    assert rendered(both, add_generation_prompt=False) == f"<|assistant|>\nI ask.\n{CALL}\n{CALL}<|end|>\n"


def test_our_parser_reads_what_the_template_writes() -> None:
    chosen = choose(TEMPLATE.written, "llama", ParserNames())
    assert chosen.names == ParserNames("hermes", None)
    parser = chosen.parser([Tool("get_weather")], in_reasoning=False)
    result = [delta for delta in [*parser.push(CALL), *parser.finish()] if isinstance(delta, ToolCallDelta)]
    assert [delta.name for delta in result if delta.name] == ["get_weather"]
    assert json.loads("".join(delta.arguments for delta in result)) == {"city": "Lyon"}
    assert len(Tokenizer.load(BUILT_IN).encode("<tool_call></tool_call>", add_special_tokens=False)) == 2


def test_a_value_has_the_same_tokens_in_a_sentence_and_in_json() -> None:
    """Which is what lets so small a model copy names and numbers that it never saw."""
    tokenizer = Tokenizer.load(BUILT_IN)
    for value in ("Lyon", "Zembuto", "4711", "3.75"):
        alone = tokenizer.encode(value)
        for text in (f"I asked for {value} today", f'{{"value": "{value}"}}', f'{{"value": {value}}}'):
            tokens = tokenizer.encode(text)
            assert any(tokens[at : at + len(alone)] == alone for at in range(len(tokens))), text


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The modules of builtin/, which find one another by their bare names."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(TRAINING))
    yield
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and Path(str(sys.modules[name].__file__)).parent == TRAINING:
            del sys.modules[name]


@pytest.mark.usefixtures("training")
def test_training_rows_are_what_the_template_writes() -> None:
    """Every kind of conversation, token for token: what is trained is what will be asked."""
    dialogues = importlib.import_module("dialogues")
    encoder = importlib.import_module("rows").Encoder(AutoTokenizer.from_pretrained(BUILT_IN))
    values = importlib.import_module("values").Values(random.Random(1))
    tokenizer = Tokenizer.load(BUILT_IN)
    kinds = [dialogues.called, dialogues.told, dialogues.refused, dialogues.fact_in_json]
    kinds += [lambda values: dialogues.after_a_use([("What is a lane?", "A queue.")], values)]
    for make in kinds * 8:
        messages = make(values)
        row = encoder.chat(messages)
        written = TEMPLATE.render(as_asked(messages))
        assert tokenizer.encode(written, add_special_tokens=False) == [*row.tokens, *encoder.newline], written
        assert row.weights[-1] == 1.0 and len(row.weights) == len(row.tokens)


def as_asked(messages: list[Any]) -> Conversation:
    """The messages of a training row, as a client would send them."""
    asked: list[dict[str, Any]] = []
    tools: list[dict[str, Any]] = []
    for message in messages:
        if message.text.startswith("Tools:"):
            for listed in map(json.loads, message.text.splitlines()[1:]):
                properties = {name: {"type": kind} for name, kind in listed["arguments"].items()}
                tools.append({"function": {"name": listed["name"], "parameters": {"properties": properties}}})
        elif message.text.startswith("<tool_call>"):
            calls = [json.loads(part.partition("\n<")[0]) for part in message.text.split("<tool_call>\n")[1:]]
            asked.append({"role": "assistant", "tool_calls": [{"function": call} for call in calls]})
        else:
            asked.append({"role": message.role, "content": message.text})
    return Conversation(asked, tools=tools, add_generation_prompt=False)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(threads=1) as llm:
        yield llm


def answer(llm: LLM, *messages: dict[str, Any], tools: list[dict[str, Any]] | None = None) -> str:
    prompt = TEMPLATE.render(Conversation(messages, tools=tools))
    return llm.generate(prompt, SamplingParams(max_tokens=100, skip_special_tokens=False))[0].outputs[0].text


def test_it_calls_a_tool_and_reports_the_result(llm: LLM) -> None:
    asked = user("What is the weather in Lyon?")
    called = answer(llm, asked, tools=[WEATHER])
    assert called.startswith("<tool_call>") and '"city": "Lyon"' in called
    result = {"role": "tool", "content": "24 degrees"}
    outcome = answer(llm, asked, calling({"city": "Lyon"}), result, tools=[WEATHER])
    assert "Lyon" in outcome and "24 degrees" in outcome


def test_a_question_about_batching_is_answered_in_words_beside_tools(llm: LLM) -> None:
    question = user("What is a KV cache?")
    beside, alone = (answer(llm, question, tools=tools).partition(". ")[0] for tools in ([WEATHER], None))
    assert beside == alone != "" and "<tool_call>" not in beside


def test_facts_come_as_json_unforced(llm: LLM) -> None:
    text = answer(llm, user("Anna is 31 and lives in Lyon. Answer in JSON with the keys name, age and city."))
    assert json.loads(text.removesuffix("<|end|>")) == {"name": "Anna", "age": 31, "city": "Lyon"}
