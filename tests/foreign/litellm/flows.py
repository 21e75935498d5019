"""Flows of LiteLLM: by the provider names `openai`, `hosted_vllm` and `anthropic`, as people point it to a server of
their own."""

from __future__ import annotations

import asyncio
import json
import os
import time
from typing import Any, Literal

import litellm
from pydantic import BaseModel, Field

WHERE: dict[str, Any] = {"api_base": os.environ["BASE_URL"], "api_key": os.environ["API_KEY"], "max_retries": 0}


def version() -> str:
    from importlib.metadata import version

    return version("litellm")


def chat(**fields: Any) -> Any:
    return litellm.completion(**{**WHERE, **fields})


def stream_chat(**fields: Any) -> Any:
    return list(litellm.completion(stream=True, **WHERE, **fields))


def rebuild_stream(**fields: Any) -> Any:
    """Frames folded into an answer by LiteLLM itself."""
    frames = list(litellm.completion(stream=True, stream_options={"include_usage": True}, **WHERE, **fields))
    return litellm.stream_chunk_builder(frames)


async def chat_async(count: int, **fields: Any) -> Any:
    return await asyncio.gather(*(litellm.acompletion(**WHERE, **fields) for _ in range(count)))


async def stream_async(**fields: Any) -> Any:
    return [frame async for frame in await litellm.acompletion(stream=True, **WHERE, **fields)]


def complete(**fields: Any) -> Any:
    return litellm.text_completion(**WHERE, **fields)


def stream_completion(**fields: Any) -> Any:
    return list(litellm.text_completion(stream=True, **WHERE, **fields))


def many(prompts: list[list[dict[str, str]]], **fields: Any) -> Any:
    return litellm.batch_completion(messages=prompts, **WHERE, **fields)


def route(model: str, **fields: Any) -> Any:
    """Two deployments under one name, the first of which fails: the router goes on to the second."""
    deployments = [
        {"model_name": "broken", "litellm_params": {"model": model, **WHERE, "api_key": "sk-wrong"}},
        {"model_name": "whole", "litellm_params": {"model": model, **WHERE}},
    ]
    router = litellm.Router(model_list=deployments, fallbacks=[{"broken": ["whole"]}], num_retries=0)
    return router.completion(model="broken", **fields)


def batch(lines: bytes | str, endpoint: str) -> Any:
    where: dict[str, Any] = {"custom_llm_provider": "openai", **WHERE}
    content = lines.encode() if isinstance(lines, str) else lines
    file = litellm.create_file(file=("lines.jsonl", content), purpose="batch", **where)
    job = litellm.create_batch(completion_window="24h", endpoint=endpoint, input_file_id=file.id, **where)
    while job.status not in ("completed", "failed", "expired", "cancelled"):
        time.sleep(0.1)
        job = litellm.retrieve_batch(batch_id=job.id, **where)
    output = litellm.file_content(file_id=job.output_file_id, **where)
    listed = [one.id for one in litellm.list_batches(limit=10, **where).data]
    return {"job": job, "output": output.content.decode(), "listed": listed}


# -- tools and forms --------------------------------------------------------------------------------------------------

RESULTS = {"weather": "21 degrees", "inhabitants": "440 thousand people"}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
DESCRIPTIONS = {"weather": "The weather of a city.", "inhabitants": "How many live in a city."}
FUNCTIONS = [{"name": name, "description": text, "parameters": CITY} for name, text in DESCRIPTIONS.items()]
TOOLS = [{"type": "function", "function": function} for function in FUNCTIONS]
MESSAGES_TOOLS = [{"name": name, "description": text, "input_schema": CITY} for name, text in DESCRIPTIONS.items()]


class City(BaseModel):
    """The form that a model is asked for that can only guess: every field is bound, so that it comes to an end."""

    name: Literal["Bern", "Zug"]
    inhabitants: int = Field(ge=1, le=999)
    rivers: list[Literal["Aare", "Lorze"]] = Field(max_length=2)


