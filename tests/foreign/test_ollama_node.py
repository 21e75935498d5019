"""ollama's client for Node, over its own API."""

from __future__ import annotations

from typing import Any

import pytest
from server.conftest import Server

from .cases import MESSAGES, MODEL, SCRIPTED_MODEL, USER, plain_chat
from .clients import ForeignClient
from .scripted import IS_WARM, IS_WARM_AND_LARGE, THINK, WARM, WARM_AND_LARGE

pytestmark = pytest.mark.foreign
CLIENT = "ollama_node"
OPTIONS = {"temperature": 0, "num_predict": 16}
ASK: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "options": OPTIONS}
WEATHER, INHABITANTS = ["weather", {"city": "Zürich"}], ["inhabitants", {"city": "Zürich"}]


def test_answers_and_streams(client: ForeignClient, foreign_server: Server) -> None:
    expected = plain_chat(foreign_server)
    assert client.call("chat", **ASK)["message"]["content"] == expected
    parts = client.call("stream_chat", **ASK)
    assert "".join(part["message"]["content"] for part in parts) == expected and parts[-1]["eval_count"] == 16
    assert {one["message"]["content"] for one in client.call("chat_many", count=8, **ASK)} == {expected}
    long = {**ASK, "options": {"temperature": 0, "num_predict": 400}}
    taken, error = client.call("abort_a_chat", parts=1, **long)
    assert taken >= 1 and error in ("AbortError", None)  # none: on a busy machine all lines came at once
    assert foreign_server.settled(lambda: foreign_server.metric("inflight_sequences_running") == 0)


def test_prompts_and_models(client: ForeignClient, foreign_server: Server) -> None:
    asked = {"model": MODEL, "prompt": USER["content"], "system": "You are brief.", "options": OPTIONS}
    assert client.call("generate", **asked)["response"] == plain_chat(foreign_server)
    assert client.call("stream_generate", **asked)[-1]["done_reason"] == "length"
    assert client.call("version")["version"].count(".") == 2
    assert [one["name"] for one in client.call("models")["models"]] == [f"{MODEL}:latest"]
    assert client.call("loaded")["models"][0]["model"] == f"{MODEL}:latest"
    assert client.call("show", model=MODEL)["model_info"]["llama.context_length"] == 1024


@pytest.mark.parametrize("streams", [False, True])
def test_tools(agent: ForeignClient, streams: bool) -> None:
    for question, called, text in (
        (WARM, [WEATHER], IS_WARM),
        (WARM_AND_LARGE, [WEATHER, INHABITANTS], IS_WARM_AND_LARGE),
    ):
        run = agent.call("run_tools", question=question, model=SCRIPTED_MODEL, streams=streams)
        assert (run["called"], run["text"]) == (called, text)


def test_thinking(agent: ForeignClient) -> None:
    message = agent.call("chat", model=SCRIPTED_MODEL, messages=[{"role": "user", "content": THINK}], think=True)
    assert (message["message"]["thinking"], message["message"]["content"]) == ("Seven sixes.", "42")


def test_errors(client: ForeignClient) -> None:
    unknown = client.fail("chat", **{**ASK, "model": "other"})
    assert unknown.types[0] == "ResponseError" and "does not exist" in unknown.message
    assert "incorrect api key" in client.fail("chat_with_key", key="sk-wrong", **ASK).message.lower()
    assert "no pooling head" in client.fail("embed", model=MODEL, input="Hi").message
    assert "is a name of ollama's library" in client.fail("pull", model="llama3.2").message
    assert "in use" in client.fail("remove", model=MODEL).message
