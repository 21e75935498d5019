"""Open Responses: the cases of its acceptance tests over /v1/responses, and what its specification says of streams.

Answers and events are checked against its OpenAPI document. As with its own tests, fields beyond it are no mistake. A
scripted model says what the cases expect of a capable one.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import httpx
import pytest
from server.conftest import Server

from .cases import KEY, SCRIPTED_MODEL
from .documents import Judge
from .scripted import IN_SAN_FRANCISCO, THINK

pytestmark = pytest.mark.foreign
CLIENT = "api_documents"
Json = dict[str, Any]

PIXEL = "data:image/png;base64,iVBORw0KGgo="
WEATHER: Json = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location.",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}
# OpenAI's own events say which kind of reasoning they have; Open Responses has one kind, and another name.
REASONING = {"response.reasoning_text.delta", "response.reasoning_text.done"}


@cache
def judge() -> Judge:
    return Judge("open_responses", strict=False)


def message(role: str, content: Any) -> Json:
    return {"type": "message", "role": role, "content": content}


def respond(server: Server, **body: Any) -> httpx.Response:
    asked = {"model": SCRIPTED_MODEL, **body}
    return server.post("/v1/responses", asked, headers={"Authorization": f"Bearer {KEY}"})


def response(server: Server, **body: Any) -> Json:
    """Return an answer that has the form of the document, and some output."""
    answer = respond(server, **body)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    judge().check("ResponseResource", found)
    assert found["output"]
    return found


@cache
def events_schemas() -> dict[str, str]:
    """Return the schema of each type of event."""
    schemas = judge().document["components"]["schemas"]
    named = {name: schema for name, schema in schemas.items() if name.endswith("StreamingEvent")}
    return {schema["properties"]["type"]["enum"][0]: name for name, schema in named.items()}


def events(server: Server, **body: Any) -> list[Json]:
    """Return the events of a stream that has the form of the specification."""
    answer = respond(server, **body, stream=True)
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
    *blocks, last, nothing = answer.text.split("\n\n")
    assert (last, nothing) == ("data: [DONE]", "")
    found = []
    for number, block in enumerate(blocks):
        kind, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert kind == f"event: {event['type']}" and event["sequence_number"] == number
        if event["type"] not in REASONING:
            judge().check(events_schemas()[event["type"]], event)
        found.append(event)
    judge().check("ResponseResource", found[-1]["response"])
    return found


def test_a_basic_response(storing_server: Server) -> None:
    asked = [message("user", "Say hello in exactly 3 words.")]
    assert response(storing_server, input=asked)["status"] == "completed"


def test_a_streamed_response(storing_server: Server) -> None:
    received = events(storing_server, input=[message("user", "Count from 1 to 5.")])
    kinds = [event["type"].removeprefix("response.") for event in received]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert {*kinds[4:-4]} == {"output_text.delta"}
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert received[-1]["response"]["status"] == "completed"
    whole = "".join(event["delta"] for event in received if event["type"] == "response.output_text.delta")
    assert whole == received[-1]["response"]["output"][0]["content"][0]["text"]


def test_a_system_prompt(storing_server: Server) -> None:
    asked = [message("system", "You are a pirate."), message("user", "Say hello.")]
    assert response(storing_server, input=asked)["status"] == "completed"


def test_a_tool_is_called(storing_server: Server) -> None:
    answer = response(storing_server, input=[message("user", IN_SAN_FRANCISCO)], tools=[WEATHER])
    (call,) = [item for item in answer["output"] if item["type"] == "function_call"]
    assert call["name"] == "get_weather" and json.loads(call["arguments"])["location"].startswith("San Francisco")


def test_a_tool_is_called_in_a_stream(storing_server: Server) -> None:
    received = events(storing_server, input=[message("user", IN_SAN_FRANCISCO)], tools=[WEATHER])
    kinds = [event["type"] for event in received]
    items = {(event["type"], event["item"]["type"]) for event in received if "item" in event}
    assert {(f"response.output_item.{state}", "function_call") for state in ("added", "done")} <= items
    arguments = "".join(
        event["delta"] for event in received if event["type"] == "response.function_call_arguments.delta"
    )
    (done,) = [event for event in received if event["type"] == "response.function_call_arguments.done"]
    assert arguments == done["arguments"] and kinds[-1] == "response.completed"


def test_a_call_and_its_output(storing_server: Server) -> None:
    asked = f"{IN_SAN_FRANCISCO} Use the tool."
    chosen = {"type": "function", "name": "get_weather"}
    first = response(storing_server, input=asked, tools=[WEATHER], tool_choice=chosen)
    (call,) = [item for item in first["output"] if item["type"] == "function_call"]
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "64 degrees and clear"}
    second = response(storing_server, previous_response_id=first["id"], input=[output])
    assert second["status"] == "completed" and second["previous_response_id"] == first["id"]


def test_several_turns(storing_server: Server) -> None:
    turns = ("user", "My name is Alice."), ("assistant", "Hello Alice!"), ("user", "What is my name?")
    assert response(storing_server, input=[message(*turn) for turn in turns])["status"] == "completed"


def test_a_previous_response(storing_server: Server) -> None:
    first = response(storing_server, input="Remember this code word: papaya.")
    second = response(storing_server, previous_response_id=first["id"], input="Which code word?")
    assert second["status"] == "completed" and second["usage"]["input_tokens"] > first["usage"]["input_tokens"]


def test_reasoning_is_an_item_of_its_own(storing_server: Server) -> None:
    assert [item["type"] for item in response(storing_server, input=THINK)["output"]] == ["reasoning", "message"]
    received = events(storing_server, input=THINK)
    assert {event["type"] for event in received} >= REASONING


PARTS: dict[str, Json] = {
    "image": {"type": "input_image", "image_url": PIXEL},
    "file": {"type": "input_file", "filename": "report.pdf", "file_data": "data:application/pdf;base64,JVBERi0xLjEK"},
    "video": {"type": "input_video", "video_url": "https://example.com/film.mp4"},
}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_no_text_is_refused_by_its_index_and_type(storing_server: Server, part: Json, stream: bool) -> None:
    """A server of text models cannot pass these cases; it says so before anything is computed."""
    asked = [message("user", [{"type": "input_text", "text": "What is this?"}, part])]
    answer = respond(storing_server, input=asked, stream=stream)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["type"] == "invalid_request_error"
    assert error["param"].startswith("input[0].content[1]") and part["type"] in error["message"]
    judge().check("ErrorPayload", error)


HOSTED: dict[str, Json] = {
    "file search": {"type": "file_search", "vector_store_ids": ["vs_1"]},
    "web search": {"type": "web_search", "external_web_access": False},
}


@pytest.mark.parametrize("tool", HOSTED.values(), ids=HOSTED)
def test_tools_that_a_provider_runs_are_refused_by_their_type(storing_server: Server, tool: Json) -> None:
    """Its tests of them are optional."""
    answer = respond(storing_server, input="Find something.", tools=[tool], tool_choice={"type": tool["type"]})
    error = answer.json()["error"]
    assert answer.status_code == 400 and tool["type"] in error["message"]
    judge().check("ErrorPayload", error)
