"""Anthropic's client for Python, over /v1/messages."""

from __future__ import annotations

import json
from typing import Any

import pytest
from server.conftest import Server

from .cases import MODEL, SCRIPTED_MODEL, TOO_LONG, USER, plain_chat
from .clients import ForeignClient
from .scripted import IS_WARM, IS_WARM_AND_LARGE, THINK, THINK_AND_CALL, WARM, WARM_AND_LARGE

pytestmark = pytest.mark.foreign
CLIENT = "anthropic"
EXACT = {"temperature": 0}  # which this client no longer names, and sends as an extra
ASK: dict[str, Any] = {
    "model": MODEL,
    "system": "You are brief.",
    "messages": [USER],
    "max_tokens": 16,
    "extra_body": EXACT,
}
SCRIPTED: dict[str, Any] = {"model": SCRIPTED_MODEL, "max_tokens": 400}
WEATHER, INHABITANTS = ["weather", {"city": "Zürich"}], ["inhabitants", {"city": "Zürich"}]
both = pytest.mark.parametrize("stream", [False, True])


def test_a_message_has_the_servers_text_and_usage(client: ForeignClient, foreign_server: Server) -> None:
    message = client.call("create", **ASK)
    assert message["content"][0]["text"] == plain_chat(foreign_server)
    assert (message["role"], message["stop_reason"]) == ("assistant", "max_tokens")
    assert 0 < message["usage"]["output_tokens"] <= 16
    assert client.call("models") == [MODEL] and client.call("request_id", **ASK)


def test_streams(client: ForeignClient, foreign_server: Server) -> None:
    expected = plain_chat(foreign_server)
    events = client.call("stream", **ASK)
    assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")
    result = client.call("stream_with_helper", **ASK)
    assert result["whole"]["content"][0]["text"] == expected and result["whole"]["stop_reason"] == "max_tokens"
    whole = client.call("create", **ASK)
    assert result["whole"]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
    assert {"text", "content_block_stop", "message_stop"} <= {*result["kinds"]}
    assert client.call("stream_text", **ASK) == client.call("stream_async", **ASK) == expected
    assert client.call("leave_a_stream", events=3, **{**ASK, "max_tokens": 400}) == 3
    assert foreign_server.settled(lambda: foreign_server.metric("inflight_sequences_running") == 0)


def test_many_at_once(client: ForeignClient, foreign_server: Server) -> None:
    answers = client.call("create_async", count=16, **ASK)
    assert {one["content"][0]["text"] for one in answers} == {plain_chat(foreign_server)}


def test_what_is_counted_is_what_is_used(client: ForeignClient) -> None:
    counted = client.call("count", **{name: ASK[name] for name in ("model", "system", "messages")})
    usage = client.call("create", **ASK)["usage"]
    assert counted == usage["input_tokens"] + usage["cache_read_input_tokens"]


def test_an_answer_goes_back_as_it_came(client: ForeignClient, foreign_server: Server) -> None:
    asked = {**ASK, "max_tokens": 400}
    first = client.call("create", **asked)["content"]
    again = client.call("create", **{**ASK, "messages": [USER, {"role": "assistant", "content": first}, USER]})
    system = {"role": "system", "content": "You are brief."}
    plain = [system, USER, {"role": "assistant", "content": first[0]["text"]}, USER]
    assert again["content"][0]["text"] == plain_chat(foreign_server, plain)


def test_settings_reach_the_server(client: ForeignClient, foreign_server: Server) -> None:
    whole = plain_chat(foreign_server)
    word = whole.split()[2]
    stopped = client.call("create", **ASK, stop_sequences=[word])
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", word)
    assert stopped["content"][0]["text"] == whole[: whole.index(word)]
    hints = {
        "system": [{"type": "text", "text": "You are brief.", "cache_control": {"type": "ephemeral"}}],
        "metadata": {"user_id": "someone"},
        "service_tier": "auto",
        "thinking": {"type": "disabled"},
        "extra_body": {**EXACT, "top_k": 1, "top_p": 0.9},
    }
    assert client.call("create", **{**ASK, **hints})["content"][0]["text"] == whole


