"""/v1/responses through OpenAI's own client, over real HTTP."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from .conftest import Server

QUESTION = "What is a KV block?"


def chat_text(client: openai.OpenAI, *messages: dict[str, str]) -> str:
    answer = client.chat.completions.create(model="built-in", messages=list(messages), temperature=0)  # type: ignore[arg-type]
    return answer.choices[0].message.content or ""


def test_an_answer_is_that_of_chat_with_what_was_asked(client: openai.OpenAI) -> None:
    response = client.responses.create(
        model="built-in", input=QUESTION, instructions="You are brief.", temperature=0, metadata={"job": "1"}
    )
    system = {"role": "system", "content": "You are brief."}
    assert response.output_text == chat_text(client, system, {"role": "user", "content": QUESTION})
    assert response.id.startswith("resp_") and response.status == "completed" and response.error is None
    assert response.instructions == "You are brief." and response.metadata == {"job": "1"}
    assert response.tools == [] and response.tool_choice == "auto" and response.temperature == 0
    assert response.model_dump()["store"] is True and response.previous_response_id is None
    usage = response.usage
    assert usage is not None and usage.total_tokens == usage.input_tokens + usage.output_tokens > 0
    assert usage.output_tokens_details.reasoning_tokens == 0 and usage.input_tokens_details.cached_tokens >= 0


def test_the_events_of_a_stream_are_in_order_and_say_the_same(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "built-in", "input": QUESTION, "temperature": 0}
    whole = client.responses.create(**asked)
    events = list(client.responses.create(**asked, stream=True))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    last = events[-1]
    assert last.type == "response.completed" and last.response.output_text == whole.output_text
    assert last.response.usage == whole.usage or last.response.usage is not None
    ids = {event.response.id for event in events if hasattr(event, "response")}
    assert len(ids) == 1 and ids.pop().startswith("resp_")


def test_the_streaming_helper_folds_them(client: openai.OpenAI) -> None:
    with client.responses.stream(model="built-in", input=QUESTION, temperature=0) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert final.output_text == chat_text(client, {"role": "user", "content": QUESTION})


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_cut_off_is_incomplete(client: openai.OpenAI, stream: bool) -> None:
    asked: dict[str, Any] = {"model": "built-in", "input": QUESTION, "max_output_tokens": 3, "stream": stream}
    answer = client.responses.create(**asked)
    if stream:
        *_, last = answer
        assert last.type == "response.incomplete"
        answer = last.response
    assert answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output[-1].status == "incomplete" and answer.usage.output_tokens == 3


def test_log_probabilities_whole_and_streamed(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {
        "model": "built-in",
        "input": QUESTION,
        "temperature": 0,
        "max_output_tokens": 6,
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
    }
    part = client.responses.create(**asked).output[0].content[0]
    assert len(part.logprobs) == 6 and all(len(one.top_logprobs) == 2 for one in part.logprobs)
    assert "".join(one.token for one in part.logprobs) == part.text
    events = list(client.responses.create(**asked, stream=True))
    deltas = [one for event in events if event.type == "response.output_text.delta" for one in event.logprobs]
    assert [one.logprob for one in deltas] == [one.logprob for one in part.logprobs]
    (done,) = [event for event in events if event.type == "response.output_text.done"]
    assert [one.token for one in done.logprobs] == [one.token for one in part.logprobs]


def test_a_history_of_its_own_items_goes_back(client: openai.OpenAI) -> None:
    first = client.responses.create(model="built-in", input=QUESTION, temperature=0)
    user, again = {"role": "user", "content": QUESTION}, {"role": "user", "content": "And a row?"}
    second = client.responses.create(
        model="built-in",
        input=[user, *first.output, again],  # type: ignore[list-item]
        temperature=0,
    )
    assistant = {"role": "assistant", "content": first.output_text}
    assert second.output_text == chat_text(client, user, assistant, again)


def test_truncation_cuts_the_beginning_of_a_conversation_that_is_too_long(client: openai.OpenAI) -> None:
    turns = [
        message
        for number in range(40)
        for message in (
            {"role": "user", "content": f"{number}: What is a KV block, and what is it good for in a server?"},
            {
                "role": "assistant",
                "content": "A KV block holds keys and values of a few tokens, so that memory is shared.",
            },
        )
    ]
    given = [{"role": "system", "content": "You are brief."}, *turns, {"role": "user", "content": QUESTION}]
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="built-in", input=given, max_output_tokens=16)  # type: ignore[arg-type]
    assert refused.value.code == "context_length_exceeded" and refused.value.param == "input"
    kept = client.responses.create(model="built-in", input=given, truncation="auto", max_output_tokens=16)  # type: ignore[arg-type]
    limit = client.models.retrieve("built-in").model_dump()["max_model_len"]
    assert kept.usage is not None and limit * 0.9 < kept.usage.input_tokens <= limit - 16
    assert kept.truncation == "auto"


def test_refusals_name_the_fields_of_this_endpoint(client: openai.OpenAI, server: Server) -> None:
    remote = {"type": "json_schema", "name": "x", "schema": {"$ref": "https://x.y/z"}}
    for fields, param in (
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"text": {"format": remote}}, "text.format"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.create(model="built-in", input="Hi", **fields)  # type: ignore[call-overload]
        assert (refused.value.param or "").startswith(param), refused.value


def test_a_batch_job_may_name_it(client: openai.OpenAI, server: Server) -> None:
    body = {"model": "built-in", "input": QUESTION, "temperature": 0}
    line = json.dumps({"custom_id": "one", "method": "POST", "url": "/v1/responses", "body": body})
    file = client.files.create(file=("lines.jsonl", line.encode()), purpose="batch")
    job = client.batches.create(input_file_id=file.id, endpoint="/v1/responses", completion_window="24h")
    assert server.settled(lambda: client.batches.retrieve(job.id).status == "completed")
    output = client.files.content(client.batches.retrieve(job.id).output_file_id or "").text
    answer = json.loads(output)["response"]["body"]
    assert answer["object"] == "response" and answer["output"][0]["content"][0]["text"]
