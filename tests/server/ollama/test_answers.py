"""Answers of ollama's API, whole and in lines."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inflight.core.types.events import Event
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.frontend.outputs import OutputCollector
from inflight.server.common.answers import ResponseBuilder
from inflight.server.common.logprobs import TokenNames
from inflight.server.common.prepared import Call
from inflight.server.errors import ApiError
from tests.server.answers import TOKENIZER, call, call_of, end, events
from tests.server.answers import whole as whole_of

ANSWER = ["<r>", "why", "</r>", "Hi", "<c>", "f", '{"a"', ": 1}", "</c>"]


def asked(kind: str, words: list[str] = ANSWER, **more: Any) -> Call:
    return call(words, kind=f"ollama_{kind}", **more)


def lines_of(one: Call, steps: list[list[Event]]) -> list[dict[str, Any]]:
    collector = OutputCollector(one.requests[0], TOKENIZER, None, True, one.parsing)
    builder = ResponseBuilder(one, {"r": collector}, TokenNames(None))
    lines = b"".join([*[builder.frames(step) for step in steps], builder.last_frames()]).decode().splitlines()
    return [json.loads(line) for line in lines]


def folded(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client puts together."""
    whole: dict[str, Any] = {"content": "", "thinking": "", "tool_calls": []}
    for line in lines:
        for name, value in line["message"].items():
            if name != "role":
                whole[name] += value
    return whole


@pytest.mark.parametrize("each", [1, 2, 9])
def test_streams_say_what_whole_answers_say_however_steps_fall(each: int) -> None:
    answer = whole_of(asked("chat"), [*events(len(ANSWER)), end()])
    message = answer["message"]
    assert (message["role"], message["content"], message["thinking"]) == ("assistant", "Hi", "why")
    (one,) = message["tool_calls"]
    assert one["function"] == {"index": 0, "name": "f", "arguments": {"a": 1}} and one["id"]
    lines = lines_of(asked("chat"), [*([one] for one in events(len(ANSWER), each=each)), [end()]])
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    streamed = folded(lines)
    assert (streamed["content"], streamed["thinking"]) == ("Hi", "why")
    assert [call["function"] for call in streamed["tool_calls"]] == [one["function"]]
    assert "tool_calls" not in lines[-1]["message"] and lines[-1]["message"]["content"] == ""


def test_arguments_of_several_lines_are_in_one() -> None:
    """Lines of JSON are read one by one."""
    words = ["<c>", "f", '{\n  "a"', ': "x y"\n}', "</c>"]
    lines = lines_of(asked("chat", words), [*([one] for one in events(len(words))), [end()]])
    (call,) = folded(lines)["tool_calls"]
    assert call["function"]["arguments"] == {"a": "x y"}


def test_counts_and_durations_are_in_the_last_line() -> None:
    for last in (
        lines_of(asked("chat", waited=0.5), [[*events(9), end()]])[-1],
        whole_of(asked("chat", waited=0.5), [*events(9), end()]),
    ):
        assert (last["done_reason"], last["prompt_eval_count"], last["eval_count"]) == ("stop", 2, 9)
        assert (last["total_duration"], last["load_duration"]) == (506_000_000, 500_000_000)
        assert (last["prompt_eval_duration"], last["eval_duration"]) == (2_000_000, 3_000_000)
        assert last["model"] == "m" and last["created_at"].endswith("Z")
    cut = lines_of(asked("chat"), [[*events(9, reason="length"), end(reason="length")]])[-1]
    assert cut["done_reason"] == "length"


def test_a_generated_answer_has_the_tokens_to_go_on_from() -> None:
    whole = whole_of(asked("generate"), [*events(9), end()])
    last = lines_of(asked("generate"), [*([one] for one in events(9)), [end()]])[-1]
    assert whole["context"] == last["context"] == [1, 2, *[65] * 9]
    assert (whole["response"], whole["thinking"], last["response"]) == ("Hi", "why", "") and "message" not in whole
    raw = call_of(Request(request_id="r", prompt_token_ids=(1, 2), params=SamplingParams()), kind="ollama_generate")
    answer = whole_of(raw, [*events(2), end()])
    assert "context" not in answer and answer["response"] == TOKENIZER.decode([65])


def test_what_the_server_has_dropped_is_in_the_answer() -> None:
    one = asked("chat", echoed=b'{"dropped_messages":3}')
    assert whole_of(one, [*events(9), end()])["dropped_messages"] == 3
    assert "dropped_messages" not in whole_of(asked("chat"), [*events(9), end()])


def test_errors_and_signs_of_life_are_lines_of_their_own() -> None:
    one = asked("chat")
    builder = ResponseBuilder(one, {"r": OutputCollector(one.requests[0], TOKENIZER)}, TokenNames(None))
    assert json.loads(builder.failed(ApiError(500, "It broke."))) == {"error": "It broke."}
    alive = json.loads(builder.alive)
    assert (alive["message"]["content"], alive["done"]) == ("", False)


def test_arguments_that_were_cut_off_stand_as_text() -> None:
    cut = ANSWER[:7]
    message = whole_of(asked("chat", cut), [*events(len(cut), reason="length"), end(reason="length")])["message"]
    assert message["tool_calls"][0]["function"]["arguments"] == {"INVALID_JSON": '{"a"'}
