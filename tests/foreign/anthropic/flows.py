"""Flows of Anthropic's client for Python."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Literal

import anthropic
from pydantic import BaseModel

WHERE: dict[str, Any] = {"base_url": os.environ["BASE_URL"].removesuffix("/v1"), "max_retries": 0}
KEY = os.environ["API_KEY"]
client = anthropic.Anthropic(api_key=KEY, **WHERE)
TOOLS: list[Any] = [
    {
        "name": name,
        "description": description,
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
    for name, description in (("weather", "The weather of a city."), ("inhabitants", "How many live in a city."))
]
RESULTS = {"weather": "21 degrees", "inhabitants": "440 thousand people"}


class City(BaseModel):
    """The form that a model is asked for that can only guess: every field is bound, so that it comes to an end."""

    name: Literal["Bern", "Zug"]
    large: bool
    rivers: list[Literal["Aare", "Lorze"]]


def version() -> str:
    return anthropic.__version__


def models() -> Any:
    return [model.id for model in client.models.list()]


def create(**fields: Any) -> Any:
    return client.messages.create(**fields)


def create_with_key(key: str, **fields: Any) -> Any:
    return anthropic.Anthropic(api_key=key, **WHERE).messages.create(**fields)


def create_with_token(**fields: Any) -> Any:
    """The key as a bearer token, as gateways want it."""
    return anthropic.Anthropic(api_key=None, auth_token=KEY, **WHERE).messages.create(**fields)


def create_within(seconds: float, **fields: Any) -> Any:
    return client.with_options(timeout=seconds).messages.create(**fields)


def stream(**fields: Any) -> Any:
    return list(client.messages.create(stream=True, **fields))


def stream_with_helper(**fields: Any) -> Any:
    """The helper that folds events, and raises where they are out of order."""
    with client.messages.stream(**fields) as events:
        kinds = [event.type for event in events]
        return {"kinds": kinds, "whole": events.get_final_message()}


def stream_text(**fields: Any) -> Any:
    with client.messages.stream(**fields) as events:
        return "".join(events.text_stream)


def leave_a_stream(events: int, **fields: Any) -> int:
    with client.messages.stream(**fields) as stream:
        return len([event for event, _ in zip(stream, range(events), strict=False)])


async def create_async(count: int, **fields: Any) -> Any:
    async with anthropic.AsyncAnthropic(api_key=KEY, **WHERE) as many:
        return await asyncio.gather(*(many.messages.create(**fields) for _ in range(count)))


async def stream_async(**fields: Any) -> Any:
    async with (
        anthropic.AsyncAnthropic(api_key=KEY, **WHERE) as one,
        one.messages.stream(**fields) as events,
    ):
        return "".join([text async for text in events.text_stream])


def count(**fields: Any) -> int:
    return client.messages.count_tokens(**fields).input_tokens


def request_id(**fields: Any) -> Any:
    return client.messages.create(**fields)._request_id


def run_tools(question: str, stream: bool, **fields: Any) -> Any:
    """Until the model calls nothing more; its content goes back as the client's classes have it."""
    messages: list[Any] = [{"role": "user", "content": question}]
    called = []
    while True:
        if stream:
            with client.messages.stream(messages=messages, tools=TOOLS, **fields) as events:
                answer = events.get_final_message()
        else:
            answer = client.messages.create(messages=messages, tools=TOOLS, **fields)
        messages.append({"role": "assistant", "content": answer.content})
        uses = [block for block in answer.content if block.type == "tool_use"]
        if answer.stop_reason != "tool_use":
            return {"called": called, "text": answer.content[-1].text, "kinds": [one.type for one in answer.content]}
        called += [[use.name, use.input] for use in uses]
        results = [{"type": "tool_result", "tool_use_id": use.id, "content": RESULTS[use.name]} for use in uses]
        messages.append({"role": "user", "content": results})


def run_tools_with_runner(question: str, stream: bool, **fields: Any) -> Any:
    """The client runs functions of ours by itself."""
    called: list[Any] = []

    @anthropic.beta_tool
    def weather(city: str) -> str:
        """The weather of a city.

        Args:
            city: Its name.
        """
        called.append(["weather", {"city": city}])
        return RESULTS["weather"]

    @anthropic.beta_tool
    def inhabitants(city: str) -> str:
        """How many live in a city."""
        called.append(["inhabitants", {"city": city}])
        return RESULTS["inhabitants"]

    asked: dict[str, Any] = {"messages": [{"role": "user", "content": question}], "tools": [weather, inhabitants]}
    runner = client.beta.messages.tool_runner(stream=stream, **asked, **fields)
    last = runner.until_done()
    return {"called": called, "text": last.content[-1].text}


def forced(choice: Any, **fields: Any) -> Any:
    answer = client.messages.create(tools=TOOLS, tool_choice=choice, **fields)
    return [[block.name, block.input] for block in answer.content if block.type == "tool_use"]


def parse(**fields: Any) -> Any:
    answer = client.messages.parse(output_format=City, **fields)
    return {"parsed": answer.parsed_output, "content": answer.content[-1].text}


def stream_parsed(**fields: Any) -> Any:
    with client.messages.stream(output_format=City, **fields) as events:
        return {"parsed": events.get_final_message().parsed_output}
