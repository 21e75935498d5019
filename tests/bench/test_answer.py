from __future__ import annotations

import json
from array import array
from typing import Any

import pytest

from inflight.bench.answer import Answer, spread


def frame(text: str | None = None, **fields: Any) -> bytes:
    choice = {} if text is None else {"text": text}
    reason = fields.pop("finish_reason", None)
    ids = {"token_ids": fields.pop("token_ids")} if "token_ids" in fields else {}
    return json.dumps(
        {"id": "x", "choices": [{"index": 0, **choice, **ids, "finish_reason": reason}], **fields}
    ).encode()


def delta(**fields: Any) -> bytes:
    return json.dumps({"choices": [{"index": 0, "delta": fields}]}).encode()


def final(tokens: int) -> bytes:
    return json.dumps({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": tokens}}).encode()


def taken(*frames: bytes, keep: bool = False) -> Answer:
    """Frame i comes at i + 1."""
    answer = Answer(keep)
    for place, data in enumerate(frames):
        answer.take(data, place + 1.0)
    return answer


def test_a_frame_with_text_is_a_token_without_other_counts() -> None:
    answer = taken(frame("a"), frame("b"), frame("", finish_reason="stop"), b"[DONE]")
    assert list(answer.token_times()) == [1.0, 2.0]
    assert answer.done and not answer.counted and answer.problem() == ""


@pytest.mark.parametrize("first", [delta(role="assistant", content=""), delta(role="assistant"), frame("")])
def test_a_first_frame_without_text_is_no_token(first: bytes) -> None:
    assert list(taken(first, frame("a"), b"[DONE]").token_times()) == [2.0]


@pytest.mark.parametrize("name", ["content", "reasoning_content", "reasoning"])
def test_reasoning_counts_as_content_does(name: str) -> None:
    assert taken(delta(**{name: "hm"}), b"[DONE]").tokens == 1


def test_usage_in_frames_counts_their_tokens_even_without_text() -> None:
    def usage(tokens: int) -> dict[str, Any]:
        return {"usage": {"prompt_tokens": 3, "completion_tokens": tokens}}

    answer = taken(frame("", **usage(0)), frame("ab", **usage(2)), frame("", **usage(3)), final(3), b"[DONE]")
    assert list(answer.token_times()) == [2.0, 2.0, 3.0]
    assert (answer.frames, answer.prompt_tokens) == (2, 9)
    assert answer.counted


def test_token_ids_count_the_tokens_of_a_frame() -> None:
    answer = taken(
        frame("", token_ids=[]), frame("ab", token_ids=[5, 6]), frame("c", token_ids=[7]), b"[DONE]", keep=True
    )
    assert list(answer.token_times()) == [2.0, 2.0, 3.0]
    assert (answer.token_ids, answer.text, answer.counted) == ([5, 6, 7], "abc", True)


def test_the_final_usage_decides_how_many_tokens_came() -> None:
    answer = taken(frame("ab"), frame("cd"), final(4), b"[DONE]")
    assert list(answer.token_times()) == [1.0, 1.0, 2.0, 2.0]
    assert answer.counted and answer.frames == 2


@pytest.mark.parametrize("total", range(1, 12))
def test_spread_times_rise_from_the_first_that_was_seen_to_the_last(total: int) -> None:
    times = array("d", [1.0, 2.0, 3.0, 4.0])
    found = list(spread(times, total))
    assert len(found) == total and found == sorted(found) and found[0] == 1.0
    assert found[-1] == (4.0 if total > 1 else 1.0)
    if total >= len(times):
        assert set(found) == set(times)
        assert max(map(found.count, times)) - min(map(found.count, times)) <= 1


@pytest.mark.parametrize("nonsense", [-1, "many", 10**15, None, 2.5])
def test_a_number_of_tokens_that_is_none_is_not_believed(nonsense: object) -> None:
    usage = {"prompt_tokens": nonsense, "completion_tokens": nonsense}
    answer = taken(frame("a", usage=usage), frame("b", usage=usage), frame("", finish_reason="stop"))
    assert list(answer.token_times()) == [1.0, 2.0]
    assert answer.prompt_tokens is None and answer.problem() == ""


def test_cached_tokens_are_those_of_usage() -> None:
    usage = {"prompt_tokens": 8, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 6}}
    assert taken(frame("a", usage=usage)).cached_tokens == 6
    assert taken(frame("a", usage={**usage, "prompt_tokens_details": None})).cached_tokens == 0


def test_a_whole_answer_has_one_time_for_all_its_tokens() -> None:
    body = {"id": "w", "choices": [{"message": {"content": "abc"}}], "usage": {"completion_tokens": 3}}
    answer = Answer()
    answer.take_whole(json.dumps(body).encode(), 5.0)
    assert list(answer.token_times()) == []  # their times are not known
    assert (answer.first_token, answer.last_token, answer.output_tokens) == (5.0, 5.0, 3)
    assert answer.problem() == "" and answer.id == "w"


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ([frame("a")], "ended after 1 token with neither a finish_reason nor [DONE]"),
        ([frame("", finish_reason="stop"), b"[DONE]"], "has no token"),
        ([frame("a"), b'{"error": {"message": "the engine fell over"}}'], "After 1 token the server said: the engine"),
        ([b'{"object": "error", "message": "too long"}'], "After 0 tokens the server said: too long"),
        ([frame("a"), b'{"choices": ['], "no part of an answer: '{\"choices\": ['"),
        ([b"[1, 2]"], "no part of an answer"),
        ([b'{"choices": [7]}'], "no part of an answer"),
        ([b'{"choices": 7}'], "no part of an answer"),
        ([b'{"choices": [{"delta": "a"}]}'], "no part of an answer"),
        ([b'{"usage": [7], "choices": []}'], "no part of an answer"),
        ([b"[" * 100_000], "no part of an answer"),
    ],
)
def test_what_is_no_answer_is_reported_in_a_sentence(frames: list[bytes], said: str) -> None:
    assert said in taken(*frames).problem()
