"""OpenAI's Agents SDK: two tools, handoffs and typed answers over chat and over Responses, whole and streamed."""

from __future__ import annotations

from typing import Any

import pytest
from server.conftest import Server

from .cases import MESSAGES, MODEL, QUESTION, SCRIPTED_MODEL, TOO_LONG, USER, plain_chat
from .clients import ForeignClient
from .scripted import DESK, EXPERT, IS_WARM, IS_WARM_AND_LARGE, SURVEY, WARM, WARM_AND_LARGE

pytestmark = pytest.mark.foreign
CLIENT = "openai_agents"
apis = pytest.mark.parametrize("api", ["chat", "responses"])
both = pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
WEATHER, INHABITANTS = ["weather", {"city": "Zürich"}], ["inhabitants", {"city": "Zürich"}]
LIMIT = 400  # within which answers end: over Responses this client takes one that was cut for a failure
SETTINGS: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": LIMIT}


@apis
@both
def test_a_run_has_the_servers_text_and_usage(
    client: ForeignClient, foreign_server: Server, api: str, streams: bool
) -> None:
    result = client.call("ask", question=QUESTION, api=api, streams=streams, include_usage=True, **SETTINGS)
    assert result["answer"] == result.get("heard", result["answer"]) == plain_chat(foreign_server, max_tokens=LIMIT)
    assert result["requests"] == 1 and result["input"] > 0 and 0 < result["output"] <= LIMIT


@apis
def test_nothing_but_a_model(client: ForeignClient, api: str) -> None:
    """With the settings that the client chooses by itself."""
    assert client.call("ask", question=QUESTION, model=MODEL, api=api)["answer"]


@apis
@both
def test_a_session_goes_back_as_it_came(client: ForeignClient, foreign_server: Server, api: str, streams: bool) -> None:
    answers = client.call("converse", questions=[QUESTION, QUESTION], api=api, streams=streams, **SETTINGS)
    first = plain_chat(foreign_server, max_tokens=LIMIT)
    plain = [*MESSAGES, {"role": "assistant", "content": first}, USER]
    assert answers == [first, plain_chat(foreign_server, plain, max_tokens=LIMIT)]


@apis
@both
def test_tools_are_run_until_the_answer(agent: ForeignClient, api: str, streams: bool) -> None:
    asked: dict[str, Any] = {"model": SCRIPTED_MODEL, "api": api, "streams": streams}
    result = agent.call("run_tools", question=WARM, **asked)
    assert (result["called"], result["answer"], result["requests"]) == ([WEATHER], IS_WARM, 2)
    result = agent.call("run_tools", question=WARM_AND_LARGE, **asked)
    assert sorted(result["called"]) == [INHABITANTS, WEATHER] and result["answer"] == IS_WARM_AND_LARGE


@both
def test_a_run_goes_on_from_stored_responses(storing_agent: ForeignClient, streams: bool) -> None:
    result = storing_agent.call("go_on", question=WARM_AND_LARGE, model=SCRIPTED_MODEL, streams=streams)
    assert sorted(result["called"]) == [INHABITANTS, WEATHER] and result["answer"] == IS_WARM_AND_LARGE


@apis
@both
def test_a_handoff_and_the_tools_behind_it(agent: ForeignClient, api: str, streams: bool) -> None:
    result = agent.call("hand_over", question=DESK, model=SCRIPTED_MODEL, api=api, streams=streams)
    assert sorted(result["called"]) == [INHABITANTS, WEATHER]
    assert (result["answer"], result["by"], result["requests"]) == (IS_WARM_AND_LARGE, "Weather desk", 3)
    handed, called = ["HandoffCallItem", "HandoffOutputItem"], ["ToolCallItem"] * 2 + ["ToolCallOutputItem"] * 2
    assert result["items"] == [*handed, *called, "MessageOutputItem"]
    if streams:
        assert result["agents"] == ["Porter", "Weather desk"] and result["heard"] == IS_WARM_AND_LARGE
        assert result["events"].count("tool_called") == result["events"].count("tool_output") == 2


@apis
@both
def test_an_agent_as_anothers_tool(agent: ForeignClient, api: str, streams: bool) -> None:
    result = agent.call("ask_an_expert", question=EXPERT, model=SCRIPTED_MODEL, api=api, streams=streams)
    assert sorted(result["called"]) == [INHABITANTS, WEATHER]
    assert (result["answer"], result["by"]) == ("The expert says so.", "Porter")


@apis
@both
def test_a_tool_and_then_the_answer_in_the_callers_class(agent: ForeignClient, api: str, streams: bool) -> None:
    result = agent.call("survey", question=SURVEY, model=SCRIPTED_MODEL, api=api, streams=streams)
    assert result["called"] == [["survey", {"city": "Zürich"}]] and result["answer"] == {
        "city": "Zürich",
        "degrees": 21,
    }


@apis
@pytest.mark.parametrize("seed", range(2))
def test_the_form_of_the_answer_is_the_callers_class(client: ForeignClient, api: str, seed: int) -> None:
    """At a temperature at which nothing but the schema can make it so."""
    asked = {"question": QUESTION, "model": MODEL, "api": api, "temperature": 1.5, "extra_body": {"seed": seed}}
    whole, streamed = (client.call("guess", streams=streams, **asked)["answer"] for streams in (False, True))
    assert whole["name"] in ("Bern", "Zug") and whole == streamed


@apis
@both
def test_errors_are_the_clients_own(client: ForeignClient, api: str, streams: bool) -> None:
    asked = {**SETTINGS, "question": QUESTION, "api": api, "streams": streams}
    assert "NotFoundError" in client.fail("ask", **{**asked, "model": "another"}).types
    assert "AuthenticationError" in client.fail("ask", **asked, key="sk-wrong").types
    assert client.fail("ask", **{**asked, "question": TOO_LONG}).code == "context_length_exceeded"
    if api == "responses":
        assert "reason='max_output_tokens'" in client.fail("ask", **{**asked, "max_tokens": 9}).message
