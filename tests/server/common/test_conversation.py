"""Histories as clients bring them back: what templates read of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inflight.server.common.conversation import template_messages
from inflight.server.errors import ApiError
from inflight.server.openai.chat import CHAT

CUSTOM = {"id": "1", "type": "custom", "custom": {"name": "shell", "input": "ls"}}


def read(message: dict[str, Any], as_text: bool = False) -> dict[str, Any]:
    body = CHAT.decode(json.dumps({"messages": [message]}).encode())
    return template_messages(body.messages, as_text)[0]


@pytest.mark.parametrize(
    ("message", "content"),
    [
        ({"content": None, "reasoning_content": "Hm."}, ""),
        ({"content": None, "reasoning": "Hm."}, ""),
        ({"content": None, "tool_calls": [CUSTOM]}, ""),
        ({"content": None, "refusal": "No."}, "No."),
        ({"content": "Yes.", "refusal": None}, "Yes."),
        ({"content": [{"type": "refusal", "refusal": "No."}]}, [{"type": "text", "text": "No."}]),
        ({"content": [{"type": "output_text", "text": "a", "annotations": []}]}, [{"type": "text", "text": "a"}]),
    ],
)
def test_an_answer_without_content_has_text(message: dict[str, Any], content: Any) -> None:
    made = read({"role": "assistant", **message})
    assert made["content"] == content and "refusal" not in made
    assert made.get("reasoning_content") == ("Hm." if "Hm." in str(message) else None)


def test_a_call_of_a_custom_tool_is_one_of_a_function() -> None:
    function = {"name": "shell", "arguments": {"input": "ls"}}
    made = read({"role": "assistant", "tool_calls": [CUSTOM]})
    assert made["tool_calls"] == [{"id": "1", "type": "function", "function": function}]
    as_text = read({"role": "assistant", "tool_calls": [CUSTOM]}, as_text=True)
    assert as_text["tool_calls"][0]["function"]["arguments"] == '{"input":"ls"}'


@pytest.mark.parametrize("kind", ["function", "custom"])
def test_a_call_without_what_is_called_is_refused(kind: str) -> None:
    with pytest.raises(ApiError) as refused:
        read({"role": "assistant", "tool_calls": [{"type": kind}]})
    assert refused.value.param == f"messages[0].tool_calls[0].{kind}" and refused.value.code == "missing_field"
