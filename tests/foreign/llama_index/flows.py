"""Flows of LlamaIndex' OpenAILike."""

from __future__ import annotations

import os
from typing import Any

from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

WHERE: dict[str, Any] = {
    "api_base": os.environ["BASE_URL"],
    "api_key": os.environ["API_KEY"],
    "max_retries": 0,
    "context_window": 1024,
}


def version() -> str:
    from importlib.metadata import version

    return version("llama-index-llms-openai-like")


def _messages(messages: list[dict[str, str]]) -> list[ChatMessage]:
    return [ChatMessage(role=one["role"], content=one["content"]) for one in messages]


def _told(answer: Any) -> dict[str, Any]:
    return {"text": answer.message.content, "additional": dict(answer.additional_kwargs), "logprobs": answer.logprobs}


def chat(messages: list[dict[str, str]], **settings: Any) -> Any:
    return _told(OpenAILike(is_chat_model=True, **{**WHERE, **settings}).chat(_messages(messages)))


def history(messages: list[dict[str, str]], question: str, **settings: Any) -> Any:
    """The answer's message goes back as the object that it came as."""
    model = OpenAILike(is_chat_model=True, **WHERE, **settings)
    first = model.chat(_messages(messages)).message
    again = [*_messages(messages), first, ChatMessage(role="user", content=question)]
    return {"first": first.content, **_told(model.chat(again))}


def stream_chat(messages: list[dict[str, str]], **settings: Any) -> Any:
    return [part.delta for part in OpenAILike(is_chat_model=True, **WHERE, **settings).stream_chat(_messages(messages))]


async def chat_async(messages: list[dict[str, str]], **settings: Any) -> Any:
    return _told(await OpenAILike(is_chat_model=True, **WHERE, **settings).achat(_messages(messages)))


async def stream_chat_async(messages: list[dict[str, str]], **settings: Any) -> Any:
    stream = await OpenAILike(is_chat_model=True, **WHERE, **settings).astream_chat(_messages(messages))
    return [part.delta async for part in stream]


def complete(prompt: str, **settings: Any) -> Any:
    answer = OpenAILike(**WHERE, **settings).complete(prompt)
    return {"text": answer.text, "additional": dict(answer.additional_kwargs)}


def stream_completion(prompt: str, **settings: Any) -> Any:
    return [part.delta for part in OpenAILike(**WHERE, **settings).stream_complete(prompt)]


async def complete_async(prompt: str, **settings: Any) -> Any:
    return (await OpenAILike(**WHERE, **settings).acomplete(prompt)).text
