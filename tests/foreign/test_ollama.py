"""ollama's client for Python, over its own API."""

from __future__ import annotations

from typing import Any

import pytest
from server.conftest import Server

from .cases import MESSAGES, MODEL, SCRIPTED_MODEL, TEXT, USER, plain_chat, plain_completion
from .clients import ForeignClient
from .scripted import IS_WARM, IS_WARM_AND_LARGE, THINK, THINK_AND_CALL, WARM, WARM_AND_LARGE

pytestmark = pytest.mark.foreign
CLIENT = "ollama"
OPTIONS = {"temperature": 0, "num_predict": 16}
ASK: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "options": OPTIONS}
WEATHER, INHABITANTS = ["weather", {"city": "Zürich"}], ["inhabitants", {"city": "Zürich"}]


def test_an_answer_has_the_servers_text_and_counts(client: ForeignClient, foreign_server: Server) -> None:
    answer = client.call("chat", **ASK)
    assert answer["message"]["content"] == plain_chat(foreign_server)
    assert (answer["done"], answer["done_reason"], answer["eval_count"]) == (True, "length", 16)
    assert 0 < answer["eval_duration"] <= answer["total_duration"] and answer["prompt_eval_count"] > 0
    tagged = client.call("chat", **{**ASK, "model": f"{MODEL}:latest", "keep_alive": "5m"})
    assert tagged["message"] == answer["message"]


def test_streams(client: ForeignClient, foreign_server: Server) -> None:
    parts = client.call("stream_chat", **ASK)
    assert "".join(part["message"]["content"] for part in parts) == plain_chat(foreign_server)
    assert [part["done"] for part in parts] == [False] * (len(parts) - 1) + [True]
    long = {**ASK, "options": {"temperature": 0, "num_predict": 400}}
    assert client.call("leave_a_stream", parts=1, **long) == 1
    assert foreign_server.settled(lambda: foreign_server.metric("inflight_sequences_running") == 0)


def test_many_at_once(client: ForeignClient, foreign_server: Server) -> None:
    answers = client.call("chat_async", count=16, **ASK)
    assert {one["message"]["content"] for one in answers} == {plain_chat(foreign_server)}


def test_prompts(client: ForeignClient, foreign_server: Server) -> None:
    asked = {"model": MODEL, "options": OPTIONS}
    answer = client.call("generate", prompt=USER["content"], system="You are brief.", **asked)
    assert answer["response"] == plain_chat(foreign_server) and answer["context"]
    raw = client.call("generate", prompt=TEXT, raw=True, **asked)
    assert raw["response"] == plain_completion(foreign_server)
    parts = client.call("stream_generate", prompt="And more?", context=answer["context"], **asked)
    assert parts[-1]["prompt_eval_count"] > len(answer["context"]) and parts[-1]["done"]
    assert client.call("generate", model=MODEL)["done_reason"] == "load"


def test_settings_reach_the_server(client: ForeignClient, foreign_server: Server) -> None:
    whole = plain_chat(foreign_server)
    word = whole.split()[2]
    stopped = client.call("chat", **{**ASK, "options": {**OPTIONS, "stop": [word], "num_gpu": 1, "mirostat": 0}})
    assert stopped["message"]["content"] == whole[: whole.index(word)] and stopped["done_reason"] == "stop"
    named = client.call("chat", logprobs=True, top_logprobs=2, **ASK)["logprobs"]
    assert len(named) == 16 and all(len(one["top_logprobs"]) == 2 for one in named)
    city = client.call("typed", model=MODEL, messages=[USER])
    assert city["name"] in ("Bern", "Zug") and city["large"] in (True, False)
    assert (
        client.call("chat", **{**ASK, "format": "json", "options": {"num_predict": 64}})["message"]["content"][0] == "{"
    )


def test_models(client: ForeignClient) -> None:
    (listed,) = client.call("models")["models"]
    assert listed["model"] == f"{MODEL}:latest" and listed["details"]["family"] == "llama" and listed["size"]
    (loaded,) = client.call("loaded")["models"]
    assert loaded["context_length"] == 1024 and loaded["expires_at"]
    shown = client.call("show", model=listed["model"])
    assert shown["modelinfo"]["llama.context_length"] == 1024 and "completion" in shown["capabilities"]


@pytest.mark.parametrize(
    ("question", "called", "text"),
    [(WARM, [WEATHER], IS_WARM), (WARM_AND_LARGE, [WEATHER, INHABITANTS], IS_WARM_AND_LARGE)],
)
def test_tools(agent: ForeignClient, question: str, called: list[Any], text: str) -> None:
    for flow in ("run_tools", "run_as_home_assistant_does"):
        assert agent.call(flow, question=question, model=SCRIPTED_MODEL)["called"] == called
        assert agent.call(flow, question=question, model=SCRIPTED_MODEL)["text"] == text


def test_thinking(agent: ForeignClient) -> None:
    ask = {"model": SCRIPTED_MODEL, "messages": [{"role": "user", "content": THINK}], "think": True}
    message = agent.call("chat", **ask)["message"]
    assert (message["thinking"], message["content"]) == ("Seven sixes.", "42")
    parts = agent.call("stream_chat", **ask)
    assert "".join(part["message"]["thinking"] or "" for part in parts) == "Seven sixes."
    run = agent.call("run_tools", question=THINK_AND_CALL, model=SCRIPTED_MODEL, think=True)
    assert (run["called"], run["thoughts"], run["text"]) == ([WEATHER], ["I must look."], IS_WARM)


def test_errors(client: ForeignClient) -> None:
    unknown = client.fail("chat", **{**ASK, "model": "other"})
    assert (unknown.types[0], unknown.status) == ("ResponseError", 404) and "does not exist" in unknown.message
    assert client.fail("stream_chat", **{**ASK, "model": "other"}).status == 404
    assert client.fail("chat_with_key", key="sk-wrong", **ASK).status == 401
    pictured = {**ASK, "messages": [{**USER, "images": ["aGVsbG8="]}]}
    refused = client.fail("chat", **pictured)
    assert refused.status == 400 and "images is not supported" in refused.message
    assert "does not support thinking" in client.fail("chat", think=True, **ASK).message
    assert "no pooling head" in client.fail("embed", model=MODEL, input="Hi").message
    assert client.fail("embeddings", model=MODEL, prompt="Hi").status == 400
    assert "is a name of ollama's library" in client.fail("pull", model="llama3.2").message
    assert client.fail("delete", model=MODEL).status == 409
