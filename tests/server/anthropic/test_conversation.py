"""Blocks as messages: what makes one turn, what is refused, and where."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from inflight.server.anthropic.messages.conversation import prompt_of
from inflight.server.anthropic.messages.schema import COUNT_TOKENS
from inflight.server.errors import ApiError

USE = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Zürich"}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Rain."}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said, "cache_control": {"type": "ephemeral"}}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def assistant(*content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(content)}


def conversation(*messages: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    body = COUNT_TOKENS.decode(json.dumps({"messages": messages, **fields}).encode())
    found = msgspec.to_builtins(prompt_of(body).messages)
    return [{name: value for name, value in one.items() if value is not None} for one in found]


def test_texts_and_blocks_of_the_system_come_first() -> None:
    hi = {"role": "user", "content": "Hi"}
    assert conversation(hi, system="Be brief.") == [{"role": "system", "content": "Be brief."}, hi]
    assert conversation(hi, system=[text("Be"), text("brief.")])[0]["content"] == "Be\nbrief."
    first, later = {"role": "system", "content": "And kind."}, {"role": "system", "content": "Now."}
    said = conversation(first, hi, later, system="Be")
    assert [one["role"] for one in said] == ["system", "user", "system"] and said[0]["content"] == "Be\nAnd kind."


def test_what_one_side_says_in_a_row_is_one_message() -> None:
    assert conversation(user(text("a"), text("b")), user(text("c"))) == [{"role": "user", "content": "a\nb\nc"}]
    said = conversation(user(text("a")), assistant(text("b")), assistant(text("c")), user(text("d")))
    assert [one["content"] for one in said] == ["a", "bc", "d"]


def test_calls_and_results_stand_where_they_stood() -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "unsigned"}
    hidden = {"type": "redacted_thinking", "data": "xyz"}
    said = conversation(
        user(text("Weather?")), assistant(thought, hidden, text("Let me see."), USE), user(RESULT, text("And?"))
    )
    call = {"id": "toolu_1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich"}}}
    assert said[1:] == [
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call], "reasoning_content": "Hm."},
        {"role": "tool", "content": "Rain.", "tool_call_id": "toolu_1"},
        {"role": "user", "content": "And?"},
    ]


@pytest.mark.parametrize(
    ("content", "is_error", "expected"),
    [
        ([text("a"), text("b")], False, "a\nb"),
        (None, None, ""),
        ("No such city.", True, "Error: No such city."),
        (None, True, "Error"),
    ],
)
def test_results_in_blocks_and_errors(content: Any, is_error: bool | None, expected: str) -> None:
    result = {**RESULT, "content": content, "is_error": is_error}
    assert conversation(user(text("x")), assistant(USE), user(result))[-1]["content"] == expected


@pytest.mark.parametrize(
    ("messages", "param", "word"),
    [
        ([user({"type": "image", "source": {}})], "messages[0].content[0].type", "'image'; it may be one of: text"),
        ([user(text("a"), {"type": "document", "source": {}})], "messages[0].content[1].type", "only text can be read"),
        ([user({"type": "hologram"})], "messages[0].content[0].type", "'hologram'"),
        ([user({"text": "a"})], "messages[0].content[0].type", "no type"),
        ([user({"type": "text"})], "messages[0].content[0].text", "text"),
        ([user(USE)], "messages[0].content[0].type", "no place here"),
        ([user(text("a")), assistant(RESULT)], "messages[1].content[0].type", "no place here"),
        ([user(text("a")), user(RESULT)], "messages[1].content[0].tool_use_id", "toolu_1"),
        (
            [user(text("a")), assistant(USE), user({**RESULT, "content": [{"type": "image"}]})],
            "messages[2].content[0].content[0].type",
            "'image'; it may be one of: text",
        ),
        ([user(text("a")), assistant(USE)], "messages", "1 tool_use"),
        ([user(text("a")), assistant()], "messages", "without text"),
        ([user()], "messages", "no text"),
        ([], "messages", "1"),
    ],
)
def test_what_is_not_served_is_refused_by_its_place(messages: list[Any], param: str, word: str) -> None:
    with pytest.raises(ApiError) as raised:
        conversation(*messages)
    assert raised.value.status == 400 and word in raised.value.message
    assert raised.value.param in (param, param.rpartition(".")[0]), raised.value.param
    assert (raised.value.code == "unsupported_value") == (param.endswith(".type") and word != "no type")
