"""Flows of ollama's client for Python."""

from __future__ import annotations

import asyncio
import os
from typing import Any, Literal

import ollama
from pydantic import BaseModel

HOST = os.environ["BASE_URL"].removesuffix("/v1")
HEADERS = {"Authorization": f"Bearer {os.environ['API_KEY']}"}
client = ollama.Client(host=HOST, headers=HEADERS)


class City(BaseModel):
    """An answer of a model that can only guess: every field is bound, so that it comes to an end."""

    name: Literal["Bern", "Zug"]
    large: bool


def weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: Its name.
    """
    return "21 degrees"


def inhabitants(city: str) -> str:
    """How many live in a city.

    Args:
        city: Its name.
    """
    return "440 thousand people"


TOOLS = {"weather": weather, "inhabitants": inhabitants}


def models() -> Any:
    return client.list()


def loaded() -> Any:
    return client.ps()


def show(model: str) -> Any:
    return client.show(model)


def chat(**fields: Any) -> Any:
    return client.chat(**fields)


def chat_with_key(key: str, **fields: Any) -> Any:
    return ollama.Client(host=HOST, headers={"Authorization": f"Bearer {key}"}).chat(**fields)


def stream_chat(**fields: Any) -> Any:
    return list(client.chat(stream=True, **fields))


def leave_a_stream(parts: int, **fields: Any) -> int:
    stream = client.chat(stream=True, **fields)
    return len([part for part, _ in zip(stream, range(parts), strict=False)])


async def chat_async(count: int, **fields: Any) -> Any:
    many = ollama.AsyncClient(host=HOST, headers=HEADERS)
    return await asyncio.gather(*(many.chat(**fields) for _ in range(count)))


def generate(**fields: Any) -> Any:
    return client.generate(**fields)


def stream_generate(**fields: Any) -> Any:
    return list(client.generate(stream=True, **fields))


def embed(**fields: Any) -> Any:
    return client.embed(**fields)


def embeddings(**fields: Any) -> Any:
    return client.embeddings(**fields)


def typed(**fields: Any) -> Any:
    answer = client.chat(format=City.model_json_schema(), **fields)
    return City.model_validate_json(answer.message.content or "")


def run_tools(question: str, model: str, think: bool | None = None) -> Any:
    """The loop of the client's own examples: results have a tool's name, and no ids."""
    messages: list[Any] = [{"role": "user", "content": question}]
    called, thoughts = [], []
    while True:
        answer = client.chat(model=model, messages=messages, tools=[*TOOLS.values()], think=think)
        messages.append(answer.message)
        if answer.message.thinking:
            thoughts.append(answer.message.thinking)
        if not answer.message.tool_calls:
            return {"called": called, "text": answer.message.content, "thoughts": thoughts}
        for call in answer.message.tool_calls:
            called.append([call.function.name, dict(call.function.arguments)])
            result = TOOLS[call.function.name](**call.function.arguments)
            messages.append({"role": "tool", "tool_name": call.function.name, "content": result})


def run_as_home_assistant_does(question: str, model: str) -> Any:
    """Streams with schemas as tools; results with neither name nor id, as JSON."""
    tools = [
        {"type": "function", "function": {"name": name, "description": str(one.__doc__), "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
        for name, one in TOOLS.items()
    ]  # fmt: skip
    messages = [
        ollama.Message(role="system", content="You control a house."),
        ollama.Message(role="user", content=question),
    ]
    called, text = [], ""
    for _ in range(10):
        calls: list[Any] = []
        text = ""
        options = {"num_ctx": 8192}
        for part in client.chat(
            model=model, messages=messages, tools=tools, stream=True, keep_alive=-1, options=options, think=False
        ):
            calls += part.message.tool_calls or ()
            text += part.message.content or ""
        messages.append(ollama.Message(role="assistant", content=text, tool_calls=calls or None))
        if not calls:
            return {"called": called, "text": text}
        for call in calls:
            called.append([call.function.name, dict(call.function.arguments)])
            messages.append(ollama.Message(role="tool", content=TOOLS[call.function.name]("")))
    raise AssertionError("it never came to an end")


def pull(model: str) -> Any:
    return list(client.pull(model, stream=True))


def delete(model: str) -> Any:
    return client.delete(model)
