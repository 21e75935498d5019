"""A real model whose chat template knows no tools calls the README's tool, and reads its result."""

from __future__ import annotations

import json
from typing import Any

import pytest
from server.conftest import Server

from .conftest import pulled

pytestmark = pytest.mark.wide
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: Any = [{"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}]


def test_smollm2_calls_the_readmes_tool() -> None:
    server = Server(str(pulled("smollm2")), "--served-model-name", "smollm2", "--max-model-len", "512").ready()
    try:
        (model,) = server.get("/v1/models").json()["data"]
        assert model["capabilities"]["tool_format"] == "generic"
        messages: list[Any] = [{"role": "user", "content": "What is the weather in Lyon?"}]
        client = server.client()
        asked: Any = {"model": "smollm2", "tools": TOOLS, "temperature": 0}
        with client.chat.completions.stream(**asked, messages=messages) as stream:
            message = stream.get_final_completion().choices[0].message
        (call,) = message.tool_calls or ()
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Lyon"})
        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "24 degrees"}]
        answer = client.chat.completions.create(**asked, messages=messages).choices[0]
        assert answer.finish_reason == "stop" and "24 degrees" in (answer.message.content or "")
    finally:
        assert server.stop() == 0
