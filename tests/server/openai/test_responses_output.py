"""Items and events of an output, from the parts that a parser separates."""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from inflight.frontend.parsers.answer_parser import AnswerDelta, ContentDelta, ReasoningDelta, ToolCallDelta
from inflight.server.openai.responses.answers import Output

ANSWER: list[AnswerDelta] = [
    ReasoningDelta("Let me "),
    ReasoningDelta("see."),
    ContentDelta("I look"),
    ContentDelta(" it up."),
    ToolCallDelta(0, "weather", "", "call_a"),
    ToolCallDelta(0, None, '{"city":', "call_a"),
    ToolCallDelta(0, None, '"Bern"}', "call_a"),
    ToolCallDelta(1, "time", "{}", "call_b"),
]


def pushed(deltas: list[AnswerDelta], cut_off: bool = False) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The events, and the items at the end."""
    output = Output("7")
    events = [event for delta in deltas for event in output.push(delta)]
    return events + output.finish(cut_off), output.shown()


def test_events_come_in_their_order() -> None:
    events, _ = pushed(ANSWER)
    text = ("content_part.added", *["TEXT.delta"] * 2, "TEXT.done", "content_part.done")
    expected = [
        *["output_item.added", *(one.replace("TEXT", "reasoning_text") for one in text), "output_item.done"],
        *["output_item.added", *(one.replace("TEXT", "output_text") for one in text), "output_item.done"],
        *["output_item.added", *["function_call_arguments.delta"] * 2, "function_call_arguments.done"],
        *["output_item.done", "output_item.added", "function_call_arguments.delta", "function_call_arguments.done"],
        "output_item.done",
    ]
    assert [event["type"].removeprefix("response.") for event in events] == expected


def test_the_items_are_those_of_the_events() -> None:
    events, items = pushed(ANSWER)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert items == done
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call", "function_call"]
    assert items[0]["content"] == [{"type": "reasoning_text", "text": "Let me see."}] and items[0]["summary"] == []
    assert items[1]["content"][0]["text"] == "I look it up." and items[1]["role"] == "assistant"
    assert (items[2]["name"], items[2]["call_id"], items[2]["arguments"]) == ("weather", "call_a", '{"city":"Bern"}')
    assert {item["status"] for item in items} == {"completed"}
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    assert [item["id"] for item in added] == [item["id"] for item in items]
    assert {item["status"] for item in added} == {"in_progress"} and added[2]["arguments"] == ""
    for event in events:
        if "item_id" in event:
            assert event["item_id"] == items[event["output_index"]]["id"]
    deltas = [event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta"]
    assert deltas == ['{"city":', '"Bern"}', "{}"]


def test_an_answer_that_is_cut_off_says_so_of_its_last_item() -> None:
    _, items = pushed(ANSWER[:6], cut_off=True)
    assert [item["status"] for item in items] == ["completed", "completed", "incomplete"]
    assert items[2]["arguments"] == '{"city":'
    _, thinking = pushed(ANSWER[:1], cut_off=True)
    assert [(item["type"], item["status"]) for item in thinking] == [("reasoning", "incomplete")]
    assert pushed([], cut_off=True) == ([], [])


def test_an_answer_that_says_nothing_is_an_empty_message() -> None:
    events, items = pushed([])
    assert items[0]["type"] == "message" and items[0]["content"][0]["text"] == ""
    assert [event["type"] for event in events][:2] == ["response.output_item.added", "response.content_part.added"]
    _, thought = pushed(ANSWER[:2])
    assert [item["type"] for item in thought] == ["reasoning", "message"]


def test_log_probabilities_stand_with_their_text_and_at_its_end() -> None:
    output, one, two = Output("7"), Raw(b'{"token":"a"}'), Raw(b'{"token":"b"}')
    events = [*output.push(ContentDelta("a"), [one]), *output.push(ContentDelta("b"), [two]), *output.finish(False)]
    by_type = {event["type"]: event for event in events}
    deltas = [event["logprobs"] for event in events if event["type"] == "response.output_text.delta"]
    assert deltas == [[one], [two]]
    assert by_type["response.output_text.done"]["logprobs"] == [one, two]
    assert output.shown()[0]["content"][0]["logprobs"] == [one, two]
