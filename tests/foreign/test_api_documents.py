"""Answers, streamed events and errors against OpenAI's and Anthropic's own OpenAPI documents.

What differs from them is named here, with the reason; nothing else may.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from server.conftest import Server
from text_models import write_embedder

from .cases import KEY, MODEL, SCRIPTED_MODEL, USER, batch_lines
from .documents import ABSENT, Judge
from .scripted import THINK, THINK_AND_CALL, WARM, WARM_AND_LARGE

pytestmark = pytest.mark.foreign
CLIENT = "api_documents"
Body = dict[str, Any]

# Fields beyond OpenAI's: vLLM's stop_reason and those of its models, and what models can do here.
OUR_FIELDS = {"stop_reason", "root", "parent", "max_model_len", "capabilities", "lanes", "state"}
# Of responses: fields of Open Responses and of OpenAI's newest client that the document has not yet.
NEWER_FIELDS = {"store", "presence_penalty", "frequency_penalty", "cache_write_tokens"}
# Null where the document says a text or an object, as in the examples beside it.
NULLS = {
    "usage": ABSENT,
    "finish_reason": "stop",  # of a completion's frames, which the document does not describe
    "user": ABSENT,
    "safety_identifier": ABSENT,
    "prompt_cache_key": ABSENT,
    "description": ABSENT,
    "first_id": "",  # of an empty page
    "last_id": "",
}


@cache
def openai() -> Judge:
    return Judge("openai", OUR_FIELDS | NEWER_FIELDS, NULLS)


@cache
def completions() -> Judge:
    return Judge("openai", OUR_FIELDS | {"service_tier"}, {**NULLS, "token_logprobs": ABSENT})


@cache
def embeddings() -> Judge:
    return Judge("openai", {"id", "created"})  # as vLLM's answers have them


@cache
def anthropic() -> Judge:
    return Judge("anthropic", {"details"})


def headers() -> dict[str, str]:
    return {"Authorization": f"Bearer {KEY}"}


def ask(server: Server, path: str, body: Body, status: int = 200) -> Any:
    answer = server.post(path, body, headers=headers())
    assert answer.status_code == status, answer.text
    return answer.json()


def frames(server: Server, path: str, body: Body) -> list[Any]:
    """Return the events of a stream."""
    with httpx.stream(
        "POST", server.url + path, json={**body, "stream": True}, headers=headers(), timeout=60
    ) as result:
        assert result.status_code == 200
        data = [line.removeprefix("data: ") for line in result.iter_lines() if line.startswith("data: ")]
    return [json.loads(one) for one in data if one != "[DONE]"]


CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION = {"name": "weather", "description": "How warm it is.", "parameters": CITY}
TOOL, FLAT_TOOL = {"type": "function", "function": FUNCTION}, {"type": "function", **FUNCTION, "strict": True}
INHABITANTS = {"type": "function", "function": {**FUNCTION, "name": "inhabitants"}}
SCHEMA = {"name": "place", "schema": CITY, "strict": True}

CHATS: dict[str, Body] = {
    "plain": {},
    "cut off": {"max_completion_tokens": 3},
    "stopped": {"stop": ["block"]},
    "several": {"n": 2, "temperature": 1, "seed": 1},
    "log-probabilities": {"logprobs": True, "top_logprobs": 2, "max_completion_tokens": 4},
    "a schema": {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
    "a forced call": {"tools": [TOOL], "tool_choice": "required"},
    "a call of a function": {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "weather"}}},
    "labels": {"store": False, "metadata": {"job": "1"}, "user": "someone", "service_tier": "flex"},
}
RESPONSES: dict[str, Body] = {
    "plain": {},
    "instructions": {"instructions": "You are brief.", "metadata": {"job": "1"}},
    "cut off": {"max_output_tokens": 3},
    "log-probabilities": {
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        "max_output_tokens": 4,
    },
    "a schema": {"text": {"format": {"type": "json_schema", **SCHEMA}}},
    "a forced call": {"tools": [FLAT_TOOL], "tool_choice": "required"},
    "allowed tools": {
        "tools": [FLAT_TOOL],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]},
    },
    "settings": {"user": "someone", "top_p": 0.5, "truncation": "auto", "parallel_tool_calls": False},
    "reasoning": {"reasoning": {"effort": "low"}},
}
COMPLETIONS: dict[str, Body] = {
    "plain": {},
    "several prompts": {"prompt": ["A block", "A lane"]},
    "log-probabilities": {"logprobs": 2},
    "stopped": {"stop": ["holds"], "max_tokens": 30},
}
MESSAGES: dict[str, Body] = {
    "plain": {},
    "a system message": {"system": "You are brief."},
    "cut off": {"max_tokens": 2},
    "stopped": {"stop_sequences": ["block"]},
    "a forced call": {"tools": [{"name": "weather", "input_schema": CITY}], "tool_choice": {"type": "any"}},
    "a schema": {"output_config": {"format": {"type": "json_schema", "schema": CITY}}},
}
SCRIPTED = {"a call": WARM, "two calls": WARM_AND_LARGE, "reasoning": THINK, "reasoning and a call": THINK_AND_CALL}


def cases(bodies: dict[str, Any]) -> Any:
    return pytest.mark.parametrize("body", list(bodies.values()), ids=list(bodies))


@cases(CHATS)
def test_chat(foreign_server: Server, body: Body) -> None:
    asked = {"model": MODEL, "messages": [USER], "temperature": 0, **body}
    openai().check("CreateChatCompletionResponse", ask(foreign_server, "/v1/chat/completions", asked))
    for options in ({}, {"stream_options": {"include_usage": True}}):
        for frame in frames(foreign_server, "/v1/chat/completions", {**asked, **options}):
            openai().check("CreateChatCompletionStreamResponse", frame)


@cases(SCRIPTED)
def test_chat_with_tools_and_reasoning(scripted_server: Server, body: str) -> None:
    asked = {"model": SCRIPTED_MODEL, "messages": [{"role": "user", "content": body}], "tools": [TOOL, INHABITANTS]}
    judge = Judge("openai", OUR_FIELDS | {"reasoning", "reasoning_content"}, NULLS)
    judge.check("CreateChatCompletionResponse", ask(scripted_server, "/v1/chat/completions", asked))
    for frame in frames(scripted_server, "/v1/chat/completions", asked):
        judge.check("CreateChatCompletionStreamResponse", frame)


@cases(COMPLETIONS)
def test_completions(foreign_server: Server, body: Body) -> None:
    asked = {"model": MODEL, "prompt": "A block", "max_tokens": 5, **body}
    completions().check("CreateCompletionResponse", ask(foreign_server, "/v1/completions", asked))
    for options in ({}, {"stream_options": {"include_usage": True}}):
        for frame in frames(foreign_server, "/v1/completions", {**asked, **options}):
            completions().check("CreateCompletionResponse", frame)


@cases(RESPONSES)
def test_responses(foreign_server: Server, body: Body) -> None:
    asked = {"model": MODEL, "input": USER["content"], "temperature": 0, **body}
    openai().check("Response", ask(foreign_server, "/v1/responses", asked))
    for event in frames(foreign_server, "/v1/responses", asked):
        if event["type"].startswith("response.output_text"):
            event["logprobs"] = without_bytes(event["logprobs"])
        openai().check("ResponseStreamEvent", event)


def without_bytes(logprobs: list[Body]) -> list[Body]:
    """Return log-probabilities without bytes, which Open Responses requires, and OpenAI's document has in parts."""
    found = []
    for one in logprobs:
        likeliest = without_bytes(one["top_logprobs"]) if "top_logprobs" in one else None
        kept = {key: value for key, value in one.items() if key not in ("bytes", "top_logprobs")}
        found.append(kept if likeliest is None else {**kept, "top_logprobs": likeliest})
    return found


