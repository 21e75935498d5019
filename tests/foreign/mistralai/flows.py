"""Flows of Mistral's client."""

from __future__ import annotations

import os
from typing import Any

from mistralai.client import Mistral

URL = os.environ["BASE_URL"].removesuffix("/v1")


def version() -> str:
    from importlib.metadata import version

    return version("mistralai")


def _client() -> Mistral:
    return Mistral(api_key=os.environ["API_KEY"], server_url=URL)


def chat(**fields: Any) -> Any:
    with _client() as client:
        answer = client.chat.complete(**fields)
        [choice] = answer.choices
        return {"text": choice.message.content, "reason": choice.finish_reason, "tokens": answer.usage.total_tokens}


def stream(**fields: Any) -> list[str]:
    with _client() as client:
        return [
            event.data.choices[0].delta.content or "" for event in client.chat.stream(**fields) if event.data.choices
        ]


def called(**fields: Any) -> Any:
    """Return the calls of an answer."""
    with _client() as client:
        [choice] = client.chat.complete(**fields).choices
        return [[one.function.name, one.function.arguments] for one in choice.message.tool_calls or []]


def fill(**fields: Any) -> Any:
    with _client() as client:
        [choice] = client.fim.complete(**fields).choices
        return {"text": choice.message.content, "reason": choice.finish_reason}


def fill_streamed(**fields: Any) -> list[str]:
    with _client() as client:
        return [event.data.choices[0].delta.content or "" for event in client.fim.stream(**fields)]
