"""Flows of langchain-openai."""

from __future__ import annotations

import os
from typing import Any

from langchain_openai import ChatOpenAI, OpenAI

WHERE: dict[str, Any] = {
    "base_url": os.environ["BASE_URL"],
    "api_key": os.environ["API_KEY"],
    "max_retries": 0,
}


def version() -> str:
    from importlib.metadata import version

    return version("langchain-openai")


def invoke(messages: list[Any], **settings: Any) -> Any:
    return ChatOpenAI(**{**WHERE, **settings}).invoke(messages)


def history(messages: list[Any], question: str, **settings: Any) -> Any:
    """The answer goes back as the object that it came as."""
    model = ChatOpenAI(**WHERE, **settings)
    return model.invoke([*messages, model.invoke(messages), ("human", question)])


def stream(messages: list[Any], **settings: Any) -> Any:
    return list(ChatOpenAI(**WHERE, **settings).stream(messages))


def batch(conversations: list[list[Any]], **settings: Any) -> Any:
    return ChatOpenAI(**WHERE, **settings).batch(conversations)


async def invoke_async(messages: list[Any], **settings: Any) -> Any:
    return await ChatOpenAI(**WHERE, **settings).ainvoke(messages)


async def stream_async(messages: list[Any], **settings: Any) -> Any:
    return [part async for part in ChatOpenAI(**WHERE, **settings).astream(messages)]


def chain(question: str, **settings: Any) -> str:
    from langchain_core.output_parsers import StrOutputParser
    from langchain_core.prompts import ChatPromptTemplate

    prompt = ChatPromptTemplate.from_messages([("system", "You are brief."), ("human", "{question}")])
    return (prompt | ChatOpenAI(**WHERE, **settings) | StrOutputParser()).invoke({"question": question})


def complete(prompt: str, **settings: Any) -> Any:
    return OpenAI(**WHERE, **settings).invoke(prompt)


def complete_many(prompts: list[str], **settings: Any) -> Any:
    return OpenAI(**WHERE, **settings).generate(prompts)


def stream_completion(prompt: str, **settings: Any) -> Any:
    return list(OpenAI(**WHERE, **settings).stream(prompt))