@cases(SCRIPTED)
def test_responses_with_tools_and_reasoning_are_stored(storing_server: Server, body: str) -> None:
    asked = {"model": SCRIPTED_MODEL, "input": body, "tools": [FLAT_TOOL, {**FLAT_TOOL, "name": "inhabitants"}]}
    answer = ask(storing_server, "/v1/responses", asked)
    openai().check("Response", answer)
    for event in frames(storing_server, "/v1/responses", asked):
        openai().check("ResponseStreamEvent", event)
    stored = storing_server.get(f"/v1/responses/{answer['id']}", headers=headers()).json()
    openai().check("Response", stored)
    items = storing_server.get(f"/v1/responses/{answer['id']}/input_items", headers=headers()).json()
    openai().check("ResponseItemList", items)


def test_models(foreign_server: Server) -> None:
    openai().check("ListModelsResponse", foreign_server.get("/v1/models", headers=headers()).json())
    openai().check("Model", foreign_server.get(f"/v1/models/{MODEL}", headers=headers()).json())


def without_nulls(job: Body) -> Body:
    """Return a job without its nulls, which are in the example beside the schema and not in the schema."""
    return {key: value for key, value in job.items() if value is not None}


def test_files_and_batches(foreign_server: Server) -> None:
    server, lines = foreign_server, batch_lines(2)
    openai().check("ListFilesResponse", server.get("/v1/files", headers=headers()).json())
    sent = {"files": {"file": ("lines.jsonl", lines)}, "data": {"purpose": "batch"}}
    file = httpx.post(f"{server.url}/v1/files", headers=headers(), timeout=60, **sent).json()  # type: ignore[arg-type]
    openai().check("OpenAIFile", file)
    body = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    job = ask(server, "/v1/batches", body)
    openai().check("Batch", without_nulls(job))

    def now() -> Any:
        return server.get(f"/v1/batches/{job['id']}", headers=headers()).json()

    assert server.settled(lambda: now()["status"] == "completed", 60)
    openai().check("Batch", without_nulls(now()))
    listed = server.get("/v1/batches", headers=headers()).json()
    openai().check("ListBatchesResponse", {**listed, "data": [without_nulls(one) for one in listed["data"]]})
    openai().check("ListFilesResponse", server.get("/v1/files", headers=headers()).json())
    output = server.get(f"/v1/files/{now()['output_file_id']}/content", headers=headers())
    for line in output.text.splitlines():
        openai().check("CreateChatCompletionResponse", json.loads(line)["response"]["body"])
    deleted = httpx.delete(f"{server.url}/v1/files/{file['id']}", headers=headers()).json()
    openai().check("DeleteFileResponse", deleted)


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = write_embedder(tmp_path_factory.mktemp("embedder"))
    running = Server("--model", str(folder), "--dtype", "float32").ready()
    yield running
    assert running.stop() == 0, "".join(running.log)


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_embeddings(embedder: Server, encoding: str) -> None:
    name = embedder.get("/v1/models").json()["data"][0]["id"]
    answer = ask(embedder, "/v1/embeddings", {"model": name, "input": ["one", "two"], "encoding_format": encoding})
    for vector in answer["data"]:  # the document knows floats alone, its own client asks for base64
        if encoding == "base64":
            assert isinstance(vector["embedding"], str)
            vector["embedding"] = [0.0]
    embeddings().check("CreateEmbeddingResponse", answer)


