"""Tools, reasoning and forms of answers over HTTP, through an unmodified client: a scripted model writes what a Qwen
would, and the built-in one is bound to a schema."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from .conftest import Server
from .scripted import ANSWERS, write_plain_marks, write_toolless

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


@pytest.fixture
def client(scripted: Server) -> openai.OpenAI:
    return scripted.client()


def ask(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "qwenlike", "messages": [{"role": "user", "content": text}], **more}


def test_a_tool_is_called_and_its_result_comes_back(client: openai.OpenAI) -> None:
    asked = ask("call the tool", tools=TOOLS)
    first = client.chat.completions.create(**asked).choices[0]
    assert first.finish_reason == "tool_calls" and first.message.content == "Let me see."
    (call,) = first.message.tool_calls or ()
    assert call.type == "function" and call.function.name == "weather"
    assert json.loads(call.function.arguments) == {"city": "Zürich"}
    history = [
        *asked["messages"],
        first.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "count"},
    ]
    last = client.chat.completions.create(model="qwenlike", messages=history, tools=TOOLS).choices[0]
    assert (last.finish_reason, last.message.content) == ("stop", ANSWERS["count"])


def test_streams_of_calls_are_put_together_by_the_client(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(**ask("call the tool", tools=TOOLS)) as stream:
        pieces = [event for event in stream if event.type == "tool_calls.function.arguments.delta"]
        choice = stream.get_final_completion().choices[0]
    assert pieces and choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls or ()
    assert json.loads(call.function.arguments) == {"city": "Zürich"}


def test_without_tools_a_call_is_text(client: openai.OpenAI) -> None:
    choice = client.chat.completions.create(**ask("call the tool")).choices[0]
    assert choice.finish_reason == "stop" and "<tool_call>" in (choice.message.content or "")


def test_reasoning_stands_beside_the_answer(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(**ask("think of it"))
    message = whole.choices[0].message.model_dump()
    assert (message["content"], message["reasoning_content"], message["reasoning"]) == ("42", "Hm.", "Hm.")
    details = whole.usage.completion_tokens_details if whole.usage is not None else None
    assert details is not None and whole.usage is not None
    assert 0 < (details.reasoning_tokens or 0) < whole.usage.completion_tokens
    parts = [
        part.choices[0].delta.model_dump() for part in client.chat.completions.create(**ask("think of it"), stream=True)
    ]
    assert "".join(part.get("reasoning_content") or "" for part in parts) == "Hm."
    assert "".join(part["content"] or "" for part in parts) == "42"
    hidden = client.chat.completions.create(**ask("think of it"), extra_body={"include_reasoning": False})
    assert "reasoning_content" not in hidden.choices[0].message.model_dump()


@pytest.mark.parametrize(("stop", "content"), [("Hm", "42"), ("\n\n", "42"), ("2", "4"), ("<", "42")])
def test_stop_strings_end_the_answer_and_not_the_reasoning(scripted: Server, stop: str, content: str) -> None:
    client, asked = scripted.client(), ask("think of it", stop=[stop])
    choice = client.chat.completions.create(**asked).choices[0]
    assert choice.message.model_dump().items() >= {"content": content, "reasoning_content": "Hm."}.items()
    reason = choice.model_dump()["stop_reason"]
    assert reason == (stop if content == "4" else None)
    parts = [part.choices[0] for part in client.chat.completions.create(**asked, stream=True)]
    assert "".join(part.delta.content or "" for part in parts) == content
    assert parts[-1].model_dump()["stop_reason"] == reason
    message = scripted.post("/v1/messages", {**ask("think of it"), "max_tokens": 50, "stop_sequences": [stop]}).json()
    assert [block["text"] for block in message["content"] if block["type"] == "text"] == [content]
    assert message["stop_sequence"] == reason
    raw = scripted.post("/v1/completions", {"prompt": "think", "stop": stop, "max_tokens": 50}).json()
    assert stop not in raw["choices"][0]["text"], "where no reasoning is parsed, all is the answer"


def test_the_model_says_what_it_can_do(
    scripted: Server, server: Server, start: Callable[..., Server], tmp_path: Path
) -> None:
    def capabilities_of(of: Server) -> Any:
        return of.get("/v1/models").json()["data"][0]["capabilities"]

    calling = {"chat": True, "tools": True, "tool_format": "hermes", "reasoning": True}
    assert capabilities_of(scripted).items() >= calling.items()
    generates = {"chat": True, "completions": True, "reasoning": False, "structured_output": True}
    generates |= {"embeddings": False, "scores": False, "classes": False}
    assert capabilities_of(server) == {**generates, "tools": True, "tool_format": "hermes"}
    plain = start(str(write_toolless(tmp_path / "plain")), "--served-model-name", "plain", "--tool-parser", "none")
    assert capabilities_of(plain) == {**generates, "tools": False, "tool_format": None}
    refused = plain.post("/v1/chat/completions", ask("Hi", tools=TOOLS) | {"model": "plain"})
    assert refused.status_code == 400 and "--tool-parser none" in refused.json()["error"]["message"]


def test_a_model_whose_template_knows_no_tools_calls_them(start: Callable[..., Server], tmp_path: Path) -> None:
    server = start(str(write_toolless(tmp_path / "plain")), "--served-model-name", "qwenlike")
    assert server.get("/v1/models").json()["data"][0]["capabilities"]["tool_format"] == "generic"
    client = server.client()
    asked = ask("Hi", tools=TOOLS, temperature=1.5, seed=1, max_tokens=300)
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        with client.chat.completions.stream(**asked, tool_choice=choice) as stream:
            streamed = stream.get_final_completion().choices[0]
        whole = client.chat.completions.create(**asked, tool_choice=choice).choices[0]
        for one in (streamed, whole):
            (call,) = one.message.tool_calls or ()
            assert one.finish_reason == "tool_calls" and call.function.name == "weather" and not one.message.content
            assert json.loads(call.function.arguments).keys() == {"city"}
    free = client.chat.completions.create(**asked).choices[0].message
    assert bool(free.content) != bool(free.tool_calls)
    history = [
        *asked["messages"],
        {"role": "assistant", "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": "sun"},
    ]
    read = server.post("/tokenize", {"messages": history, "tools": TOOLS, "return_token_strs": True})
    prompt = server.post("/detokenize", {"tokens": read.json()["tokens"]}).json()["prompt"]
    assert prompt.startswith("<|system|>\nYou can call these functions:\n") and "<|tool|>" not in prompt
    assert prompt.endswith(f'"arguments": {call.function.arguments}}}:\nsun<|end|>\n<|assistant|>')
    none = client.chat.completions.create(**asked | {"messages": history}, tool_choice="none").choices[0]
    assert not none.message.tool_calls


def test_calls_are_forced_where_the_marks_of_calls_are_text_too(start: Callable[..., Server], tmp_path: Path) -> None:
    """The built-in model, which would not call by itself."""
    server = start(str(write_plain_marks(tmp_path / "plain")), "--served-model-name", "qwenlike")
    client, function = server.client(), TOOLS[0]["function"]
    schema = {**function["parameters"], "properties": {"city": {"enum": ["Bern", "<tool_call>"]}}}
    tools: Any = [{"type": "function", "function": {**function, "parameters": schema, "strict": True}}]
    named = {"type": "function", "function": {"name": "weather"}}
    for choice in ("required", named):
        asked = ask("Hi", tools=tools, tool_choice=choice, parallel_tool_calls=False, temperature=1.5, seed=3)
        with client.chat.completions.stream(**asked) as stream:
            streamed = stream.get_final_completion().choices[0].message.tool_calls or ()
        for (call,) in (client.chat.completions.create(**asked).choices[0].message.tool_calls or (), streamed):
            assert call.function.name == "weather"
            assert json.loads(call.function.arguments)["city"] in schema["properties"]["city"]["enum"]
    free = server.post("/v1/chat/completions", ask("Hi", tools=tools, temperature=1.5, max_tokens=8))
    assert free.status_code == 200
    choice = server.post("/v1/completions", {"prompt": "Hi", "guided_choice": ["<tool_call>"], "max_tokens": 20})
    assert choice.json()["choices"][0]["text"] == "<tool_call>"


class City(BaseModel):
    name: str
    inhabitants: int


def test_answers_are_bound_to_a_schema(server: Server) -> None:
    client = server.client()
    for stream in (False, True):
        asked: Any = {
            "model": "built-in",
            "messages": [{"role": "user", "content": "Which city?"}],
            "temperature": 1.5,
            "seed": 1,
            "max_tokens": 400,
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "name": "answer",
                    "schema": {
                        "type": "object",
                        "properties": {"name": {"enum": ["Bern", "Zug"]}, "inhabitants": {"enum": [1, 22]}},
                        "required": ["name", "inhabitants"],
                        "additionalProperties": False,
                    },
                },
            },
        }
        if stream:
            parts = client.chat.completions.create(**asked, stream=True)
            text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
        else:
            text = client.chat.completions.create(**asked).choices[0].message.content or ""
        assert City.model_validate_json(text).name in ("Bern", "Zug")


def test_a_choice_is_kept_by_completions(server: Server) -> None:
    answer = server.post(
        "/v1/completions", {"prompt": "Is it?", "max_tokens": 20, "structured_outputs": {"choice": ["yes", "no"]}}
    )
    assert answer.json()["choices"][0]["text"] in ("yes", "no")


def test_a_grammar_that_is_none_is_reported_by_its_field(server: Server) -> None:
    refused = server.post("/v1/completions", {"prompt": "x", "guided_regex": "("})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "guided_regex"


def test_an_unknown_parser_ends_the_start_in_a_sentence(start: Callable[..., Server]) -> None:
    server = start("--tool-parser", "sphinx", ready=False)
    assert server.process.wait(60) == 2
    sentence = "--tool-parser is 'sphinx'; known are openai, gemma4"
    assert server.settled(lambda: any(sentence in line for line in server.log))
