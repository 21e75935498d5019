"""LlamaIndex' OpenAILike."""

from __future__ import annotations

from typing import Any

import pytest
from server.conftest import Server

from .cases import MESSAGES, MODEL, QUESTION, SCRIPTED_MODEL, TEXT, TOO_LONG, USER, plain_chat, plain_completion
from .clients import ForeignClient
from .scripted import IS_WARM, IS_WARM_AND_LARGE, REPORT, WARM, WARM_AND_LARGE

pytestmark = pytest.mark.foreign
CLIENT = "llama_index"
WEATHER, INHABITANTS = ["weather", {"city": "Zürich"}], ["inhabitants", {"city": "Zürich"}]
SETTINGS: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 16}


def test_chat(client: ForeignClient, foreign_server: Server) -> None:
    for flow in ("chat", "chat_async"):
        result = client.call(flow, messages=MESSAGES, **SETTINGS)
        assert result["text"] == plain_chat(foreign_server)
        assert result["additional"]["completion_tokens"] > 0


def test_nothing_but_a_model(client: ForeignClient) -> None:
    """With the settings that the client chooses by itself."""
    assert client.call("chat", messages=MESSAGES, model=MODEL)["text"]
    assert client.call("complete", prompt=TEXT, model=MODEL)["text"]


def test_streams(client: ForeignClient, foreign_server: Server) -> None:
    for flow in ("stream_chat", "stream_chat_async"):
        assert "".join(client.call(flow, messages=MESSAGES, **SETTINGS)) == plain_chat(foreign_server)


def test_an_answer_goes_back_as_it_came(client: ForeignClient, foreign_server: Server) -> None:
    plain = [*MESSAGES, {"role": "assistant", "content": plain_chat(foreign_server)}, USER]
    result = client.call("history", messages=MESSAGES, question=QUESTION, **SETTINGS)
    assert result["text"] == plain_chat(foreign_server, plain)


def test_completions(client: ForeignClient, foreign_server: Server) -> None:
    expected = plain_completion(foreign_server)
    result = client.call("complete", prompt=TEXT, **SETTINGS)
    assert result["text"] == expected and result["additional"]["completion_tokens"] > 0
    assert "".join(client.call("stream_completion", prompt=TEXT, **SETTINGS)) == expected
    assert client.call("complete_async", prompt=TEXT, **SETTINGS) == expected


def test_settings_reach_the_server(client: ForeignClient, foreign_server: Server) -> None:
    word = plain_chat(foreign_server).split()[2]
    assert word not in client.call("chat", messages=MESSAGES, **SETTINGS, additional_kwargs={"stop": [word]})["text"]
    scored = client.call("chat", messages=MESSAGES, **SETTINGS, logprobs=True, top_logprobs=2)
    assert len(scored["logprobs"][0]) == 2
    scored = client.call("complete", prompt=TEXT, **SETTINGS, additional_kwargs={"seed": 7, "top_p": 0.9})
    assert scored["text"] == plain_completion(foreign_server)


def test_errors(client: ForeignClient) -> None:
    assert "NotFoundError" in client.fail("chat", messages=MESSAGES, **{**SETTINGS, "model": "another"}).types
    assert "AuthenticationError" in client.fail("chat", messages=MESSAGES, **SETTINGS, api_key="sk-wrong").types
    long = client.fail("chat", messages=[{"role": "user", "content": TOO_LONG}], **SETTINGS)
    assert "BadRequestError" in long.types and long.code == "context_length_exceeded"


@pytest.mark.parametrize("flow", ["run_tools", "run_agent"])
@pytest.mark.parametrize("streams", [False, True])
def test_tools_are_run_until_the_answer(agent: ForeignClient, flow: str, streams: bool) -> None:
    asked = {"model": SCRIPTED_MODEL, "streams": streams}
    assert agent.call(flow, question=WARM, **asked) == {"called": [WEATHER], "text": IS_WARM}
    result = agent.call(flow, question=WARM_AND_LARGE, **asked)
    assert sorted(result["called"]) == [INHABITANTS, WEATHER] and result["text"] == IS_WARM_AND_LARGE


def test_the_answer_is_a_call_of_the_callers_class(agent: ForeignClient) -> None:
    result = agent.call("report", question=REPORT, model=SCRIPTED_MODEL)
    assert result["made"] == result["streamed"] == {"city": "Zürich", "degrees": 21}


@pytest.mark.parametrize("seed", range(2))
def test_the_form_of_the_answer_is_the_callers_class(client: ForeignClient, seed: int) -> None:
    """At a temperature at which nothing but the schema can make it so."""
    asked = {"model": MODEL, "temperature": 1.5, "additional_kwargs": {"seed": seed}, "max_tokens": 400}
    assert client.call("guess", question=QUESTION, **asked)["name"] in ("Bern", "Zug")
