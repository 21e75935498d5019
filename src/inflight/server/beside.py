"""Work on long texts is done in a thread beside the event loop, which has streams to write meanwhile.

Knows from which length on that is worth a thread; the tokenizer knows how to let other threads run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from inflight.server.bodies.chat import Message
from inflight.text.tokenizer import LONG

T = TypeVar("T")


async def beside(length: int, work: Callable[[], T]) -> T:
    """What `work` gives. length: characters or tokens that it goes through."""
    return await asyncio.to_thread(work) if length >= LONG else work()


def length_of(prompt: str | list[Any] | None, messages: list[Message] | None) -> int:
    """Characters (or token ids) of a body's prompts and messages."""
    if prompt is None:
        return sum(_characters(one) for one in messages or ())
    if isinstance(prompt, str):
        return len(prompt)
    return sum(len(one) if isinstance(one, str | list) else 1 for one in prompt)


def _characters(message: Message) -> int:
    content = message.content or ""
    return len(content) if isinstance(content, str) else sum(len(part.text) for part in content)
