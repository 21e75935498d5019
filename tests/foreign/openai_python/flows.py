"""Flows of OpenAI's client for Python."""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import Any, Literal

import openai
from pydantic import BaseModel, Field

URL, KEY = os.environ["BASE_URL"], os.environ["API_KEY"]
client = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0)


def version() -> str:
    return openai.__version__


def models() -> Any:
    return [model for model in client.models.list()]


def model(name: str) -> Any:
    return client.models.retrieve(name)


def complete(**fields: Any) -> Any:
    return client.completions.create(**fields)


def stream_completion(**fields: Any) -> Any:
    return list(client.completions.create(stream=True, **fields))


def chat(**fields: Any) -> Any:
    return client.chat.completions.create(**fields)


def stream_chat(**fields: Any) -> Any:
    return list(client.chat.completions.create(stream=True, **fields))


def stream_chat_with_helper(**fields: Any) -> Any:
    """The helper that folds frames; it asks for no more than create does."""
    with client.chat.completions.stream(**fields) as stream:
        kinds = [event.type for event in stream]
        return {"kinds": kinds, "whole": stream.get_final_completion()}


def respond(**fields: Any) -> Any:
    answer = client.responses.create(**fields)
    return {"text": answer.output_text, "whole": answer}


def stream_response(**fields: Any) -> Any:
    return list(client.responses.create(stream=True, **fields))


def stream_response_with_helper(**fields: Any) -> Any:
    """The helper that folds events, and raises where they are out of order."""
    with client.responses.stream(**fields) as stream:
        kinds = [event.type for event in stream]
        return {"kinds": kinds, "text": stream.get_final_response().output_text}


def go_on_with_its_items(question: str, **fields: Any) -> Any:
    """The output of an answer goes back as the client's classes have it."""
    first = client.responses.create(**fields)
    said = [{"role": "user", "content": fields["input"]}, *first.output, {"role": "user", "content": question}]
    return {"first": first.output_text, "second": client.responses.create(**{**fields, "input": said}).output_text}


class City(BaseModel):
    """The form that a model is asked for that can only guess: every field is bound, so that it comes to an end."""

    name: Literal["Bern", "Zug"]
    inhabitants: int = Field(ge=1, le=999)
    rivers: list[Literal["Aare", "Lorze"]] = Field(max_length=2)


class Weather(BaseModel):
    """The weather of a city."""

    city: str


