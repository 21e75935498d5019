"""The AI SDK: text, tools in steps and typed answers over chat, Responses and Messages, whole and streamed."""

from __future__ import annotations

from typing import Any

import pytest
from server.conftest import Server

from .cases import MESSAGES, MODEL, QUESTION, SCRIPTED_MODEL, TOO_LONG, USER, plain_chat
from .clients import ForeignClient
from .scripted import IS_WARM, IS_WARM_AND_LARGE, REPORT_AS_JSON, SURVEY, THINK, THINK_AND_CALL, WARM, WARM_AND_LARGE

pytestmark = pytest.mark.foreign
CLIENT = "ai_sdk"
APIS = ["compatible", "chat", "responses", "messages"]
apis = pytest.mark.parametrize("api", APIS)
both = pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
WEATHER, INHABITANTS = ["weather", {"city": "Zürich"}], ["inhabitants", {"city": "Zürich"}]
SETTINGS: dict[str, Any] = {"model": MODEL, "system": "You are brief.", "temperature": 0, "maxOutputTokens": 16}
SCRIPTED: dict[str, Any] = {"model": SCRIPTED_MODEL, "maxOutputTokens": 400}


@apis
@both
def test_a_text_is_the_servers_with_its_usage(
    client: ForeignClient, foreign_server: Server, api: str, streams: bool
) -> None:
    result = client.call("ask", prompt=QUESTION, api=api, streams=streams, **SETTINGS)
    assert result["text"] == "".join(result.get("heard", [result["text"]])) == plain_chat(foreign_server)
    assert result["reason"] == "length" and result["usage"]["input"] > 0 and 0 < result["usage"]["output"] <= 16


@apis
@both
def test_nothing_but_a_model(client: ForeignClient, api: str, streams: bool) -> None:
    """With the settings that the client chooses by itself."""
    result = client.call("ask", prompt=QUESTION, api=api, streams=streams, model=MODEL)
    assert result["text"] and result["reason"] == "stop"


@apis
@both
def test_an_answer_goes_back_as_it_came(client: ForeignClient, foreign_server: Server, api: str, streams: bool) -> None:
    texts = client.call("converse", questions=[QUESTION, QUESTION], api=api, streams=streams, **SETTINGS)
    first = plain_chat(foreign_server)
    plain = [*MESSAGES, {"role": "assistant", "content": first}, USER]
    assert texts == [first, plain_chat(foreign_server, plain)]


@apis
def test_settings_reach_the_server(client: ForeignClient, foreign_server: Server, api: str) -> None:
    hot = {**SETTINGS, "prompt": QUESTION, "api": api, "temperature": 1, "topP": 0.9}
    assert client.call("ask", **hot)["text"]
    if api in ("compatible", "chat"):
        seeded = {**hot, "temperature": 2, "seed": 7, "frequencyPenalty": 0.5, "presencePenalty": 0.5}
        texts = [client.call("ask", **seeded)["text"] for _ in range(2)]
        assert texts[0] == texts[1] != plain_chat(foreign_server)
    if api != "responses":  # which has no stops
        word = plain_chat(foreign_server).split()[2]
        stopped = client.call("ask", prompt=QUESTION, api=api, stopSequences=[word], **SETTINGS)
        assert word not in stopped["text"] and stopped["reason"] == "stop"
    if api == "compatible":  # which passes on what it does not know
        assert client.call("ask", **hot, extra={"top_k": 1})["text"] == plain_chat(foreign_server)


@apis
@both
def test_tools_are_run_until_the_answer(agent: ForeignClient, api: str, streams: bool) -> None:
    for flow in ("run_tools", "run_agent"):
        result = agent.call(flow, prompt=WARM, api=api, streams=streams, **SCRIPTED)
        assert (result["called"], result["text"], result["steps"]) == ([WEATHER], IS_WARM, 2)
        result = agent.call(flow, prompt=WARM_AND_LARGE, api=api, streams=streams, **SCRIPTED)
        assert (result["called"], result["text"], result["steps"]) == ([WEATHER, INHABITANTS], IS_WARM_AND_LARGE, 2)


