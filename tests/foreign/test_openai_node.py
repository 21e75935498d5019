"""OpenAI's client for Node."""

from __future__ import annotations

import json
from typing import Any

import pytest
from server.conftest import Server

from .cases import MESSAGES, MODEL, SCRIPTED_MODEL, TEXT, TOO_LONG, batch_lines, plain_chat, plain_completion
from .clients import ForeignClient
from .scripted import IS_WARM, IS_WARM_AND_LARGE, WARM, WARM_AND_LARGE

pytestmark = pytest.mark.foreign
CLIENT = "openai_node"
WEATHER, INHABITANTS = ["weather", {"city": "Zürich"}], ["inhabitants", {"city": "Zürich"}]
ASK: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_completion_tokens": 16}
CONTINUE: dict[str, Any] = {"model": MODEL, "prompt": TEXT, "temperature": 0, "max_tokens": 16}


def test_models(client: ForeignClient) -> None:
    models = client.call("models")
    assert [model["id"] for model in models] == [MODEL]
    assert client.call("model", name=MODEL) == models[0]


def test_a_chat_has_the_servers_text_and_usage(client: ForeignClient, foreign_server: Server) -> None:
    answer = client.call("chat", **ASK)
    assert answer["choices"][0]["message"]["content"] == plain_chat(foreign_server)
    assert 0 < answer["usage"]["completion_tokens"] <= 16


def test_a_streamed_chat_ends_with_its_usage(client: ForeignClient, foreign_server: Server) -> None:
    *said, last = client.call("stream_chat", **ASK, stream_options={"include_usage": True})
    assert "".join(frame["choices"][0]["delta"].get("content") or "" for frame in said) == plain_chat(foreign_server)
    assert last["choices"] == [] and last["usage"] == client.call("chat", **ASK)["usage"]


def test_the_streaming_helper(client: ForeignClient, foreign_server: Server) -> None:
    result = client.call("stream_chat_with_helper", **{**ASK, "stream_options": {"include_usage": True}})
    assert result["heard"] == result["whole"]["choices"][0]["message"]["content"] == plain_chat(foreign_server)
    assert result["usage"]["completion_tokens"] > 0


def test_completions_whole_and_streamed(client: ForeignClient, foreign_server: Server) -> None:
    expected = plain_completion(foreign_server)
    assert client.call("complete", **CONTINUE)["choices"][0]["text"] == expected
    frames = client.call("stream_completion", **CONTINUE)
    assert "".join(frame["choices"][0]["text"] for frame in frames) == expected


def test_samples_stops_and_logprobs(client: ForeignClient, foreign_server: Server) -> None:
    asked = {**ASK, "temperature": 2, "n": 3, "seed": 7}
    texts = [[choice["message"]["content"] for choice in client.call("chat", **asked)["choices"]] for _ in range(2)]
    assert texts[0] == texts[1] and len(set(texts[0])) > 1
    whole = plain_chat(foreign_server)
    word = whole.split()[2]
    assert client.call("chat", **ASK, stop=word)["choices"][0]["message"]["content"] == whole[: whole.index(word)]
    content = client.call("chat", **ASK, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert "".join(one["token"] for one in content) == whole and len(content[0]["top_logprobs"]) == 2
    answers = client.call("chat_many", count=16, **ASK)
    assert {one["choices"][0]["message"]["content"] for one in answers} == {whole}


def test_responses_whole_and_streamed(client: ForeignClient, foreign_server: Server) -> None:
    asked = {"model": MODEL, "input": MESSAGES, "temperature": 0, "max_output_tokens": 16}
    whole = client.call("respond", **asked)
    assert whole["output_text"] == plain_chat(foreign_server) and whole["status"] == "incomplete"
    events = client.call("stream_response", **asked)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    said = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert said == whole["output_text"] and events[-1]["type"] == "response.incomplete"


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
def test_tools_are_run_until_the_answer(agent: ForeignClient, streams: bool) -> None:
    """By the client itself over chat, by the test over Responses."""
    asked = {"model": SCRIPTED_MODEL, "streams": streams}
    result = agent.call("run_tools", question=WARM, **asked)
    assert result == {"called": [WEATHER], "text": IS_WARM, "messages": 4}
    for flow in ("run_tools", "run_response_tools"):
        result = agent.call(flow, question=WARM_AND_LARGE, **asked)
        assert (result["called"], result["text"]) == ([WEATHER, INHABITANTS], IS_WARM_AND_LARGE)


@pytest.mark.parametrize("seed", range(2))
def test_answers_have_the_callers_form(client: ForeignClient, seed: int) -> None:
    """At a temperature at which nothing but the schema can make them so."""
    made = client.call("parse", model=MODEL, messages=MESSAGES, temperature=1.5, seed=seed)
    assert made["chat"]["name"] in ("Bern", "Zug") and all(one == made["chat"] for one in made.values())


def test_errors_are_the_clients_own(client: ForeignClient) -> None:
    unknown = client.fail("chat", **{**ASK, "model": "another"})
    assert "NotFoundError" in unknown.types and unknown.code == "model_not_found"
    long = client.fail("chat", **{**ASK, "messages": [{"role": "user", "content": TOO_LONG}]})
    assert "BadRequestError" in long.types and long.code == "context_length_exceeded"
    assert "AuthenticationError" in client.fail("chat_with_key", key="sk-wrong", **ASK).types


def test_time_limits_and_leaving(client: ForeignClient, foreign_server: Server) -> None:
    long = {**ASK, "max_completion_tokens": 800, "ignore_eos": True}
    assert "APIConnectionTimeoutError" in client.fail("chat_within", milliseconds=200, **long, n=64).types
    assert "APIUserAbortError" in client.fail("abort_a_chat", milliseconds=200, **long, n=64).types
    assert client.call("leave_a_stream", frames=3, **long) == 3
    assert foreign_server.settled(lambda: foreign_server.metric("inflight_sequences_running") == 0)


def test_a_batch_job(client: ForeignClient, foreign_server: Server) -> None:
    result = client.call("batch", lines=batch_lines(8), endpoint="/v1/chat/completions")
    assert (
        result["job"]["status"] == "completed"
        and result["job"]["id"] in result["listed"]
        and result["deleted"]["deleted"]
    )
    lines = [json.loads(line) for line in result["output"].splitlines()]
    texts = {line["response"]["body"]["choices"][0]["message"]["content"] for line in lines}
    assert len(lines) == 8 and texts == {plain_chat(foreign_server)}