@both
def test_tools_are_run_until_the_answer(agent: ForeignClient, stream: bool) -> None:
    result = agent.call("run_tools", question=WARM, stream=stream, **SCRIPTED)
    assert (result["called"], result["text"]) == ([WEATHER], IS_WARM)
    result = agent.call("run_tools", question=WARM_AND_LARGE, stream=stream, **SCRIPTED)
    assert (result["called"], result["text"]) == ([WEATHER, INHABITANTS], IS_WARM_AND_LARGE)


@both
def test_the_client_runs_functions_by_itself(agent: ForeignClient, stream: bool) -> None:
    result = agent.call("run_tools_with_runner", question=WARM_AND_LARGE, stream=stream, **SCRIPTED)
    assert ({name for name, _ in result["called"]}, result["text"]) == ({"weather", "inhabitants"}, IS_WARM_AND_LARGE)


def test_a_call_that_must_come_comes(agent: ForeignClient) -> None:
    asked = {**SCRIPTED, "messages": [{"role": "user", "content": WARM_AND_LARGE}]}
    assert agent.call("forced", choice={"type": "any"}, **asked) == [WEATHER, INHABITANTS]
    assert agent.call("forced", choice={"type": "tool", "name": "weather"}, **asked) == [WEATHER]
    assert agent.call("forced", choice={"type": "none"}, **asked) == []


def test_thinking_is_a_block_of_its_own(agent: ForeignClient) -> None:
    asked = {**SCRIPTED, "messages": [{"role": "user", "content": THINK}]}
    thinking = {"type": "enabled", "budget_tokens": 200}
    for message in (
        agent.call("create", **asked, thinking=thinking),
        agent.call("stream_with_helper", **asked, thinking=thinking)["whole"],
    ):
        thought, said = message["content"]
        assert (thought["thinking"], said["text"]) == ("Seven sixes.", "42")
    result = agent.call("run_tools", question=THINK_AND_CALL, stream=True, **SCRIPTED)
    assert (result["called"], result["text"]) == ([WEATHER], IS_WARM)


@pytest.mark.parametrize("seed", range(3))
def test_answers_are_the_callers_classes(client: ForeignClient, seed: int) -> None:
    """At a temperature at which nothing but the schema can make them so."""
    asked = {**ASK, "max_tokens": 400, "extra_body": {"temperature": 1.5, "seed": seed}}
    result = client.call("parse", **asked)
    assert result["parsed"] == json.loads(result["content"])
    assert client.call("stream_parsed", **asked)["parsed"] == result["parsed"]


def test_keys_come_in_either_header(client: ForeignClient, foreign_server: Server) -> None:
    assert client.call("create_with_token", **ASK)["content"][0]["text"] == plain_chat(foreign_server)
    assert "AuthenticationError" in client.fail("create_with_key", key="sk-wrong", **ASK).types


def test_errors_are_the_clients_own(client: ForeignClient) -> None:
    unknown = client.fail("create", **{**ASK, "model": "another"})
    assert "NotFoundError" in unknown.types and unknown.status == 404
    long = client.fail("create", **{**ASK, "messages": [{"role": "user", "content": TOO_LONG}]})
    assert "BadRequestError" in long.types and "too long" in long.message, long.message
    image = {"type": "image", "source": {"type": "url", "url": "https://example.com/cat.png"}}
    seen = client.fail("create", **{**ASK, "messages": [{"role": "user", "content": [image]}]})
    assert "BadRequestError" in seen.types and "image" in seen.message
    tool = {"type": "web_search_20250305", "name": "web_search"}
    assert "BadRequestError" in client.fail("create", **ASK, tools=[tool]).types
    slow = {**ASK, "max_tokens": 900, "extra_body": {"ignore_eos": True}}
    assert "APITimeoutError" in client.fail("create_within", seconds=0.05, **slow).types
