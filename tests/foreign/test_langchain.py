"""langchain-openai: ChatOpenAI and OpenAI."""

from __future__ import annotations

from typing import Any

import pytest
from server.conftest import Server

from .cases import MESSAGES, MODEL, QUESTION, SCRIPTED_MODEL, TEXT, TOO_LONG, USER, plain_chat, plain_completion
from .clients import ForeignClient
from .scripted import IS_WARM, IS_WARM_AND_LARGE, REPORT, WARM, WARM_AND_LARGE

pytestmark = pytest.mark.foreign
CLIENT = "langchain"
apis = pytest.mark.parametrize("responses", [False, True], ids=["chat", "responses"])
WEATHER, INHABITANTS = ["weather", {"city": "Zürich"}], ["inhabitants", {"city": "Zürich"}]
SETTINGS: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 16}


def test_invoke(client: ForeignClient, foreign_server: Server) -> None:
    answer = client.call("invoke", messages=MESSAGES, **SETTINGS)
    assert answer["content"] == plain_chat(foreign_server)
    usage, result = answer["usage_metadata"], answer["response_metadata"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 0
    assert result["finish_reason"] in ("stop", "length") and result["model_name"] == MODEL


def test_nothing_but_a_model(client: ForeignClient) -> None:
    """With the settings that the client chooses by itself."""
    assert client.call("invoke", messages=MESSAGES, model=MODEL)["content"]
    assert client.call("stream", messages=MESSAGES, model=MODEL)


def test_streams(client: ForeignClient, foreign_server: Server) -> None:
    for flow in ("stream", "stream_async"):
        parts = client.call(flow, messages=MESSAGES, **SETTINGS, stream_usage=True)
        assert "".join(part["content"] for part in parts) == plain_chat(foreign_server)
        counts = [part["usage_metadata"] for part in parts if part.get("usage_metadata")]
        assert len(counts) == 1 and counts[0]["output_tokens"] > 0


def test_async_batch_and_chain(client: ForeignClient, foreign_server: Server) -> None:
    expected = plain_chat(foreign_server)
    assert client.call("invoke_async", messages=MESSAGES, **SETTINGS)["content"] == expected
    answers = client.call("batch", conversations=[MESSAGES] * 6, **SETTINGS)
    assert [answer["content"] for answer in answers] == [expected] * 6
    assert client.call("chain", question=QUESTION, **SETTINGS) == expected


def test_an_answer_goes_back_as_it_came(client: ForeignClient, foreign_server: Server) -> None:
    plain = [*MESSAGES, {"role": "assistant", "content": plain_chat(foreign_server)}, USER]
    answer = client.call("history", messages=MESSAGES, question=QUESTION, **SETTINGS)
    assert answer["content"] == plain_chat(foreign_server, plain)


def test_settings_reach_the_server(client: ForeignClient, foreign_server: Server) -> None:
    word = plain_chat(foreign_server).split()[2]
    assert word not in client.call("invoke", messages=MESSAGES, **SETTINGS, stop=[word])["content"]
    scored = client.call("invoke", messages=MESSAGES, **SETTINGS, logprobs=True, top_logprobs=2)
    assert len(scored["response_metadata"]["logprobs"]["content"][0]["top_logprobs"]) == 2
    hot = {**SETTINGS, "temperature": 2, "seed": 7, "top_p": 0.99, "frequency_penalty": 0.5, "presence_penalty": 0.5}
    texts = [client.call("invoke", messages=MESSAGES, **hot)["content"] for _ in range(2)]
    assert texts[0] == texts[1] != plain_chat(foreign_server)
    extra = {"top_k": 1, "min_p": 0.0, "repetition_penalty": 1.0}
    assert client.call("invoke", messages=MESSAGES, **SETTINGS, extra_body=extra)["content"] == plain_chat(
        foreign_server
    )


def test_completions(client: ForeignClient, foreign_server: Server) -> None:
    expected = plain_completion(foreign_server)
    assert client.call("complete", prompt=TEXT, **SETTINGS) == expected
    assert client.call("complete", prompt=TEXT, model=MODEL)
    result = client.call("complete_many", prompts=[TEXT, TEXT], **SETTINGS)
    assert [one[0]["text"] for one in result["generations"]] == [expected] * 2
    assert result["llm_output"]["token_usage"]["completion_tokens"] > 0
    assert "".join(client.call("stream_completion", prompt=TEXT, **SETTINGS)) == expected


def test_errors(client: ForeignClient) -> None:
    assert "NotFoundError" in client.fail("invoke", messages=MESSAGES, **{**SETTINGS, "model": "another"}).types
    assert "AuthenticationError" in client.fail("invoke", messages=MESSAGES, **SETTINGS, api_key="sk-wrong").types
    late = {**SETTINGS, "max_tokens": 900, "n": 64, "timeout": 0.01}
    assert "APITimeoutError" in client.fail("invoke", messages=MESSAGES, **late).types
    long = client.fail("invoke", messages=[{"role": "user", "content": TOO_LONG}], **SETTINGS)
    assert "ContextOverflowError" in long.types  # known by the code, which the words of this exception must hold


@apis
@pytest.mark.parametrize("streams", [False, True])
def test_tools_are_run_until_the_answer(agent: ForeignClient, responses: bool, streams: bool) -> None:
    asked = {"model": SCRIPTED_MODEL, "streams": streams, "use_responses_api": responses}
    assert agent.call("run_tools", question=WARM, **asked) == {"called": [WEATHER], "text": IS_WARM}
    result = agent.call("run_tools", question=WARM_AND_LARGE, **asked)
    assert result == {"called": [WEATHER, INHABITANTS], "text": IS_WARM_AND_LARGE}


@apis
def test_a_call_that_must_come_comes(agent: ForeignClient, responses: bool) -> None:
    asked = {"question": WARM_AND_LARGE, "model": SCRIPTED_MODEL, "use_responses_api": responses}
    assert agent.call("forced", choice="any", **asked) == [WEATHER, INHABITANTS]
    assert agent.call("forced", choice="weather", **asked) == [WEATHER]
    assert agent.call("forced", choice="none", **asked) == []


@apis
def test_the_answer_is_a_call_of_the_callers_class(agent: ForeignClient, responses: bool) -> None:
    asked = {"question": REPORT, "kind": "Report", "model": SCRIPTED_MODEL, "use_responses_api": responses}
    result = agent.call("structured", method="function_calling", **asked)
    assert result["whole"] == result["streamed"] == {"city": "Zürich", "degrees": 21}


@apis
@pytest.mark.parametrize("seed", range(2))
def test_the_form_of_the_answer_is_the_callers_class(client: ForeignClient, responses: bool, seed: int) -> None:
    """At a temperature at which nothing but the schema can make it so."""
    asked = {"question": QUESTION, "kind": "City", "model": MODEL, "use_responses_api": responses}
    result = client.call("structured", method="json_schema", temperature=1.5, extra_body={"seed": seed}, **asked)
    assert result["whole"]["name"] in ("Bern", "Zug") and result["whole"] == result["streamed"]
