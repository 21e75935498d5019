"""Long texts are no work for the event loop's thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

import inflight
from inflight.server.beside import beside, length_of
from inflight.server.bodies.chat import Message
from inflight.server.endpoints.models import model_routes
from inflight.text import Tokenizer
from inflight.text.tokenizer import LONG


def test_a_thread_from_a_length_on() -> None:
    async def where(length: int) -> int:
        return await beside(length, threading.get_ident)

    here = threading.get_ident()
    assert asyncio.run(where(LONG - 1)) == here
    assert asyncio.run(where(LONG)) != here


def test_the_length_of_a_body_is_that_of_all_its_texts() -> None:
    parts = [{"type": "text", "text": "12"}, {"type": "text", "text": "345"}]
    messages = [{"role": "user", "content": parts}, {"role": "user", "content": "6"}, {"role": "assistant"}]
    assert length_of(None, [Message.model_validate(one) for one in messages]) == 6
    assert [length_of(one, None) for one in ("abc", ["ab", "c"], [7, 8, 9], [[7], [8, 9]], "")] == [3, 3, 3, 3, 0]


@pytest.fixture
def used() -> Iterator[tuple[FastAPI, list[int]]]:
    """The routes over the built-in model's tokenizer, and the threads in which it was used."""
    tokenizer = Tokenizer.load(Path(inflight.__file__).parent / "builtin_model")
    threads: list[int] = []

    class Watched:
        def __getattr__(self, name: str) -> Any:
            threads.append(threading.get_ident())
            return getattr(tokenizer, name)

    asker = SimpleNamespace(check_model=lambda name: name, models=("m",))
    service: Any = SimpleNamespace(served=SimpleNamespace(tokenizer=Watched(), asker=asker, max_model_len=9))
    app = FastAPI()
    app.include_router(model_routes(service, lambda: None))  # type: ignore[arg-type, return-value]
    yield app, threads


@pytest.mark.parametrize("length", [10, 5 * LONG])
def test_tokenizing_and_its_reverse(used: tuple[FastAPI, list[int]], length: int) -> None:
    app, threads = used
    text = "x, " * length

    async def ask() -> str:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            tokens = (await client.post("/tokenize", json={"prompt": text})).json()["tokens"]
            threads.append(0)
            back: str = (await client.post("/detokenize", json={"tokens": tokens})).json()["prompt"]
            return back

    assert asyncio.run(ask()) == text
    cut = threads.index(0)
    here = threading.get_ident()
    for during in (threads[:cut], threads[cut + 1 :]):
        assert during and (during[-1] == here) == (length < LONG)
