"""Attacks by valid calls that ask for much, or whose answers are not read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from benchmarks.attack.kind import Act, Attack, body
from benchmarks.attack.target import VOCABULARY
from benchmarks.attack.visit import Visit
from benchmarks.attack.wire import post, text

_COMPLETION = "/v1/completions"
_LONG: dict[str, Any] = {"prompt": "x", "ignore_eos": True, "max_tokens": 400}


def unread(body: bytes, pause: float) -> Act:
    """Asks, then reads a few bytes after each pause. pause 0: nothing at all."""

    async def act(visit: Visit) -> None:
        async with visit.line(small_buffer=True) as line:
            if line is None:
                return
            await line.send(post(_COMPLETION, body, visit.key))
            if not pause:
                await asyncio.sleep(30.0)
                visit.note("left")
                return
            visit.note(await line.status())
            while await line.read(64):
                await asyncio.sleep(pause)

    return act


def _prompts(count: int, tokens: int) -> list[list[int]]:
    return [[(prompt * tokens + place) % VOCABULARY for place in range(tokens)] for prompt in range(count)]


def _ask(name: str, what: str, make: Callable[[], dict[str, Any]], connections: int = 6) -> Attack:
    return body(name, what, _COMPLETION, lambda: text(make()), "own", connections)


def call_attacks() -> list[Attack]:
    detailed = {**_LONG, "logprobs": 20}
    streamed = {**detailed, "n": 8, "stream": True}
    return [
        _ask("many samples", "n 128 with 20 log-probabilities, 400 tokens", lambda: {**detailed, "n": 128}),
        _ask("most that is allowed", "n 60 with 20 log-probabilities, 400 tokens", lambda: {**detailed, "n": 60}),
        _ask("best of many", "best_of 128, 400 tokens", lambda: {**_LONG, "best_of": 128}),
        _ask(
            "scored prompts",
            "echo with 20 log-probabilities over 256 prompts",
            lambda: {"prompt": _prompts(256, 300), "echo": True, "prompt_logprobs": 20, "max_tokens": 1},
        ),
        _ask(
            "scored prompts, allowed",
            "echo with 20 log-probabilities over 24 prompts of 1,000 tokens",
            lambda: {"prompt": _prompts(24, 1000), "echo": True, "prompt_logprobs": 20, "max_tokens": 1},
        ),
        _ask("long prompts", "256 prompts of 1,000 tokens", lambda: {"prompt": _prompts(256, 1000), "max_tokens": 1}),
        _ask("penalties", "128 samples with every penalty", lambda: penalized(), 6),
        Attack("unread streams", "60 streams with log-probabilities, unread", unread(text(streamed), 0.0), 60),
        Attack(
            "slow readers",
            "200 streams at 64 bytes every half second",
            unread(text({**_LONG, "stream": True}), 0.5),
            200,
        ),
    ]


def flood() -> Attack:
    """One tenant's attempt to have all places of the queue; not of the catalogue, but beside one honest tenant."""
    return _ask("flood", "64 calls at once of n 128", lambda: {**_LONG, "max_tokens": 100, "n": 128}, 64)


def penalized() -> dict[str, Any]:
    biases = {str(token): 1.0 for token in range(300)}
    stops = [f"stop {number}" * 20 for number in range(32)]
    words = [f"bad {number}" for number in range(256)]
    penalties = {"presence_penalty": 1, "frequency_penalty": 1, "repetition_penalty": 1.1}
    return {**_LONG, "n": 128, "logit_bias": biases, "stop": stops, "bad_words": words, **penalties}
