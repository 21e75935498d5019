"""Requests of all clients, and what the server says to it without any client."""

from __future__ import annotations

import json
from typing import Any

from server.conftest import Server

KEY = "sk-foreign"
MODEL = "built-in"
SCRIPTED_MODEL = "scripted"
QUESTION = "What is a KV block?"
USER = {"role": "user", "content": QUESTION}
MESSAGES = [{"role": "system", "content": "You are brief."}, USER]
TEXT = "Continuous batching decides at every step"
TOO_LONG = "A block of keys. " * 2000  # thousands of tokens for a model of 1,024


def plain_chat(server: Server, messages: list[dict[str, str]] = MESSAGES, **fields: Any) -> str:
    """The text of the answer at temperature 0, asked over plain HTTP."""
    body = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 16, **fields}
    answer = server.post("/v1/chat/completions", body, headers={"Authorization": f"Bearer {KEY}"}).json()
    text: str = answer["choices"][0]["message"]["content"]
    return text


def plain_completion(server: Server, prompt: str = TEXT, **fields: Any) -> str:
    body = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 16, **fields}
    answer = server.post("/v1/completions", body, headers={"Authorization": f"Bearer {KEY}"}).json()
    text: str = answer["choices"][0]["text"]
    return text


def batch_lines(count: int, max_tokens: int = 16) -> str:
    body = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": max_tokens}
    lines = (
        {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for number in range(count)
    )
    return "".join(json.dumps(line) + "\n" for line in lines)