TOOLS: list[Any] = [
    openai.pydantic_function_tool(Weather, name="weather"),
    {
        "type": "function",
        "function": {
            "name": "inhabitants",
            "description": "How many live in a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    },
]
RESULTS = {"weather": "21 degrees", "inhabitants": "440 thousand people"}


def parse_chat(**fields: Any) -> Any:
    choice = client.chat.completions.parse(response_format=City, **fields).choices[0]
    return {"parsed": choice.message.parsed, "content": choice.message.content, "ended": choice.finish_reason}


def parse_response(**fields: Any) -> Any:
    answer = client.responses.parse(text_format=City, **fields)
    return {"parsed": answer.output_parsed, "content": answer.output_text}


def stream_parsed_chat(**fields: Any) -> Any:
    """The helper yields the object while it grows."""
    with client.chat.completions.stream(response_format=City, **fields) as stream:
        grown = [event.parsed for event in stream if event.type == "content.delta"]
        return {"grown": grown, "parsed": stream.get_final_completion().choices[0].message.parsed}


def stream_parsed_response(**fields: Any) -> Any:
    with client.responses.stream(text_format=City, **fields) as stream:
        kinds = [event.type for event in stream]
        return {"kinds": kinds, "parsed": stream.get_final_response().output_parsed}


def _run_tools(ask: Any, question: str, **fields: Any) -> Any:
    """Until the model calls nothing more. ask: a message of an answer to messages."""
    messages: list[Any] = [{"role": "user", "content": question}]
    called = []
    while True:
        message = ask(messages=messages, tools=TOOLS, **fields)
        messages.append(message)
        if not message.tool_calls:
            return {"called": called, "text": message.content, "messages": len(messages)}
        for call in message.tool_calls:
            called.append([call.function.name, json.loads(call.function.arguments)])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": RESULTS[call.function.name]})


def run_tools(question: str, **fields: Any) -> Any:
    return _run_tools(lambda **asked: client.chat.completions.create(**asked).choices[0].message, question, **fields)


def run_parsed_tools(question: str, **fields: Any) -> Any:
    """`parse` makes arguments the tool's own class."""

    def ask(tools: Any, **asked: Any) -> Any:
        message = client.chat.completions.parse(tools=tools[:1], **asked).choices[0].message
        for call in message.tool_calls or ():
            assert isinstance(call.function.parsed_arguments, Weather)
        return message

    return _run_tools(ask, question, **fields)


def run_streamed_tools(question: str, **fields: Any) -> Any:
    """Frames are folded by the client's helper."""
    kinds = set()

    def ask(**asked: Any) -> Any:
        with client.chat.completions.stream(**{**asked, "tools": asked["tools"][:1]}) as stream:
            kinds.update(event.type for event in stream)
            return stream.get_final_completion().choices[0].message

    return {**_run_tools(ask, question, **fields), "kinds": sorted(kinds)}


def run_response_tools(question: str, stream: bool, **fields: Any) -> Any:
    """The same over items: an answer's output goes back as it came."""
    tools = [
        openai.pydantic_function_tool(Weather, name="weather")["function"] | {"type": "function"},
        {"type": "function", **TOOLS[1]["function"], "strict": False},
    ]
    said: list[Any] = [{"role": "user", "content": question}]
    called, kinds = [], set()
    while True:
        if stream:
            with client.responses.stream(input=said, tools=tools, **fields) as events:
                kinds.update(event.type for event in events)
                answer = events.get_final_response()
        else:
            answer = client.responses.create(input=said, tools=tools, **fields)
        said += answer.output
        calls = [item for item in answer.output if item.type == "function_call"]
        if not calls:
            return {"called": called, "text": answer.output_text, "kinds": sorted(kinds)}
        for call in calls:
            called.append([call.name, json.loads(call.arguments)])
            output = {"type": "function_call_output", "call_id": call.call_id, "output": RESULTS[call.name]}
            said.append(output)


def forced(choice: Any, **fields: Any) -> Any:
    message = client.chat.completions.create(tools=TOOLS, tool_choice=choice, **fields).choices[0].message
    return [[call.function.name, json.loads(call.function.arguments)] for call in message.tool_calls or ()]


def raw_headers(**fields: Any) -> Any:
    answer = client.chat.completions.with_raw_response.create(**fields)
    return {"headers": dict(answer.headers), "request_id": answer.parse()._request_id}


async def chat_async(count: int, url: str = URL, max_retries: int = 0, **fields: Any) -> Any:
    async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=max_retries) as many:
        return await asyncio.gather(*(many.chat.completions.create(**fields) for _ in range(count)))


async def stream_async(**fields: Any) -> Any:
    async with openai.AsyncOpenAI(base_url=URL, api_key=KEY, max_retries=0) as one:
        return [frame async for frame in await one.chat.completions.create(stream=True, **fields)]


def chat_with_key(key: str, **fields: Any) -> Any:
    return openai.OpenAI(base_url=URL, api_key=key, max_retries=0).chat.completions.create(**fields)


def chat_within(seconds: float, **fields: Any) -> Any:
    return client.with_options(timeout=seconds).chat.completions.create(**fields)


def leave_a_stream(frames: int, **fields: Any) -> Any:
    stream = client.chat.completions.create(stream=True, **fields)
    taken = [next(stream) for _ in range(frames)]
    stream.close()
    return len(taken)


def batch(lines: str, endpoint: str) -> Any:
    file = client.files.create(file=("lines.jsonl", lines.encode()), purpose="batch")
    job = client.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", metadata={"who": "foreign"}
    )
    while job.status not in ("completed", "failed", "expired", "cancelled"):
        time.sleep(0.1)
        job = client.batches.retrieve(job.id)
    listed = [one.id for one in client.batches.list(limit=10)]
    outputs = {
        name: client.files.content(file_id).text
        for name, file_id in (("output", job.output_file_id), ("error", job.error_file_id))
        if file_id
    }
    deleted = client.files.delete(file.id)
    return {"file": file, "job": job, "listed": listed, "deleted": deleted, **outputs}


def cancel_batch(lines: str, endpoint: str) -> Any:
    file = client.files.create(file=("lines.jsonl", lines.encode()), purpose="batch")
    job = client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")
    client.batches.cancel(job.id)
    while job.status != "cancelled":
        time.sleep(0.1)
        job = client.batches.retrieve(job.id)
    return job
