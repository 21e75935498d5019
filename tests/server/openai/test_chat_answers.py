"""Frames and whole answers of chat: what a client reads of content, reasoning and calls of tools."""

from __future__ import annotations

from typing import Any

from tests.server.answers import call, end, events, frames_of, whole

ANSWER = ["<r>", "why", "</r>", "Hi", "<c>", "f", "{", "}", "</c>"]


def folded(frames: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client puts together."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "calls": {}}
    for frame in frames:
        for choice in frame["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning"] += delta.get("reasoning_content") or ""
            for one in delta.get("tool_calls", ()):
                known = message["calls"].setdefault(one["index"], {"name": "", "arguments": "", "ids": set()})
                known["name"] += one["function"].get("name", "")
                known["arguments"] += one["function"]["arguments"]
                known["ids"] |= {one["id"]} if "id" in one else set()
            message["finish_reason"] = choice["finish_reason"]
    return message


def test_streams_say_what_whole_answers_say_however_steps_fall() -> None:
    taken = [*events(len(ANSWER)), end()]
    answer = whole(call(ANSWER), taken)
    message = answer["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"], message["reasoning"]) == ("Hi", "why", "why")
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
    assert answer["choices"][0]["finish_reason"] == "tool_calls"
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
    for each in (1, 2, 9):
        steps = [[one] for one in events(len(ANSWER), each=each)]
        answer = folded(frames_of(call(ANSWER), [*steps, [end()]]))
        assert (answer["content"], answer["reasoning"], answer["finish_reason"]) == ("Hi", "why", "tool_calls")
        (one,) = answer["calls"].values()
        assert (one["name"], one["arguments"], len(one["ids"])) == ("f", "{}", 1)


def test_the_reason_comes_behind_the_last_call() -> None:
    for more in ({}, {"old_functions": True}):
        frames = frames_of(call(ANSWER, **more), [events(len(ANSWER), each=9), [end()]])
        *_, called, last = (frame["choices"][0] for frame in frames if frame["choices"])
        assert called["delta"] and called["finish_reason"] is None
        assert last["delta"] == {} and last["finish_reason"] in ("tool_calls", "function_call")


def test_a_step_of_many_tokens_makes_a_frame_for_each_kind() -> None:
    frames = frames_of(call(ANSWER), [[*events(len(ANSWER), each=9), end()]])
    kinds = [set(frame["choices"][0]["delta"]) for frame in frames]
    parts = [{"reasoning_content", "reasoning"}, {"content"}, {"tool_calls"}]
    assert kinds == [{"role", "content", "refusal"}, *parts, set()]


def test_hidden_reasoning_is_counted_but_not_shown() -> None:
    one = call(ANSWER, include_reasoning=False, include_usage=True)
    frames = frames_of(one, [[event] for event in [*events(len(ANSWER)), end()]])
    assert not folded(frames)["reasoning"]
    assert frames[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"] == 2


def test_functions_are_shown_as_they_were_asked_for() -> None:
    one = call(ANSWER, old_functions=True)
    choice = whole(one, [*events(len(ANSWER)), end()])["choices"][0]
    assert choice["message"]["function_call"] == {"name": "f", "arguments": "{}"}
    assert choice["finish_reason"] == "function_call" and "tool_calls" not in choice["message"]
    frames = frames_of(call(ANSWER, old_functions=True), [[*events(len(ANSWER)), end()]])
    called = [frame["choices"][0]["delta"]["function_call"] for frame in frames if "function_call" in
              frame["choices"][0]["delta"]]  # fmt: skip
    assert called == [{"name": "f", "arguments": "{}"}]


def test_a_call_that_was_cut_off_ends_by_its_length() -> None:
    cut = ANSWER[:7]
    choice = whole(call(cut), [*events(len(cut), reason="length"), end(reason="length")])["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == "{"


def test_samples_are_parsed_separately() -> None:
    one = call(ANSWER, n=2)
    taken = [event for pair in zip(events(len(ANSWER)), events(len(ANSWER), 1), strict=True) for event in pair]
    frames = frames_of(one, [[*taken, end(2)]])
    for index in (0, 1):
        mine = [frame for frame in frames if frame["choices"][0]["index"] == index]
        assert folded(mine)["calls"][0]["arguments"] == "{}"