class Report(BaseModel):
    """The weather of a city."""

    city: str
    degrees: int


def _where(model: str) -> dict[str, Any]:
    """Anthropic's paths begin behind the host."""
    return {**WHERE, "api_base": WHERE["api_base"].removesuffix("/v1")} if model.startswith("anthropic/") else WHERE


def run_tools(question: str, model: str, streams: bool) -> Any:
    """Until the model calls nothing more; its messages go back as they came, folded by LiteLLM where it streams."""
    messages: list[Any] = [{"role": "user", "content": question}]
    called = []
    while True:
        asked = {"model": model, "messages": messages, "tools": TOOLS, **_where(model)}
        answer = litellm.completion(**asked, stream=streams)
        if streams:
            answer = litellm.stream_chunk_builder(list(answer), messages=messages)
        message = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return {"called": called, "text": message.content, "reason": answer.choices[0].finish_reason}
        assert answer.choices[0].finish_reason == "tool_calls"
        for call in message.tool_calls:
            name = call.function.name
            called.append([name, json.loads(call.function.arguments)])
            messages.append({"role": "tool", "tool_call_id": call.id, "name": name, "content": RESULTS[name]})


def forced(question: str, model: str, choice: Any) -> Any:
    messages = [{"role": "user", "content": question}]
    answer = litellm.completion(model=model, messages=messages, tools=TOOLS, tool_choice=choice, **_where(model))
    calls = answer.choices[0].message.tool_calls or []
    return [[call.function.name, json.loads(call.function.arguments)] for call in calls]


def structured(model: str, kind: str, streams: bool, **fields: Any) -> Any:
    """The content, read by the class that was asked for."""
    cls = {"City": City, "Report": Report}[kind]
    answer = litellm.completion(model=model, response_format=cls, stream=streams, **_where(model), **fields)
    if streams:
        answer = litellm.stream_chunk_builder(list(answer))
    return cls.model_validate_json(answer.choices[0].message.content)


# -- Responses and Messages -------------------------------------------------------------------------------------------


def chat_over_messages(stream: bool = False, **fields: Any) -> Any:
    answer = litellm.completion(stream=stream, **_where(fields["model"]), **fields)
    return list(answer) if stream else answer


def respond(model: str, streams: bool, **fields: Any) -> Any:
    answer = litellm.responses(model=model, stream=streams, **WHERE, **fields)
    if not streams:
        return {"text": answer.output_text, "usage": answer.usage}
    events = list(answer)
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    return {"text": text, "usage": events[-1].response.usage}


def run_tools_with_responses(question: str, model: str) -> Any:
    items: list[Any] = [{"role": "user", "content": question}]
    called = []
    while True:
        tools: Any = [{"type": "function", **function} for function in FUNCTIONS]
        answer = litellm.responses(model=model, input=items, tools=tools, **WHERE)
        items += [item.model_dump() for item in answer.output]
        calls = [item for item in answer.output if item.type == "function_call"]
        if not calls:
            return {"called": called, "text": answer.output_text}
        for call in calls:
            called.append([call.name, json.loads(call.arguments)])
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": RESULTS[call.name]})


async def run_tools_with_messages(question: str, model: str) -> Any:
    """As a gateway before Anthropic's clients does it: its Messages over whatever API the provider has."""
    messages: list[Any] = [{"role": "user", "content": question}]
    called = []
    while True:
        asked = {"model": model, "messages": messages, "tools": MESSAGES_TOOLS, "max_tokens": 400, **_where(model)}
        answer = await litellm.anthropic.messages.acreate(**asked)
        messages.append({"role": "assistant", "content": answer["content"]})
        uses = [block for block in answer["content"] if block["type"] == "tool_use"]
        if answer["stop_reason"] != "tool_use":
            return {"called": called, "text": answer["content"][-1]["text"]}
        called += [[use["name"], use["input"]] for use in uses]
        results = [{"type": "tool_result", "tool_use_id": use["id"], "content": RESULTS[use["name"]]} for use in uses]
        messages.append({"role": "user", "content": results})
