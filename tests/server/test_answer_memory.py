"""Memory of answers: the largest call is ended, small ones are not, and lines of jobs wait their turn."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.server.answer_memory import BYTES_PER_ENTRY, AnswerMemory
from inflight.server.errors import ApiError


class Held:
    """A call that holds so many entries."""

    def __init__(self, held: int):
        self.held = held
        self.error: ApiError | None = None

    def end(self, error: ApiError) -> None:
        self.error = error


def call(*, tokens: int, n: int = 1, logprobs: int | None = None, max_tokens: int | None = 10) -> Any:
    params = SamplingParams(n=n, logprobs=logprobs, max_tokens=max_tokens)
    return SimpleNamespace(requests=[Request(request_id="x", prompt_token_ids=(1,) * tokens, params=params)])


def test_the_calls_that_hold_most_are_ended_until_the_rest_fits() -> None:
    calls: set[Any] = {Held(10), Held(20), Held(60)}
    memory = AnswerMemory(100 * BYTES_PER_ENTRY, calls)
    memory.add(90)
    assert not any(one.error for one in calls)
    calls |= {Held(55), Held(5)}
    memory.add(1)
    assert not any(one.error for one in calls), "too little has come for a look"
    memory.add(59)
    assert sorted(one.held for one in calls if one.error) == [60]
    (ended,) = (one for one in calls if one.error)
    assert ended.error.status == 503 and "100" in ended.error.message and "60" in ended.error.message


def test_lines_wait_for_their_share_in_order() -> None:
    async def main() -> None:
        memory, order = AnswerMemory(200 * BYTES_PER_ENTRY), []  # 100 entries for lines
        release = asyncio.Event()

        async def line(name: str, of: Any) -> None:
            async with memory.for_line(of, 1000):
                order.append(name)
                await release.wait()

        large = call(tokens=5, logprobs=4)  # 10 tokens of 6 entries
        tasks = {name: asyncio.create_task(line(name, large)) for name in ("first", "second", "third")}
        await asyncio.sleep(0)
        tasks["plain"] = asyncio.create_task(line("plain", call(tokens=5)))
        tasks["huge"] = asyncio.create_task(line("huge", call(tokens=5, n=99, logprobs=20, max_tokens=None)))
        await asyncio.sleep(0.01)
        assert order == ["first", "plain"]
        tasks.pop("second").cancel()
        release.set()
        await asyncio.gather(*tasks.values())
        assert order == ["first", "plain", "third", "huge"]
        async with asyncio.timeout(1), memory.for_line(large, 1000):
            pass

    asyncio.run(main())
