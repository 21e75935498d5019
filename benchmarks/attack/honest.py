"""Honest clients: `python -m benchmarks.attack.honest`, a plan as JSON on standard input; a line of JSON a stream.

First it fills the KV memory of the server once, which is there from the start and takes nothing until it is used.
Then greedy streams from a few prompts, one after the other on each of so many clients, each text compared with the one
that the server gave before anybody attacked it. Ends with its standard input.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from dataclasses import dataclass
from typing import TextIO

import msgspec
import uvloop

from benchmarks.attack.parent import end_with_parent
from benchmarks.attack.target import HONEST_KEYS
from benchmarks.attack.wire import post, text
from benchmarks.streams import Stream, send
from benchmarks.workloads import poisson, prompt

PROMPTS = 8
KV_TOKENS = 32 * 1024  # what the server has room for by itself, with the built-in model: 2,048 blocks of 16
LONG_PROMPT = 1000  # tokens
PATIENCE = 60.0  # seconds after which a stream is given up
_MIN_TOKENS, _MAX_TOKENS = 60, 160  # tokens of an answer
_PAUSE = 0.05  # seconds before the next try, where there was no stream


@dataclass(frozen=True, slots=True)
class Plan:
    """keys: of the clients, in turn; none: the server asks for none. streams: at once, each followed by another. rate:
    instead of that, streams a second at random times (Poisson). tokens: of each answer, instead of 60 to 160. file:
    where to write."""

    port: int = 0
    keys: tuple[str, ...] = tuple(HONEST_KEYS)
    file: str = ""
    streams: int = 20
    rate: float | None = None
    tokens: int | None = None


class Honest:
    def __init__(self, plan: Plan, file: TextIO):
        self._plan, self._file = plan, file
        rng = random.Random(11)
        lengths = [plan.tokens or rng.randint(_MIN_TOKENS, _MAX_TOKENS) for _ in range(PROMPTS)]
        self._asked = [self._call(prompt(rng, rng.randint(20, 90), 2000), length) for length in lengths]
        self._texts: dict[int, bytes] = {}

    @staticmethod
    def _call(token_ids: tuple[int, ...], tokens: int) -> bytes:
        asked = {"prompt": token_ids, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
        return text(asked)

    async def run(self) -> None:
        rng = random.Random(7)
        for _ in range(KV_TOKENS // LONG_PROMPT + 1):
            await self._ask(self._call(prompt(rng, LONG_PROMPT, 2000), 1), 0)
        for number in range(PROMPTS):
            stream = await self._stream(number, 0)
            if not stream.complete:
                raise RuntimeError(f"An honest stream ended with status {stream.status} before any attack.")
            self._texts[number] = stream.text
        self._file.write(json.dumps({"ready": time.perf_counter()}) + "\n")
        if self._plan.rate is None:
            await asyncio.gather(*(self._client(number) for number in range(self._plan.streams)))
        else:
            await self._arrivals(self._plan.rate)

    async def _client(self, client: int) -> None:
        number = client
        while True:
            stream = await self._stream(number % PROMPTS, client)
            self._write(number % PROMPTS, stream)
            if not stream.complete:
                await asyncio.sleep(_PAUSE)
            number += 1

    async def _arrivals(self, rate: float) -> None:
        began = time.perf_counter()
        under_way: set[asyncio.Task[None]] = set()
        for number, due in enumerate(poisson(random.Random(5), rate)):
            await asyncio.sleep(max(0.0, began + due - time.perf_counter()))
            task = asyncio.ensure_future(self._one(number % PROMPTS, began + due))
            under_way.add(task)
            task.add_done_callback(under_way.discard)

    async def _one(self, number: int, due: float) -> None:
        self._write(number, await self._stream(number, number, due))

    async def _stream(self, number: int, client: int, due: float | None = None) -> Stream:
        """number: of the prompt."""
        return await self._ask(self._asked[number], client, due)

    async def _ask(self, body: bytes, client: int, due: float | None = None) -> Stream:
        keys = self._plan.keys
        stream = Stream(post("/v1/completions", body, keys[client % len(keys)] if keys else ""), keep=True)
        try:
            async with asyncio.timeout(PATIENCE):
                await send(self._plan.port, stream, due)
        except TimeoutError:
            stream.leave()
            stream.ended = time.perf_counter()
        return stream

    def _write(self, number: int, stream: Stream) -> None:
        error = b'data: {"error"' in stream.body
        entry = {
            "sent": round(stream.sent, 6),
            "ended": round(stream.ended, 6),
            "status": stream.status,
            "complete": stream.complete and not error,
            "same": stream.complete and not error and stream.text == self._texts[number],
            "arrivals": [round(one, 6) for one in stream.arrivals],
            "received": "" if stream.complete and not error else stream.body[-300:].decode("utf-8", "replace"),
        }
        self._file.write(json.dumps(entry) + "\n")


def main() -> None:
    plan = msgspec.json.decode(sys.stdin.readline(), type=Plan)
    end_with_parent()
    with open(plan.file, "w", encoding="utf-8", buffering=1) as file:
        uvloop.run(Honest(plan, file).run())


if __name__ == "__main__":
    main()
