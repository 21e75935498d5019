"""/v1/messages over real HTTP, as Anthropic's clients speak; the unmodified client is among the foreign ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from .conftest import Server
from .scripted import ANSWERS

QUESTION = {"role": "user", "content": "What is a KV block?"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"name": "weather", "description": "The weather of a city.", "input_schema": SCHEMA}]
REMOTE = {"type": "json_schema", "schema": {"$ref": "https://x.y/z"}}


def ask(server: Server, text: str = "", path: str = "", **fields: Any) -> httpx.Response:
    said = {"role": "user", "content": text} if text else QUESTION
    body = {"messages": [said], "max_tokens": 64, **fields}
    return server.post(f"/v1/messages{path}", body, headers={"anthropic-version": "2023-06-01"})


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    frames = [one.split("\n") for one in answer.text.strip().split("\n\n")]
    return [json.loads(data.removeprefix("data: ")) for _, data in frames]


def test_an_answer_is_that_of_chat(server: Server, client: openai.OpenAI) -> None:
    system = {"role": "system", "content": "You are brief."}
    chat = client.chat.completions.create(
        model="built-in",
        messages=[system, QUESTION],  # type: ignore[list-item]
        temperature=0,
        max_tokens=64,
    )
    answer = ask(server, model="built-in", system="You are brief.", temperature=0)
    message, usage = answer.json(), answer.json()["usage"]
    assert message["content"] == [{"type": "text", "text": chat.choices[0].message.content}]
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", "built-in")
    assert message["id"].startswith("msg_") and answer.headers["request-id"] == answer.headers["x-request-id"]
    assert chat.usage is not None and usage["output_tokens"] == chat.usage.completion_tokens
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == chat.usage.prompt_tokens
    streamed = events(ask(server, model="built-in", system="You are brief.", temperature=0, stream=True))
    said = [one["delta"]["text"] for one in streamed if one["type"] == "content_block_delta"]
    assert "".join(said) == message["content"][0]["text"]


def test_what_is_counted_is_what_is_used(scripted: Server) -> None:
    asked: dict[str, Any] = {"system": "Be brief.", "tools": TOOLS, "thinking": {"type": "disabled"}}
    counted = ask(scripted, "count", "/count_tokens", **asked).json()
    usage = ask(scripted, "count", **asked).json()["usage"]
    assert counted == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}
    fewer = ask(scripted, "count", "/count_tokens", **asked, tool_choice={"type": "none"}).json()
    assert fewer["input_tokens"] < counted["input_tokens"]
    long = ask(scripted, "word " * 3000, "/count_tokens").json()
    assert long["input_tokens"] > 3000 > scripted.get("/v1/models").json()["data"][0]["max_model_len"]


def test_a_tool_is_called_and_its_result_comes_back(scripted: Server) -> None:
    message = ask(scripted, "call the tool", tools=TOOLS).json()
    said, use = message["content"]
    assert message["stop_reason"] == "tool_use" and said["text"] == "Let me see."
    assert (use["type"], use["name"], use["input"]) == ("tool_use", "weather", {"city": "Zürich"})
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": [{"type": "text", "text": "count"}]}
    history = [
        {"role": "user", "content": "call the tool"},
        {"role": "assistant", "content": message["content"]},
        {"role": "user", "content": [result]},
    ]
    last = ask(scripted, tools=TOOLS, messages=history).json()
    assert last["content"][0]["text"] == ANSWERS["count"] and last["stop_reason"] == "end_turn"
    streamed = events(ask(scripted, "call the tool", tools=TOOLS, stream=True))
    parts = [one["delta"].get("partial_json", "") for one in streamed if one["type"] == "content_block_delta"]
    assert json.loads("".join(parts)) == {"city": "Zürich"}
    assert streamed[-2]["delta"]["stop_reason"] == "tool_use"


def test_thinking_is_a_block_before_the_text(scripted: Server) -> None:
    message = ask(scripted, "think of it").json()
    thought, said = message["content"]
    assert (thought["type"], thought["thinking"], said["text"]) == ("thinking", "Hm.", "42") and thought["signature"]
    assert 0 < message["usage"]["output_tokens_details"]["thinking_tokens"] < message["usage"]["output_tokens"]
    hidden = ask(scripted, "think of it", thinking={"type": "adaptive", "display": "omitted"}).json()["content"]
    assert [one.get("thinking", one.get("text")) for one in hidden] == ["", "42"]


def test_stop_sequences_and_lengths(scripted: Server) -> None:
    stopped = ask(scripted, "count", stop_sequences=[" four"]).json()
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", " four")
    assert stopped["content"][0]["text"] == "one two three"
    cut = ask(scripted, "count", max_tokens=2).json()
    assert (cut["stop_reason"], cut["usage"]["output_tokens"]) == ("max_tokens", 2)


def test_an_answer_in_a_form(server: Server) -> None:
    form = {"type": "json_schema", "schema": {"enum": ["Bern", "Zug"]}}
    answer = ask(server, "Which city?", output_config={"format": form}, temperature=1.5, seed=1).json()
    assert json.loads(answer["content"][0]["text"]) in ("Bern", "Zug")


def test_an_answer_goes_on_with_the_last_words(server: Server, client: openai.OpenAI) -> None:
    begun = [QUESTION, {"role": "assistant", "content": "A KV block is"}]
    chat = client.chat.completions.create(
        model="built-in",
        messages=begun,  # type: ignore[arg-type]
        temperature=0,
        max_tokens=16,
        extra_body={"continue_final_message": True, "add_generation_prompt": False},
    )
    answer = ask(server, messages=begun, temperature=0, max_tokens=16).json()
    assert answer["content"][0]["text"] == chat.choices[0].message.content


@pytest.mark.parametrize(
    ("fields", "status", "kind", "param"),
    [
        ({"max_tokens": -1}, 400, "invalid_request_error", "max_tokens"),
        ({"model": "another"}, 404, "not_found_error", "model"),
        ({"output_config": {"format": REMOTE}}, 400, "invalid_request_error", "output_config.format"),
        ({"tools": [{**TOOLS[0], "name": "a b"}]}, 400, "invalid_request_error", "tools[0].name"),
    ],
)
def test_errors_have_anthropics_form(
    server: Server, fields: dict[str, Any], status: int, kind: str, param: str
) -> None:
    refused = ask(server, **fields)
    shown = refused.json()
    assert refused.status_code == status and shown["type"] == "error" and shown["error"]["type"] == kind
    assert shown["error"]["details"]["param"].startswith(param), shown
    assert shown["request_id"] == refused.headers["request-id"]


def test_who_asks_for_a_thread_is_answered_in_its_clients_code(server: Server) -> None:
    """Anthropic's tool runner asks for one first, and goes on without at this code."""
    for thread in ({"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}):
        shown = ask(server, thread=thread).json()["error"]
        assert shown["details"] == {"error_code": "thread_unsupported_request", "param": "thread"}
    assert ask(server, thread=None).status_code == 200


def test_other_paths_and_methods_below_it(server: Server) -> None:
    for answer in (server.post("/v1/messages/batches", {}), server.get("/v1/messages")):
        assert answer.json()["type"] == "error" and answer.headers["request-id"]
    assert "request-id" not in server.get("/health").headers


def test_keys_come_in_either_header(start: Callable[..., Server]) -> None:
    server = start("--api-key", "sk-one")
    body = {"messages": [QUESTION], "max_tokens": 1}
    for headers in ({"x-api-key": "sk-one"}, {"Authorization": "Bearer sk-one"}):
        assert server.post("/v1/messages", body, headers=headers).status_code == 200
    for headers in ({}, {"x-api-key": "sk-two"}, {"x-api-key": "sk-one", "Authorization": "Bearer sk-two"}):
        refused = server.post("/v1/messages", body, headers=headers)
        assert refused.status_code == 401 and refused.json()["error"]["type"] == "authentication_error"


def test_a_batch_job_may_name_it(client: openai.OpenAI, server: Server) -> None:
    def line(name: str, **fields: Any) -> str:
        body = {"messages": [QUESTION], "max_tokens": 4, **fields}
        return json.dumps({"custom_id": name, "method": "POST", "url": "/v1/messages", "body": body}) + "\n"

    file = client.files.create(file=("lines.jsonl", (line("good") + line("bad", n=2)).encode()), purpose="batch")
    job = client.batches.create(input_file_id=file.id, endpoint="/v1/messages", completion_window="24h")  # type: ignore[arg-type]
    assert server.settled(lambda: client.batches.retrieve(job.id).status == "completed")
    done = client.batches.retrieve(job.id)
    answer = json.loads(client.files.content(done.output_file_id or "").text)["response"]["body"]
    assert answer["type"] == "message" and answer["usage"]["service_tier"] == "batch"
    refused = json.loads(client.files.content(done.error_file_id or "").text)["response"]["body"]
    assert refused["type"] == "error" and refused["error"]["type"] == "invalid_request_error"
