"""OpenAI's client for Python."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from server.conftest import Server

from .cases import (
    MESSAGES,
    MODEL,
    QUESTION,
    SCRIPTED_MODEL,
    TEXT,
    TOO_LONG,
    USER,
    batch_lines,
    plain_chat,
    plain_completion,
)
from .clients import ForeignClient
from .scripted import IS_WARM, IS_WARM_AND_LARGE, THINK, THINK_AND_CALL, WARM, WARM_AND_LARGE

pytestmark = pytest.mark.foreign
CLIENT = "openai_python"
ASK: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_completion_tokens": 16}
CONTINUE: dict[str, Any] = {"model": MODEL, "prompt": TEXT, "temperature": 0, "max_tokens": 16}
WEATHER, INHABITANTS = ["weather", {"city": "Zürich"}], ["inhabitants", {"city": "Zürich"}]


def test_models(client: ForeignClient) -> None:
    models = client.call("models")
    assert [model["id"] for model in models] == [MODEL] and models[0]["object"] == "model"
    assert client.call("model", name=MODEL) == models[0]
    assert "NotFoundError" in client.fail("model", name="another").types


def test_a_chat_has_the_servers_text_and_usage(client: ForeignClient, foreign_server: Server) -> None:
    answer = client.call("chat", **ASK)
    choice, usage = answer["choices"][0], answer["usage"]
    assert choice["message"]["content"] == plain_chat(foreign_server)
    assert choice["message"]["role"] == "assistant" and choice["finish_reason"] in ("stop", "length")
    assert usage["completion_tokens"] <= 16 and usage["total_tokens"] == sum(
        usage[name] for name in ("prompt_tokens", "completion_tokens")
    )


def test_a_streamed_chat_ends_with_its_usage(client: ForeignClient, foreign_server: Server) -> None:
    frames = client.call("stream_chat", **ASK, stream_options={"include_usage": True})
    *said, last = frames
    assert "".join(frame["choices"][0]["delta"].get("content") or "" for frame in said) == plain_chat(foreign_server)
    assert said[0]["choices"][0]["delta"]["role"] == "assistant" and said[-1]["choices"][0]["finish_reason"]
    assert last["choices"] == [] and last["usage"] == client.call("chat", **ASK)["usage"]


def test_the_streaming_helper(client: ForeignClient, foreign_server: Server) -> None:
    """To its own end, because the helper raises where the length ends an answer."""
    result = client.call("stream_chat_with_helper", **{**ASK, "max_completion_tokens": 400})
    choice = result["whole"]["choices"][0]
    assert choice["message"]["content"] == plain_chat(foreign_server, max_tokens=400)
    assert choice["finish_reason"] == "stop"
    assert "content.delta" in result["kinds"] and result["kinds"].count("content.done") == 1


def test_completions_whole_and_streamed(client: ForeignClient, foreign_server: Server) -> None:
    expected = plain_completion(foreign_server)
    assert client.call("complete", **CONTINUE)["choices"][0]["text"] == expected
    frames = client.call("stream_completion", **CONTINUE)
    assert "".join(frame["choices"][0]["text"] for frame in frames) == expected


def test_several_samples_with_a_seed(client: ForeignClient) -> None:
    asked = {**ASK, "temperature": 2, "top_p": 0.99, "n": 3, "seed": 7}
    texts = [[choice["message"]["content"] for choice in client.call("chat", **asked)["choices"]] for _ in range(2)]
    assert texts[0] == texts[1] and len(set(texts[0])) > 1
    frames = client.call("stream_chat", **asked)
    streamed = ["", "", ""]
    for frame in frames:
        streamed[frame["choices"][0]["index"]] += frame["choices"][0]["delta"].get("content") or ""
    assert streamed == texts[0]


@pytest.mark.parametrize("listed", [False, True])
def test_a_stop_string_ends_the_answer(client: ForeignClient, foreign_server: Server, listed: bool) -> None:
    whole = plain_chat(foreign_server)
    word = whole.split()[2]
    choice = client.call("chat", **ASK, stop=[word, "zebra"] if listed else word)["choices"][0]
    assert choice["message"]["content"] == whole[: whole.index(word)] and choice["finish_reason"] == "stop"


def test_logprobs_of_chat_and_completion(client: ForeignClient, foreign_server: Server) -> None:
    content = client.call("chat", **ASK, logprobs=True, top_logprobs=3)["choices"][0]["logprobs"]["content"]
    assert "".join(bytes(one["bytes"]).decode() for one in content) == plain_chat(foreign_server)
    for one in content:
        assert len(one["top_logprobs"]) == 3 and one["logprob"] == one["top_logprobs"][0]["logprob"] <= 0
    scored = client.call("complete", **CONTINUE, logprobs=2)["choices"][0]["logprobs"]
    assert "".join(scored["tokens"]) == plain_completion(foreign_server)
    assert all(value <= 0 for value in scored["token_logprobs"]) and len(scored["top_logprobs"]) == 16


def test_hints_that_cost_nothing(client: ForeignClient, foreign_server: Server) -> None:
    """Fields that accounts at OpenAI use beside the text: labels, caching hints, a tier."""
    hints = {
        "user": "someone",
        "metadata": {"job": "1"},
        "store": False,
        "prompt_cache_key": "shared",
        "safety_identifier": "someone",
        "service_tier": "auto",
        "verbosity": "medium",
        "reasoning_effort": "low",
        "parallel_tool_calls": False,
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "frequency_penalty": 0,
        "presence_penalty": 0,
        "logit_bias": {},
    }
    assert client.call("chat", **ASK, **hints)["choices"][0]["message"]["content"] == plain_chat(foreign_server)
    frames = client.call("stream_chat", **ASK, stream_options={"include_usage": True, "include_obfuscation": False})
    assert frames[-1]["usage"]["completion_tokens"] > 0


def test_parts_of_text_and_a_history_of_its_own_answers(client: ForeignClient, foreign_server: Server) -> None:
    """The message of an answer goes back as it came, with every field that the client's classes give it."""
    asked = {**ASK, "max_completion_tokens": 400}
    for whole in (client.call("chat", **asked), client.call("stream_chat_with_helper", **asked)["whole"]):
        first = whole["choices"][0]["message"]
        history = [*MESSAGES, first, {"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
        plain = [*MESSAGES, {"role": "assistant", "content": first["content"]}, USER]
        again = client.call("chat", **{**ASK, "messages": history})
        assert again["choices"][0]["message"]["content"] == plain_chat(foreign_server, plain)


def test_responses_whole_streamed_and_gone_on_with(client: ForeignClient, foreign_server: Server) -> None:
    asked = {"model": MODEL, "input": QUESTION, "temperature": 0, "max_output_tokens": 400}
    text = plain_chat(foreign_server, [USER], max_tokens=400)
    whole = client.call("respond", **asked)
    assert whole["text"] == text and whole["whole"]["status"] == "completed"
    events = client.call("stream_response", **asked)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert (events[0]["type"], events[-1]["type"]) == ("response.created", "response.completed")
    helped = client.call("stream_response_with_helper", **asked)
    assert helped["text"] == text and "response.output_text.done" in helped["kinds"]
    result = client.call("go_on_with_its_items", question=TEXT, **asked)
    history = [USER, {"role": "assistant", "content": text}, {"role": "user", "content": TEXT}]
    assert result == {"first": text, "second": plain_chat(foreign_server, history, max_tokens=400)}
    refused = client.fail("respond", **asked, previous_response_id="resp_1")
    assert "BadRequestError" in refused.types and "stored by a server with --store-responses only" in refused.message


@pytest.mark.parametrize("flow", ["run_tools", "run_parsed_tools", "run_streamed_tools"])
def test_tools_are_run_until_the_answer(agent: ForeignClient, flow: str) -> None:
    result = agent.call(flow, question=WARM, model=SCRIPTED_MODEL)
    assert (result["called"], result["text"], result["messages"]) == ([WEATHER], IS_WARM, 4)
    if flow == "run_streamed_tools":
        assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= {*result["kinds"]}


def test_two_calls_at_once(agent: ForeignClient) -> None:
    result = agent.call("run_tools", question=WARM_AND_LARGE, model=SCRIPTED_MODEL)
    assert (result["called"], result["text"]) == ([WEATHER, INHABITANTS], IS_WARM_AND_LARGE)


@pytest.mark.parametrize("stream", [False, True])
def test_tools_of_responses(agent: ForeignClient, stream: bool) -> None:
    result = agent.call("run_response_tools", question=WARM_AND_LARGE, stream=stream, model=SCRIPTED_MODEL)
    assert (result["called"], result["text"]) == ([WEATHER, INHABITANTS], IS_WARM_AND_LARGE)
    assert not stream or "response.function_call_arguments.done" in result["kinds"]


def test_a_call_that_must_come_comes(agent: ForeignClient) -> None:
    """The model's text is bound to the tools; the script writes what is allowed anyway."""
    asked = {"model": SCRIPTED_MODEL, "messages": [{"role": "user", "content": WARM_AND_LARGE}]}
    assert agent.call("forced", choice="required", **asked) == [WEATHER, INHABITANTS]
    assert agent.call("forced", choice="none", **asked) == []
    assert agent.call("forced", choice={"type": "function", "function": {"name": "weather"}}, **asked) == [WEATHER]


def test_reasoning_beside_the_answer(agent: ForeignClient) -> None:
    asked: dict[str, Any] = {"model": SCRIPTED_MODEL, "messages": [{"role": "user", "content": THINK}]}
    message = agent.call("chat", **asked)["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("42", "Seven sixes.")
    deltas = [frame["choices"][0]["delta"] for frame in agent.call("stream_chat", **asked)]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "Seven sixes."
    assert "".join(delta.get("content") or "" for delta in deltas) == "42"
    both = agent.call("run_tools", question=THINK_AND_CALL, model=SCRIPTED_MODEL, reasoning_effort="high")
    assert both["called"] == [WEATHER] and both["text"] == IS_WARM
    answer = agent.call("respond", model=SCRIPTED_MODEL, input=THINK)
    assert answer["text"] == "42" and answer["whole"]["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    thought, said = answer["whole"]["output"]
    assert (thought["type"], said["type"]) == ("reasoning", "message")
    assert thought["content"] == [{"type": "reasoning_text", "text": "Seven sixes."}]
    events = agent.call("stream_response_with_helper", model=SCRIPTED_MODEL, input=THINK)
    assert events["text"] == "42" and "response.reasoning_text.done" in events["kinds"]


@pytest.mark.parametrize("seed", range(3))
def test_answers_are_the_callers_classes(client: ForeignClient, seed: int) -> None:
    """At a temperature at which nothing but the schema can make them so."""
    asked: dict[str, Any] = {"model": MODEL, "temperature": 1.5, "extra_body": {"seed": seed}}
    result = client.call("parse_chat", messages=MESSAGES, **asked)
    assert result["parsed"] == json.loads(result["content"]) and result["ended"] == "stop"
    streamed = client.call("stream_parsed_chat", messages=MESSAGES, **asked)
    assert streamed["parsed"] == result["parsed"] and streamed["grown"][-1] == result["parsed"]
    result = client.call("parse_response", input=QUESTION, **asked)
    assert result["parsed"] == json.loads(result["content"])
    streamed = client.call("stream_parsed_response", input=QUESTION, **asked)
    assert streamed["parsed"] == result["parsed"] and streamed["kinds"][-1] == "response.completed"


def test_many_at_once(client: ForeignClient, foreign_server: Server) -> None:
    answers = client.call("chat_async", count=16, **ASK)
    assert {one["choices"][0]["message"]["content"] for one in answers} == {plain_chat(foreign_server)}
    frames = client.call("stream_async", **ASK)
    text = "".join(frame["choices"][0]["delta"].get("content") or "" for frame in frames if frame["choices"])
    assert text == plain_chat(foreign_server)


def test_the_request_has_an_id(client: ForeignClient) -> None:
    result = client.call("raw_headers", **ASK)
    assert result["request_id"] and result["request_id"] == result["headers"]["x-request-id"]


def test_errors_are_the_clients_own(client: ForeignClient) -> None:
    unknown = client.fail("chat", **{**ASK, "model": "another"})
    assert "NotFoundError" in unknown.types and unknown.status == 404
    long = client.fail("chat", **{**ASK, "messages": [{"role": "user", "content": TOO_LONG}]})
    assert "BadRequestError" in long.types and "maximum context length" in long.message
    assert long.code == "context_length_exceeded"
    assert "AuthenticationError" in client.fail("chat_with_key", key="sk-wrong", **ASK).types
    assert "BadRequestError" in client.fail("chat", **{**ASK, "temperature": -1}).types


def test_time_limits_and_leaving(client: ForeignClient, foreign_server: Server) -> None:
    long = {**ASK, "n": 64, "max_completion_tokens": 800, "extra_body": {"ignore_eos": True}}
    assert "APITimeoutError" in client.fail("chat_within", seconds=0.2, **long).types
    assert client.call("leave_a_stream", frames=3, **{**long, "n": 1}) == 3
    assert foreign_server.settled(lambda: foreign_server.metric("inflight_sequences_running") == 0)


def test_a_full_server_is_asked_again(client: ForeignClient, start: Callable[..., Server]) -> None:
    """When the refusal says so; who does not ask again gets the client's own exception."""
    url = f"{start('--max-streams', '2').url}/v1"
    asked = {**ASK, "max_completion_tokens": 200, "extra_body": {"ignore_eos": True}, "url": url}
    answers = client.call("chat_async", count=6, max_retries=8, **asked)
    assert [answer["usage"]["completion_tokens"] for answer in answers] == [200] * 6
    refused = client.fail("chat_async", count=6, **asked)
    assert "RateLimitError" in refused.types and refused.status == 429


def test_a_batch_job(client: ForeignClient, foreign_server: Server) -> None:
    result = client.call("batch", lines=batch_lines(8) + "no line\n", endpoint="/v1/chat/completions")
    job = result["job"]
    assert job["status"] == "completed" and result["file"]["purpose"] == "batch" and result["deleted"]["deleted"]
    assert job["request_counts"] == {"completed": 8, "failed": 1, "total": 9} and job["metadata"] == {"who": "foreign"}
    assert result["listed"][0] == job["id"]
    lines = [json.loads(line) for line in result["output"].splitlines()]
    texts = {line["response"]["body"]["choices"][0]["message"]["content"] for line in lines}
    assert len(lines) == 8 and texts == {plain_chat(foreign_server)}
    assert len(result["error"].splitlines()) == 1
    assert job["usage"]["output_tokens"] > 0 and job["model"] == MODEL


def test_a_batch_job_is_cancelled(client: ForeignClient) -> None:
    job = client.call("cancel_batch", lines=batch_lines(400, 400), endpoint="/v1/chat/completions")
    assert job["cancelled_at"] and job["request_counts"]["completed"] < 400
