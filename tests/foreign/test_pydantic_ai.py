"""Pydantic AI, with plain text answers: OpenAI's provider and vLLM's."""

from __future__ import annotations

from typing import Any

import pytest
from server.conftest import Server

from .cases import MESSAGES, MODEL, QUESTION, TOO_LONG, USER, plain_chat
from .clients import ForeignClient

pytestmark = pytest.mark.foreign
CLIENT = "pydantic_ai"
both = pytest.mark.parametrize("provider", ["openai", "vllm"])
SETTINGS: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 16}


@both
def test_a_run(client: ForeignClient, foreign_server: Server, provider: str) -> None:
    for flow in ("ask", "ask_sync"):
        told = client.call(flow, question=QUESTION, provider=provider, **SETTINGS)
        assert told["text"] == plain_chat(foreign_server)
        assert told["input"] > 0 and 0 < told["output"] <= 16


@both
def test_nothing_but_a_model(client: ForeignClient, provider: str) -> None:
    """With the settings that the client chooses by itself."""
    assert client.call("ask", question=QUESTION, provider=provider, model=MODEL)["text"]


@both
def test_a_stream(client: ForeignClient, foreign_server: Server, provider: str) -> None:
    told = client.call("stream", question=QUESTION, provider=provider, **SETTINGS)
    assert "".join(told["parts"]) == plain_chat(foreign_server) and told["output"] > 0


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
