"""LiteLLM, by the provider names under which people point it to a server of their own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from server.conftest import Server

from .cases import MESSAGES, MODEL, QUESTION, SCRIPTED_MODEL, TEXT, TOO_LONG, batch_lines, plain_chat, plain_completion
from .clients import ForeignClient
from .scripted import IS_WARM, IS_WARM_AND_LARGE, WARM, WARM_AND_LARGE

pytestmark = pytest.mark.foreign
CLIENT = "litellm"
ASK: dict[str, Any] = {"messages": MESSAGES, "temperature": 0, "max_tokens": 16}
both = pytest.mark.parametrize("model", [f"openai/{MODEL}", f"hosted_vllm/{MODEL}"])
providers = pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "anthropic"])
of_openai = pytest.mark.parametrize("provider", ["openai", "hosted_vllm"])
ways = pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
WEATHER, INHABITANTS = ["weather", {"city": "Zürich"}], ["inhabitants", {"city": "Zürich"}]


def said(frames: list[dict[str, Any]]) -> str:
    return "".join(frame["choices"][0]["delta"].get("content") or "" for frame in frames if frame["choices"])


@both
def test_a_chat_has_the_servers_text_and_usage(client: ForeignClient, foreign_server: Server, model: str) -> None:
    answer = client.call("chat", model=model, **ASK)
    assert answer["choices"][0]["message"]["content"] == plain_chat(foreign_server)
    assert 0 < answer["usage"]["completion_tokens"] <= 16 and answer["usage"]["prompt_tokens"] > 0


@both
def test_streams(client: ForeignClient, foreign_server: Server, model: str) -> None:
    frames = client.call("stream_chat", model=model, **ASK, stream_options={"include_usage": True})
    assert said(frames) == plain_chat(foreign_server)
    assert frames[-1]["usage"]["completion_tokens"] > 0
    whole = client.call("rebuild_stream", model=model, **ASK)
    assert whole["choices"][0]["message"]["content"] == plain_chat(foreign_server)
    assert whole["usage"]["completion_tokens"] == frames[-1]["usage"]["completion_tokens"]


@both
def test_async(client: ForeignClient, foreign_server: Server, model: str) -> None:
    answers = client.call("chat_async", count=8, model=model, **ASK)
    assert {one["choices"][0]["message"]["content"] for one in answers} == {plain_chat(foreign_server)}
    assert said(client.call("stream_async", model=model, **ASK)) == plain_chat(foreign_server)


@both
def test_settings_reach_the_server(client: ForeignClient, foreign_server: Server, model: str) -> None:
    sampled = {**ASK, "temperature": 2, "n": 3, "seed": 7, "user": "someone", "frequency_penalty": 0.5}
    texts = [
        [choice["message"]["content"] for choice in client.call("chat", model=model, **sampled)["choices"]]
        for _ in range(2)
    ]
    assert texts[0] == texts[1] and len(set(texts[0])) > 1
    word = plain_chat(foreign_server).split()[2]
    stopped = client.call("chat", model=model, **ASK, stop=[word])["choices"][0]
    assert word not in stopped["message"]["content"] and stopped["finish_reason"] == "stop"
    scored = client.call("chat", model=model, **ASK, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]
    assert len(scored["content"][0]["top_logprobs"]) == 2
    short = {**ASK, "max_tokens": None, "max_completion_tokens": 5}
    assert client.call("chat", model=model, **short)["usage"]["completion_tokens"] == 5


@both
def test_settings_of_vllm_pass_through(client: ForeignClient, foreign_server: Server, model: str) -> None:
    extra = {"top_k": 1, "min_p": 0.0, "repetition_penalty": 1.0, "length_penalty": 1.0, "use_beam_search": False}
    answer = client.call("chat", model=model, **ASK, extra_body=extra)
    assert answer["choices"][0]["message"]["content"] == plain_chat(foreign_server)


@both
def test_hints_that_cost_nothing(client: ForeignClient, foreign_server: Server, model: str) -> None:
    answer = client.call("chat", model=model, **ASK, metadata={"job": "1"}, store=False, service_tier="auto")
    assert answer["choices"][0]["message"]["content"] == plain_chat(foreign_server)


@both
def test_an_answer_goes_back_as_it_came(client: ForeignClient, foreign_server: Server, model: str) -> None:
    first = client.call("chat", model=model, **ASK)["choices"][0]["message"]
    again = {"role": "user", "content": QUESTION}
    plain = [*MESSAGES, {"role": "assistant", "content": first["content"]}, again]
    answer = client.call("chat", model=model, **{**ASK, "messages": [*MESSAGES, first, again]})
    assert answer["choices"][0]["message"]["content"] == plain_chat(foreign_server, plain)


@both
def test_errors_are_litellms_own(client: ForeignClient, model: str) -> None:
    assert "NotFoundError" in client.fail("chat", model=f"{model}-another", **ASK).types
    assert "AuthenticationError" in client.fail("chat", model=model, **ASK, api_key="sk-wrong").types
    assert "BadRequestError" in client.fail("chat", model=model, **{**ASK, "temperature": -3}).types
    assert "Timeout" in client.fail("chat", model=model, **{**ASK, "max_tokens": 900, "n": 64}, timeout=0.005).types


@both
@pytest.mark.parametrize("prompt", [TOO_LONG, "block " * 1100], ids=["by its characters", "by its tokens"])
def test_a_context_that_is_too_long_is_known_as_such(client: ForeignClient, model: str, prompt: str) -> None:
    """So that routers go on to a model with a longer one."""
    asked = {**ASK, "messages": [{"role": "user", "content": prompt}]}
    assert "ContextWindowExceededError" in client.fail("chat", model=model, **asked).types


def test_completions(client: ForeignClient, foreign_server: Server) -> None:
    expected = plain_completion(foreign_server)
    asked = {"model": f"text-completion-openai/{MODEL}", "prompt": TEXT, "temperature": 0, "max_tokens": 16}
    assert client.call("complete", **asked)["choices"][0]["text"] == expected
    frames = client.call("stream_completion", **asked)
    assert "".join(frame["choices"][0]["text"] or "" for frame in frames) == expected


@both
def test_many_and_a_router(client: ForeignClient, foreign_server: Server, model: str) -> None:
    asked = {name: value for name, value in ASK.items() if name != "messages"}
    answers = client.call("many", model=model, prompts=[MESSAGES] * 4, **asked)
    assert [one["choices"][0]["message"]["content"] for one in answers] == [plain_chat(foreign_server)] * 4
    routed = client.call("route", model=model, **ASK)
    assert routed["choices"][0]["message"]["content"] == plain_chat(foreign_server)


def test_a_batch_job(client: ForeignClient, foreign_server: Server) -> None:
    result = client.call("batch", lines=batch_lines(5), endpoint="/v1/chat/completions")
    lines = [json.loads(line) for line in result["output"].splitlines()]
    texts = {line["response"]["body"]["choices"][0]["message"]["content"] for line in lines}
    assert result["job"]["status"] == "completed" and result["job"]["id"] in result["listed"]
    assert len(lines) == 5 and texts == {plain_chat(foreign_server)}


@providers
@ways
def test_tools_are_run_until_the_answer(agent: ForeignClient, provider: str, streams: bool) -> None:
    asked = {"model": f"{provider}/{SCRIPTED_MODEL}", "streams": streams}
    result = agent.call("run_tools", question=WARM, **asked)
    assert result == {"called": [WEATHER], "text": IS_WARM, "reason": "stop"}
    result = agent.call("run_tools", question=WARM_AND_LARGE, **asked)
    assert result == {"called": [WEATHER, INHABITANTS], "text": IS_WARM_AND_LARGE, "reason": "stop"}


@providers
def test_a_call_that_must_come_comes(agent: ForeignClient, provider: str) -> None:
    asked = {"question": WARM_AND_LARGE, "model": f"{provider}/{SCRIPTED_MODEL}"}
    assert agent.call("forced", choice="required", **asked) == [WEATHER, INHABITANTS]
    named = {"type": "function", "function": {"name": "weather"}}
    assert agent.call("forced", choice=named, **asked) == [WEATHER]
    assert agent.call("forced", choice="none", **asked) == []


@of_openai
@ways
@pytest.mark.parametrize("seed", range(2))
def test_the_form_of_the_answer_is_the_callers_class(
    client: ForeignClient, provider: str, streams: bool, seed: int
) -> None:
    """At a temperature at which nothing but the schema can make it so."""
    hot = {"messages": MESSAGES, "temperature": 1.5, "seed": seed, "streams": streams}
    assert client.call("structured", model=f"{provider}/{MODEL}", kind="City", **hot)["name"] in ("Bern", "Zug")


@of_openai
@ways
def test_responses(
    client: ForeignClient, agent: ForeignClient, foreign_server: Server, provider: str, streams: bool
) -> None:
    asked = {"model": f"{provider}/{MODEL}", "instructions": "You are brief.", "temperature": 0}
    result = client.call("respond", input=QUESTION, streams=streams, max_output_tokens=16, **asked)
    assert result["text"] == plain_chat(foreign_server) and 0 < result["usage"]["output_tokens"] <= 16
    called = agent.call("run_tools_with_responses", question=WARM_AND_LARGE, model=f"{provider}/{SCRIPTED_MODEL}")
    assert called == {"called": [WEATHER, INHABITANTS], "text": IS_WARM_AND_LARGE}


@providers
def test_messages_over_each_api(agent: ForeignClient, provider: str) -> None:
    asked = {"question": WARM_AND_LARGE, "model": f"{provider}/{SCRIPTED_MODEL}"}
    result = agent.call("run_tools_with_messages", **asked)
    assert result == {"called": [WEATHER, INHABITANTS], "text": IS_WARM_AND_LARGE}


def test_a_chat_over_messages(client: ForeignClient, foreign_server: Server) -> None:
    answer = client.call("chat_over_messages", model=f"anthropic/{MODEL}", **ASK)
    assert answer["choices"][0]["message"]["content"] == plain_chat(foreign_server)
    assert answer["choices"][0]["finish_reason"] == "length" and 0 < answer["usage"]["completion_tokens"] <= 16
    assert said(client.call("chat_over_messages", stream=True, model=f"anthropic/{MODEL}", **ASK)) == plain_chat(
        foreign_server
    )
    assert "NotFoundError" in client.fail("chat_over_messages", model="anthropic/another", **ASK).types