@both
def test_what_was_answered_is_named_by_its_ids(
    storing_agent: ForeignClient, agent: ForeignClient, streams: bool
) -> None:
    """Over Responses, as OpenAI's provider does it by itself: it needs a server that stores them."""
    asked = {"api": "storing", "streams": streams, **SCRIPTED}
    for question, called, text in (
        (WARM, [WEATHER], IS_WARM),
        (WARM_AND_LARGE, [WEATHER, INHABITANTS], IS_WARM_AND_LARGE),
        (THINK_AND_CALL, [WEATHER], IS_WARM),
    ):
        result = storing_agent.call("run_tools", prompt=question, **asked)
        assert (result["called"], result["text"]) == (called, text)
    refused = agent.fail("run_tools", prompt=WARM, **asked)
    assert "APICallError" in refused.types and "--store-responses" in refused.message


@apis
def test_a_call_that_must_come_comes(agent: ForeignClient, api: str) -> None:
    asked = {"prompt": WARM_AND_LARGE, "api": api, **SCRIPTED}
    assert agent.call("forced", choice="required", **asked) == [WEATHER, INHABITANTS]
    assert agent.call("forced", choice={"type": "tool", "toolName": "weather"}, **asked) == [WEATHER]
    assert agent.call("forced", choice="none", **asked) == []


@apis
@both
def test_a_tool_and_then_the_answer_in_the_callers_form(agent: ForeignClient, api: str, streams: bool) -> None:
    result = agent.call("survey", prompt=SURVEY, api=api, streams=streams, **SCRIPTED)
    assert result["called"] == [["survey", {"city": "Zürich"}]] and result["made"] == {"city": "Zürich", "degrees": 21}


@apis
@both
def test_reasoning_is_separate(agent: ForeignClient, api: str, streams: bool) -> None:
    """OpenAI's provider reads none from chat, and from Responses its summary alone."""
    result = agent.call("ask", prompt=THINK, api=api, streams=streams, **SCRIPTED)
    reads_it = api in ("compatible", "messages")
    assert (result.get("thought") or "", result["text"].strip()) == ("Seven sixes." if reads_it else "", "42")
    result = agent.call("run_tools", prompt=THINK_AND_CALL, api=api, streams=streams, **SCRIPTED)
    assert (result["called"], result["text"]) == ([WEATHER], IS_WARM)


def test_the_form_of_the_answer_as_a_call(agent: ForeignClient) -> None:
    """As the client asks over Messages, where it does not know what the model can do."""
    made = agent.call("report", prompt=REPORT_AS_JSON, api="messages", **SCRIPTED)
    assert made == [{"city": "Zürich", "degrees": 21}] * 2


@apis
@pytest.mark.parametrize("temperature", [0, 1])
def test_the_form_of_the_answer_is_the_callers(client: ForeignClient, api: str, temperature: int) -> None:
    """Which the built-in model would not give by itself."""
    extra = {"structuredOutputMode": "outputFormat"} if api == "messages" else {}
    result = client.call("guess", prompt=QUESTION, model=MODEL, api=api, temperature=temperature, extra=extra)
    assert {made["name"] for made in result.values()} <= {"Bern", "Zug"} and result["streamed"] == result["grown"]
    if temperature == 0:
        assert all(made == result["text"] for made in result.values())


@apis
@both
def test_errors_are_the_clients_own(client: ForeignClient, api: str, streams: bool) -> None:
    asked = {**SETTINGS, "prompt": QUESTION, "api": api, "streams": streams}
    for changed, message in (
        ({"model": "another"}, "another"),
        ({"key": "sk-wrong"}, "key"),
        ({"prompt": TOO_LONG}, "too long" if api == "messages" else "context"),
    ):
        failed = client.fail("ask", **{**asked, **changed})
        assert "APICallError" in failed.types and message in failed.message, failed


@apis
def test_time_limits(client: ForeignClient, foreign_server: Server, api: str) -> None:
    asked = {**SETTINGS, "maxOutputTokens": 900, "prompt": "Count without an end.", "api": api}
    assert "abort" in client.fail("leave", milliseconds=1, **asked).message  # no answer comes so soon
    assert foreign_server.settled(lambda: foreign_server.metric("inflight_sequences_running") == 0)