WRONG: dict[str, tuple[str, Body, int]] = {
    "an unknown model": ("/v1/chat/completions", {"model": "another", "messages": [USER]}, 404),
    "a wrong type": ("/v1/chat/completions", {"model": MODEL, "messages": "Hi"}, 400),
    "a bound": ("/v1/chat/completions", {"model": MODEL, "messages": [USER], "top_p": 9}, 400),
    "a missing field": ("/v1/completions", {"model": MODEL}, 400),
    "no such input": ("/v1/responses", {"model": MODEL, "input": [{"type": "computer_call_output"}]}, 400),
    "nothing stored": ("/v1/responses", {"model": MODEL, "input": "Hi", "previous_response_id": "resp_1"}, 400),
    "no vectors": ("/v1/embeddings", {"model": MODEL, "input": "Hi"}, 400),
}


@cases(WRONG)
def test_errors(foreign_server: Server, body: tuple[str, Body, int]) -> None:
    path, wrong, status = body
    openai().check("ErrorResponse", ask(foreign_server, path, wrong, status))


# -- Anthropic's -------------------------------------------------------------------------------------------------------


def with_citations(value: Any) -> Any:
    """Return a value whose texts have null citations, as the document requires them.

    Clients that take a list or nothing refuse the null, so the server leaves it out.
    """
    if isinstance(value, list):
        return [with_citations(one) for one in value]
    if not isinstance(value, dict):
        return value
    missing = {"citations": None} if value.get("type") == "text" else {}
    return {**missing, **{key: with_citations(one) for key, one in value.items()}}


@cases(MESSAGES)
def test_messages(foreign_server: Server, body: Body) -> None:
    asked = {"model": MODEL, "messages": [USER], "max_tokens": 50, **body}
    anthropic().check("Message", with_citations(ask(foreign_server, "/v1/messages", asked)))
    for event in frames(foreign_server, "/v1/messages", asked):
        anthropic().check("MessageStreamEvent", with_citations(event))
    counted = ask(foreign_server, "/v1/messages/count_tokens", asked)
    anthropic().check("CountMessageTokensResponse", counted)


@cases(SCRIPTED)
def test_messages_with_tools_and_thinking(scripted_server: Server, body: str) -> None:
    tools = [{"name": name, "input_schema": CITY} for name in ("weather", "inhabitants")]
    asked = {"model": SCRIPTED_MODEL, "messages": [{"role": "user", "content": body}], "tools": tools}
    asked["max_tokens"] = 400
    anthropic().check("Message", with_citations(ask(scripted_server, "/v1/messages", asked)))
    for event in frames(scripted_server, "/v1/messages", asked):
        anthropic().check("MessageStreamEvent", with_citations(event))


@pytest.mark.parametrize(
    ("body", "status"),
    [({"model": "another", "messages": [USER], "max_tokens": 3}, 404), ({"messages": "Hi"}, 400), ({}, 400)],
)
def test_errors_of_messages(foreign_server: Server, body: Body, status: int) -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        anthropic().check("ErrorResponse", ask(foreign_server, path, body, status))
