"""Schemas, grammars and tools that cannot be kept: a 400 that names the place in the caller's words, never a 5xx."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Server

HI = [{"role": "user", "content": "Hi"}]
REMOTE = {"type": "object", "properties": {"a": {"$ref": "https://example.com/a.json"}}}
ENDLESS = {"$ref": "#"}
ONE_KEY = [{"type": "object", "properties": {f"k{number}": {"type": "integer"}}} for number in range(20)]
WIDE: dict[str, Any] = {"anyOf": [{"anyOf": [{"anyOf": ONE_KEY}] * 10}] * 5}
ONE_OF = {"oneOf": [{"type": "object"}, {"type": "object"}]}


def chat(schema: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return "/v1/chat/completions", {"messages": HI, "max_tokens": 9, "response_format": form}


def response(schema: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    form = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
    return "/v1/responses", {"input": "Hi", "max_output_tokens": 9, "text": form}


def message(schema: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    form = {"format": {"type": "json_schema", "schema": schema}}
    return "/v1/messages", {"messages": HI, "max_tokens": 9, "output_config": form}


def refusal(server: Server, path: str, body: dict[str, Any]) -> tuple[str | None, str]:
    answer = server.post(path, body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    return error.get("param") or error.get("details", {}).get("param"), error["message"]


@pytest.mark.parametrize(
    ("ask", "place"),
    [
        (chat, "response_format.json_schema.schema"),
        (response, "text.format.schema"),
        (message, "output_config.format.schema"),
    ],
)
def test_a_place_in_a_schema_is_reported_as_the_body_has_it(server: Server, ask: Any, place: str) -> None:
    param, sentence = refusal(server, *ask(REMOTE))
    assert param == place
    assert sentence.startswith(f"{place} refers to") and f"($ref at {place}.properties.a)" in sentence


@pytest.mark.parametrize(
    ("path", "body", "place"),
    [
        (
            "/v1/chat/completions",
            {"messages": HI, "tools": [{"type": "function", "function": {"name": "f", "parameters": REMOTE}}]},
            "tools[0].function.parameters",
        ),
        (
            "/v1/responses",
            {"input": "Hi", "tools": [{"type": "function", "name": "f", "parameters": REMOTE}]},
            "tools[0].parameters",
        ),
        (
            "/v1/messages",
            {"messages": HI, "max_tokens": 9, "tools": [{"name": "f", "input_schema": REMOTE}]},
            "tools[0].input_schema",
        ),
    ],
)
def test_a_place_in_a_tool_is_reported_as_the_body_has_it(
    server: Server, path: str, body: dict[str, Any], place: str
) -> None:
    param, sentence = refusal(server, path, body)
    assert param == place
    assert sentence.startswith(f"{place} refers to") and f"($ref at {place}.properties.a)" in sentence


@pytest.mark.parametrize("ask", [chat, response, message])
def test_what_nothing_can_satisfy_is_reported_with_a_message(server: Server, ask: Any) -> None:
    for schema, words in (
        (ENDLESS, "refers to itself without end"),
        (ONE_OF, "because of oneOf at #"),
        ({"type": "object", "properties": {"a": {"type": "string", "pattern": "(a"}}}, "pattern"),
    ):
        param, sentence = refusal(server, *ask(schema))
        assert words in sentence and param in ("response_format", "text.format", "output_config.format")
        assert "NoExtensionBias" not in sentence and "coerce_one_of" not in sentence


@pytest.mark.parametrize("ask", [chat, response, message])
def test_a_grammar_that_is_too_much_while_it_is_written_is_the_clients(server: Server, ask: Any) -> None:
    _, sentence = refusal(server, *ask(WIDE))
    assert "dead end" in sentence
    path, body = ask(WIDE)
    refused = server.post(path, {**body, "stream": True})
    assert "dead end" in refused.text and "server_error" not in refused.text and "api_error" not in refused.text
    assert server.post(*ask({"type": "integer"})).status_code == 200


def test_settings_that_leave_no_token_are_the_clients(server: Server) -> None:
    asked = {"prompt": "x", "max_tokens": 20, "structured_outputs": {"choice": ["yes", "no"]}}
    for settings in ({"min_tokens": 18}, {"allowed_token_ids": [1, 2]}, {"bad_words": ["yes", "ye", "y", "no", "n"]}):
        _, sentence = refusal(server, "/v1/completions", {**asked, **settings})
        assert "nothing to draw" in sentence


def test_two_forms_are_two_even_where_one_is_empty(server: Server) -> None:
    asked = {"prompt": "x", "max_tokens": 9}
    param, sentence = refusal(server, "/v1/completions", {**asked, "structured_outputs": {"json": {}, "regex": "a"}})
    assert param == "structured_outputs" and "json and regex" in sentence
    answer = server.post("/v1/completions", {**asked, "structured_outputs": {"json": {}}})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(("field", "value"), [("output_schema", {"type": "object"}), ("async", True)])
def test_what_a_tool_cannot_be_is_refused_by_name(server: Server, field: str, value: Any) -> None:
    tool = {"type": "function", "name": "f", field: value}
    param, sentence = refusal(server, "/v1/responses", {"input": "Hi", "tools": [tool]})
    assert param == f"tools[0].{field}" and sentence.startswith(param)


def test_a_spoken_answer_does_not_come_back(server: Server) -> None:
    messages = [*HI, {"role": "assistant", "content": "Hello", "audio": {"id": "audio_1"}}, *HI]
    param, _ = refusal(server, "/v1/chat/completions", {"messages": messages})
    assert param == "messages[1].audio"
