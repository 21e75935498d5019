"""Items of an input as messages: what makes one turn, what is refused, and where."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from inflight.server.common.conversation import Message
from inflight.server.errors import ApiError
from inflight.server.openai.responses.schema import RESPONSES
from inflight.server.openai.responses.translation import translated

CALL = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city": "Zürich"}'}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "14 °C"}


def messages(given: Any, **fields: Any) -> list[Message]:
    return translated(RESPONSES.decode(json.dumps({"input": given, **fields}).encode())).body.messages


def plain(given: Any, **fields: Any) -> list[dict[str, Any]]:
    builtins = [msgspec.to_builtins(one) for one in messages(given, **fields)]
    return [{name: value for name, value in one.items() if value is not None} for one in builtins]


def refusal(given: Any, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as raised:
        messages(given, **fields)
    assert raised.value.status == 400
    return raised.value


def test_a_text_is_a_users_message_behind_the_instructions() -> None:
    assert plain("Hello.", instructions="Be brief.") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello."},
    ]


def test_messages_come_with_or_without_their_type_as_text_or_parts() -> None:
    parts = [{"type": "input_text", "text": "One"}]
    several = [*parts, {"type": "input_text", "text": "two"}]
    found = plain(
        [
            {"role": "user", "content": "Zero"},
            {"type": "message", "role": "user", "content": parts},
            {"role": "user", "content": several},
        ]
    )
    assert [one["content"] for one in found[:2]] == ["Zero", "One"]
    assert [part["text"] for part in found[2]["content"]] == ["One", "two"]


def test_leading_system_messages_are_one_and_later_ones_stay() -> None:
    found = plain(
        [
            {"role": "developer", "content": "No jokes."},
            {"role": "user", "content": "Hi"},
            {"role": "system", "content": "Now."},
        ],
        instructions="Be brief.",
    )
    assert [(one["role"], one["content"]) for one in found] == [
        ("system", "Be brief.\n\nNo jokes."),
        ("user", "Hi"),
        ("system", "Now."),
    ]


def test_what_the_assistant_thinks_says_and_calls_is_one_message() -> None:
    answer = {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}],
    }
    reasoning = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm."}],
    }
    second = {**CALL, "call_id": "call_2"}
    found = plain([{"role": "user", "content": "Weather?"}, reasoning, answer, CALL, second, OUTPUT])
    assert [one["role"] for one in found] == ["user", "assistant", "tool"]
    assert found[1]["content"] == "I look." and found[1]["reasoning_content"] == "Hm."
    assert [one["id"] for one in found[1]["tool_calls"]] == ["call_1", "call_2"]
    assert found[1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": CALL["arguments"]}
    assert found[2] == {"role": "tool", "content": "14 °C", "tool_call_id": "call_1"}


def test_another_answer_begins_another_message() -> None:
    one = {"role": "assistant", "content": "One."}
    assert [message["content"] for message in plain([one, {**one, "content": "Two."}])] == ["One.", "Two."]
    found = plain([CALL, one])
    assert "content" not in found[0] and found[1]["content"] == "One."


def test_a_summary_is_read_where_the_reasoning_is_not_there() -> None:
    summed = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "It thought."}]}
    (found,) = plain([summed, {"role": "assistant", "content": "Done."}])
    assert found["reasoning_content"] == "It thought."
    hidden = {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "…"}
    assert "reasoning_content" not in plain([hidden, {"role": "assistant", "content": "Done."}])[0]


@pytest.mark.parametrize(
    ("item", "param", "word"),
    [
        ({"type": "computer_call", "action": {"type": "click"}}, "input[1].type", "'computer_call'"),
        ({"type": "item_reference", "id": "msg_1"}, "input[1].type", "send the item itself"),
        ({"content": "?"}, "input[1].type", "no type"),
        ("text", "input[1]", "an object"),
        ({"role": "tool", "content": "?"}, "input[1].role", "'tool'"),
        ({"role": "user"}, "input[1]", "no content"),
        (OUTPUT, "input[1].call_id", "send the call"),
        ({**CALL, "arguments": "{city"}, "input[1].arguments", "valid JSON"),
        ({**CALL, "arguments": "[1]"}, "input[1].arguments", "valid JSON"),
        (
            {"role": "user", "content": [{"type": "input_image", "image_url": "https://example.com/cat.png"}]},
            "input[1].content[0].type",
            "reads no images",
        ),
        ({"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}, "input[1].content[0].type", "files"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[1].content[0].text", "no text"),
    ],
)
def test_what_is_not_served_is_refused_by_its_place(item: Any, param: str, word: str) -> None:
    error = refusal([{"role": "user", "content": "Hi"}, item])
    assert error.param == param and word in error.message


def test_an_empty_input_is_refused() -> None:
    assert refusal([]).param == "input"
    assert plain([], instructions="Say hello.")[0]["role"] == "system"


def test_a_conversation_that_may_be_cut_says_where() -> None:
    body = {"input": [{"role": role, "content": "x"} for role in ("system", "user", "assistant", "user")]}
    for truncation, expected in (("auto", (1, 3)), ("disabled", ())):
        asked = RESPONSES.decode(json.dumps({**body, "truncation": truncation}).encode())
        assert translated(asked).may_begin == expected
