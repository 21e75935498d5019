"""Messages whole and in events, from changes as the builder folds them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from inflight.core.types.events import Finish
from inflight.core.types.sampling import SamplingParams
from inflight.frontend.outputs import OutputCollector
from inflight.frontend.parsers.answer_parser import AnswerDelta, ContentDelta, ReasoningDelta, ToolCallDelta
from inflight.server.anthropic.messages.answers import MessagesSerializer, content_block
from inflight.server.common.answers import TokenUsage
from inflight.server.common.logprobs import encode
from inflight.server.errors import ApiError
from tests.server.answers import SOME_USAGE, named_events, serializer_of, stream_of

ALL: list[AnswerDelta] = [
    ReasoningDelta("Hm"),
    ReasoningDelta("."),
    ContentDelta("So"),
    ToolCallDelta(0, "f", '{"a"', "call_1"),
    ToolCallDelta(0, None, ": 1}", "call_1"),
    ToolCallDelta(1, "g", "", "call_2"),
]

UNUSED = {"stop_details": None, "container": None}


def serializer(**fields: Any) -> tuple[MessagesSerializer, OutputCollector]:
    params = SamplingParams(max_tokens=5)
    return serializer_of(MessagesSerializer, params, kind="messages", call_id="msg_r", **fields)


def streamed(
    deltas: list[AnswerDelta], finish: Finish, usage: TokenUsage = SOME_USAGE, **fields: Any
) -> list[dict[str, Any]]:
    return stream_of(*serializer(**fields), deltas, finish, usage)


def test_a_stream_of_all_kinds_of_blocks() -> None:
    sent = streamed(ALL, Finish("stop"))
    start, *middle, last, stop = sent
    assert start["message"]["id"] == "msg_r" and start["message"]["content"] == []
    assert start["message"]["stop_reason"] is None and start["message"]["usage"]["input_tokens"] == 7
    assert [(one["type"].removeprefix("content_block_"), one["index"]) for one in middle] == [
        *[("start", 0), ("delta", 0), ("delta", 0), ("delta", 0), ("stop", 0)],
        *[("start", 1), ("delta", 1), ("stop", 1)],
        *[("start", 2), ("delta", 2), ("delta", 2), ("stop", 2)],
        *[("start", 3), ("stop", 3)],
    ]
    kinds = [one["delta"]["type"] for one in middle if "delta" in one]
    assert kinds == [*["thinking_delta"] * 2, "signature_delta", "text_delta", *["input_json_delta"] * 2]
    assert middle[8]["content_block"] == {
        "type": "tool_use",
        "id": "call_1",
        "name": "f",
        "input": {},
        "caller": {"type": "direct"},
    }
    assert last["delta"] == {"stop_reason": "tool_use", "stop_sequence": None, **UNUSED}
    assert last["usage"] == {
        "input_tokens": 3,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 5,
        "output_tokens_details": {"thinking_tokens": 2},
        "server_tool_use": None,
    }
    assert stop == {"type": "message_stop"}


@pytest.mark.parametrize(
    ("finish", "output_tokens", "reason", "sequence"),
    [
        (Finish("stop", 2), 3, "end_turn", None),
        (Finish("stop", "."), 3, "stop_sequence", "."),
        (Finish("length"), 5, "max_tokens", None),
        (Finish("length"), 4, "model_context_window_exceeded", None),
    ],
)
def test_why_it_stopped(finish: Finish, output_tokens: int, reason: str, sequence: str | None) -> None:
    *_, last, _ = streamed([ContentDelta("So")], finish, TokenUsage(7, output_tokens))
    assert last["delta"] == {"stop_reason": reason, "stop_sequence": sequence, **UNUSED}


def test_an_answer_without_a_word_has_no_blocks() -> None:
    assert [one["type"] for one in streamed([], Finish("stop"))] == ["message_start", "message_delta", "message_stop"]


def test_thinking_that_is_left_out_is_still_a_block() -> None:
    sent = streamed([ReasoningDelta("Hm."), ContentDelta("So")], Finish("stop"), include_reasoning=False)
    kinds = [one["delta"]["type"] for one in sent if one["type"] == "content_block_delta"]
    assert kinds == ["signature_delta", "text_delta"]
    block = msgspec.to_builtins(content_block(ReasoningDelta("Hm."), False))
    assert block == {"type": "thinking", "thinking": "", "signature": "unsigned"}


def test_inputs_are_objects_whatever_the_model_wrote() -> None:
    written = ['{"a": 1.50}', "", '{"a": ', "[1]"]
    deltas: list[AnswerDelta] = [ToolCallDelta(index, "f", one, "c") for index, one in enumerate(written)]
    inputs = [one["input"] for one in json.loads(encode([content_block(delta, True) for delta in deltas]))]
    assert inputs == [{"a": 1.5}, {}, {"INVALID_JSON": '{"a": '}, {"INVALID_JSON": "[1]"}]


def test_life_and_errors_within_a_stream() -> None:
    writer, _ = serializer()
    assert named_events(writer.alive) == [{"type": "ping"}]
    error = ApiError(503, "The server was shut down.", type="server_error", code="draining")
    (sent,) = named_events(writer.failed(error))
    assert sent["type"] == "error" and sent["error"]["type"] == "overloaded_error"
    assert sent["error"]["message"] == "The server was shut down."
