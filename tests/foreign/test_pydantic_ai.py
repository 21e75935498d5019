"""Pydantic AI: OpenAI's provider and vLLM's; tools and typed answers over chat and over Responses."""

from __future__ import annotations

from typing import Any

import pytest
from server.conftest import Server

from .cases import MESSAGES, MODEL, QUESTION, SCRIPTED_MODEL, TOO_LONG, USER, plain_chat
from .clients import ForeignClient
from .scripted import IS_WARM, IS_WARM_AND_LARGE, MEASURE, WARM, WARM_AND_LARGE

pytestmark = pytest.mark.foreign
CLIENT = "pydantic_ai"
both = pytest.mark.parametrize("provider", ["openai", "vllm"])
apis = pytest.mark.parametrize("api", ["chat", "responses"])
WEATHER, INHABITANTS = ["weather", {"city": "Zürich"}], ["inhabitants", {"city": "Zürich"}]
SETTINGS: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 16}


@both
def test_a_run(client: ForeignClient, foreign_server: Server, provider: str) -> None:
    for flow in ("ask", "ask_sync"):
        result = client.call(flow, question=QUESTION, provider=provider, **SETTINGS)
        assert result["text"] == plain_chat(foreign_server)
        assert result["input"] > 0 and 0 < result["output"] <= 16


@both
def test_nothing_but_a_model(client: ForeignClient, provider: str) -> None:
    """With the settings that the client chooses by itself."""
    assert client.call("ask", question=QUESTION, provider=provider, model=MODEL)["text"]


@both
def test_a_stream(client: ForeignClient, foreign_server: Server, provider: str) -> None:
    result = client.call("stream", question=QUESTION, provider=provider, **SETTINGS)
    assert "".join(result["parts"]) == plain_chat(foreign_server) and result["output"] > 0


@both
def test_a_conversation(client: ForeignClient, foreign_server: Server, provider: str) -> None:
    texts = client.call("converse", questions=[QUESTION, QUESTION], provider=provider, **SETTINGS)
    first = plain_chat(foreign_server)
    plain = [*MESSAGES, {"role": "assistant", "content": first}, USER]
    assert texts == [first, plain_chat(foreign_server, plain)]


@both
def test_settings_reach_the_server(client: ForeignClient, foreign_server: Server, provider: str) -> None:
    word = plain_chat(foreign_server).split()[2]
    asked = {**SETTINGS, "question": QUESTION, "provider": provider}
    assert word not in client.call("ask", **asked, stop_sequences=[word])["text"]
    settings = {"seed": 7, "top_p": 0.9, "presence_penalty": 0, "frequency_penalty": 0, "openai_user": "someone"}
    assert client.call("ask", **asked, **settings)["text"] == plain_chat(foreign_server)
    assert client.call("ask", **asked, extra_body={"top_k": 1})["text"] == plain_chat(foreign_server)


@both
def test_errors(client: ForeignClient, provider: str) -> None:
    asked = {**SETTINGS, "question": QUESTION, "provider": provider}
    unknown = client.fail("ask", **{**asked, "model": "another"})
    assert "ModelNotFoundError" in unknown.types and unknown.status == 404
    assert "ModelAuthenticationError" in client.fail("ask", **asked, key="sk-wrong").types
    assert "ModelContextWindowExceededError" in client.fail("ask", **{**asked, "question": TOO_LONG}).types


@apis
def test_tools_are_run_until_the_answer(agent: ForeignClient, api: str) -> None:
    result = agent.call("run_tools", question=WARM, model=SCRIPTED_MODEL, api=api)
    assert result == {"called": [WEATHER], "text": IS_WARM}
    result = agent.call("run_tools", question=WARM_AND_LARGE, model=SCRIPTED_MODEL, api=api)
    assert sorted(result["called"]) == [INHABITANTS, WEATHER] and result["text"] == IS_WARM_AND_LARGE


@apis
def test_tools_in_streams(agent: ForeignClient, api: str) -> None:
    result = agent.call("stream_tools", question=WARM_AND_LARGE, model=SCRIPTED_MODEL, api=api)
    assert sorted(result["called"]) == [INHABITANTS, WEATHER] and result["text"] == IS_WARM_AND_LARGE


@apis
def test_a_tool_and_then_the_answer_as_a_call(agent: ForeignClient, api: str) -> None:
    result = agent.call("report", question=MEASURE, model=SCRIPTED_MODEL, api=api)
    assert result == {"called": [["measure", {"city": "Zürich"}]], "made": {"city": "Zürich", "degrees": 21}}


@apis
@pytest.mark.parametrize("seed", range(2))
def test_the_form_of_the_answer_is_the_callers_class(client: ForeignClient, api: str, seed: int) -> None:
    """At a temperature at which nothing but the schema can make it so."""
    extra = {"temperature": 1.5, "extra_body": {"seed": seed}}
    result = client.call("guess", question=QUESTION, model=MODEL, api=api, **extra)
    assert result["made"]["name"] in ("Bern", "Zug") and result["made"] == result["streamed"]
