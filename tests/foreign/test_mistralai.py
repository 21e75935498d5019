"""Mistral's client: chat, tools, and the gaps that its code models fill."""

from __future__ import annotations

import json
from typing import Any

import pytest
from server.conftest import Server

from .cases import MESSAGES, MODEL, SCRIPTED_MODEL, plain_chat
from .clients import ForeignClient
from .scripted import WARM

pytestmark = pytest.mark.foreign
CLIENT = "mistralai"
ASK: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "temperature": 0.0, "max_tokens": 16}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
GAP = {"model": "filler", "prompt": "import gap", "suffix": "\nreturn", "temperature": 0.0}
MIDDLE = "first\nsecond"


def test_chat_is_what_it_is_over_plain_http(client: ForeignClient, foreign_server: Server) -> None:
    text = plain_chat(foreign_server)
    answer = client.call("chat", **ASK)
    assert (answer["text"], answer["reason"]) == (text, "length") and answer["tokens"] > 16
    assert "".join(client.call("stream", **ASK)) == text


@pytest.mark.parametrize("choice", ["auto", "any"])
def test_tools_are_called(agent: ForeignClient, choice: str) -> None:
    messages = [{"role": "user", "content": WARM}]
    asked = {"model": SCRIPTED_MODEL, "messages": messages, "tools": TOOLS, "tool_choice": choice}
    [[name, arguments]] = agent.call("called", **asked)
    assert name == "weather" and json.loads(arguments) == {"city": "Zürich"}


def test_a_gap_is_filled(filler: ForeignClient) -> None:
    assert filler.call("fill", **GAP) == {"text": MIDDLE, "reason": "stop"}
    assert filler.call("fill", max_tokens=1, **GAP)["reason"] == "length"
    assert "".join(filler.call("fill_streamed", **GAP, random_seed=7)) == MIDDLE


def test_a_model_that_fills_none_says_so(client: ForeignClient) -> None:
    failure = client.fail("fill", **{**GAP, "model": MODEL})
    assert failure.status == 400 and "no fill-in-the-middle tokens" in failure.message
