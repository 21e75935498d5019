"""Mistakes are reported in OpenAI's shape, with the field to blame, and harm no other request."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from .conftest import Server

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}

WRONG: list[tuple[str, dict[str, Any], str | None]] = [
    ("/v1/chat/completions", {**HELLO, "temperature": 2e9}, "temperature"),
    ("/v1/chat/completions", {**HELLO, "temperature": "hot"}, "temperature"),
    ("/v1/chat/completions", {**HELLO, "n": 0}, "n"),
    ("/v1/chat/completions", {**HELLO, "n": 500}, "n"),
    ("/v1/chat/completions", {**HELLO, "n": True}, "n"),
    ("/v1/chat/completions", {**HELLO, "top_p": 0}, "top_p"),
    ("/v1/chat/completions", {**HELLO, "max_tokens": -1}, "max_tokens"),
    ("/v1/chat/completions", {**HELLO, "min_tokens": 5}, "min_tokens"),
    ("/v1/chat/completions", {**HELLO, "stop": [""]}, "stop"),
    ("/v1/chat/completions", {**HELLO, "stop": 4}, "stop"),
    ("/v1/chat/completions", {**HELLO, "seed": 1.5}, "seed"),
    ("/v1/chat/completions", {**HELLO, "logit_bias": {"word": 1}}, "logit_bias"),
    ("/v1/chat/completions", {**HELLO, "logit_bias": {"999999": 1}}, "logit_bias"),
    ("/v1/chat/completions", {**HELLO, "stop_token_ids": [999999]}, "stop_token_ids"),
    ("/v1/chat/completions", {**HELLO, "top_logprobs": 3}, "top_logprobs"),
    ("/v1/chat/completions", {**HELLO, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ("/v1/chat/completions", {**HELLO, "tools": [{"type": "function"}]}, "tools[0].function"),
    ("/v1/chat/completions", {**HELLO, "response_format": {"type": "json_schema"}}, "response_format"),
    ("/v1/chat/completions", {**HELLO, "modalities": ["audio"]}, "modalities"),
    ("/v1/chat/completions", {**HELLO, "service_tier": "gold"}, "service_tier"),
    ("/v1/chat/completions", {**HELLO, "slo": {"ttft_ms": 0}}, "slo.ttft_ms"),
    ("/v1/chat/completions", {**HELLO, "slo": {"itl_ms": 1e16}}, "slo.itl_ms"),  # no record could be read with it
    ("/v1/chat/completions", {**HELLO, "slo": {"tpot_ms": 0}}, "slo.tpot_ms"),
    ("/v1/chat/completions", {**HELLO, "output_tokens": 5}, "output_tokens"),
    ("/v1/chat/completions", {**HELLO, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ("/v1/chat/completions", {**HELLO, "chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
    ("/v1/chat/completions", {**HELLO, "half\ud800": 1}, "half\\ud800"),
    ("/v1/chat/completions", {**HELLO, "slo": {"\ud800": 1}}, "slo"),
    ("/v1/chat/completions", {"max_tokens": 2}, "messages"),
    ("/v1/chat/completions", {"messages": []}, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "boss", "content": "x"}]}, "messages[0].role"),
    ("/v1/chat/completions", {"messages": [{"role": "user"}]}, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 9000}]}, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "\ud800"}]}, "messages"),
    ("/v1/completions", {"prompt": ""}, "prompt"),
    ("/v1/completions", {"prompt": []}, "prompt"),
    ("/v1/completions", {"prompt": [[]]}, "prompt"),
    ("/v1/completions", {"prompt": ["a", 1]}, "prompt"),
    ("/v1/completions", {"prompt": [999999]}, "prompt"),
    ("/v1/completions", {"prompt": ["x"] * 300}, "prompt"),
    ("/v1/completions", {"prompt": "x", "suffix": "y"}, "suffix"),
    ("/v1/completions", {"prompt": "x", "best_of": 2, "n": 3}, "best_of"),
    ("/v1/completions", {"prompt": "x", "best_of": 2, "stream": True}, "best_of"),
    ("/v1/completions", {"prompt": "x", "logprobs": 21}, "logprobs"),
    ("/tokenize", {}, "prompt"),
    ("/tokenize", {"prompt": "a", "messages": HELLO["messages"]}, "prompt"),
    ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
]


@pytest.mark.parametrize(("path", "body", "field"), WRONG, ids=lambda value: str(value)[:60])
def test_the_field_to_blame_is_named(server: Server, path: str, body: dict[str, Any], field: str | None) -> None:
    content = json.dumps(body)  # as a client with no manners would: lone surrogates and all
    answer = httpx.post(server.url + path, content=content, headers={"content-type": "application/json"}, timeout=30)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == field
    assert error["type"] == "invalid_request_error" and error["message"].endswith((".", "?"))


@pytest.mark.parametrize(
    "content", ["", "{", "[1]", '"text"', "null", "{" * 5000, '{"prompt": NaN}', '{"a": ' + "9" * 5000 + "}"]
)
def test_bodies_that_are_no_objects(server: Server, content: str) -> None:
    answer = httpx.post(
        server.url + "/v1/completions", content=content, headers={"content-type": "application/json"}, timeout=30
    )
    assert answer.status_code == 400 and answer.json()["error"]["message"]


def test_half_a_character_is_reported_as_what_it_is(server: Server) -> None:
    for body, named in (({"half\ud800": 1}, "name of the field"), ({"slo": {"\ud800": 1}}, "slo contains a lone")):
        content = json.dumps({"prompt": "x", **body})
        answer = httpx.post(
            server.url + "/v1/completions", content=content, headers={"content-type": "application/json"}, timeout=30
        )
        message = answer.json()["error"]["message"]
        assert named in message and "lone surrogate" in message and "JSON object" not in message


def test_template_variables_named_as_arguments_are_variables(server: Server) -> None:
    for path in ("/v1/chat/completions", "/tokenize"):
        body = {"messages": HELLO["messages"], "chat_template_kwargs": {"self": 1, "messages_": 2}}
        assert server.post(path, body).status_code == 200


def test_neutral_values_of_what_is_not_served_pass(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="built-in",
        messages=HELLO["messages"],
        max_tokens=2,
        tools=[],
        tool_choice="none",
        store=False,
        response_format={"type": "text"},
        user="me",
        metadata=None,
        modalities=["text"],
    )
    assert answer.choices


def test_unknown_models_paths_and_methods(server: Server, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="'gpt-99' does not exist") as caught:
        client.chat.completions.create(model="gpt-99", messages=HELLO["messages"])
    assert caught.value.code == "model_not_found"
    assert client.models.retrieve("built-in").id == "built-in"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")
    assert server.get("/nowhere").json()["error"]["code"] == "not_found"
    wrong = server.get("/v1/completions")
    assert wrong.status_code == 405 and wrong.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.wide
def test_priority_without_a_policy_that_reads_it(start: Callable[..., Server], server: Server) -> None:
    assert server.post("/v1/chat/completions", {**HELLO, "priority": 3}).status_code == 200
    plain = start()
    refused = plain.post("/v1/chat/completions", {**HELLO, "priority": 3})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "priority"


def test_bodies_that_are_too_large(start: Callable[..., Server]) -> None:
    server = start("--max-body-mb", "0.01")
    large = {"prompt": "x" * 20_000}
    refused = server.post("/v1/completions", large)
    assert refused.status_code == 413 and "10,485" in refused.json()["error"]["message"]

    def pieces() -> Any:
        yield b'{"prompt": "'
        for _ in range(20):
            yield b"x" * 1000
        yield b'"}'

    unannounced = httpx.post(
        server.url + "/v1/completions", content=pieces(), headers={"content-type": "application/json"}, timeout=30
    )
    assert unannounced.status_code == 413
    assert server.post("/v1/completions", {"prompt": "x", "max_tokens": 1}).status_code == 200


def test_text_and_tokens_of_the_tokenizers_endpoints_are_bounded(server: Server) -> None:
    long = server.post("/tokenize", {"prompt": "x" * ((1 << 20) + 1)})
    assert (
        long.status_code == 400
        and "1,048,577 characters; give text of at most 1,048,576" in long.json()["error"]["message"]
    )
    many = server.post("/detokenize", {"tokens": [1] * ((1 << 18) + 1)})
    assert (
        many.status_code == 400 and "262,145 entries; give a list of at most 262,144" in many.json()["error"]["message"]
    )
