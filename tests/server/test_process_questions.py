"""Questions to another process: each has its own answer, or is told that there is nobody left."""

from __future__ import annotations

import asyncio

import pytest

from inflight.server.processes.questions import Questions


def test_each_has_its_own_answer_in_whichever_order_they_come() -> None:
    async def run() -> list[str]:
        questions: Questions[str] = Questions()
        told: list[int] = []
        asked = [asyncio.ensure_future(questions.ask(told.append)) for _ in range(3)]
        await asyncio.sleep(0)
        for number in reversed(told):
            questions.answered(number, f"answer {number}")
        return await asyncio.gather(*asked)

    assert asyncio.run(run()) == ["answer 0", "answer 1", "answer 2"]


def test_an_answer_that_nobody_waits_for_any_more_is_dropped() -> None:
    async def run() -> None:
        questions: Questions[str] = Questions()
        told: list[int] = []
        with pytest.raises(TimeoutError):
            await questions.ask(told.append, 0.01)
        questions.answered(told[0], "late")
        questions.answered(7, "never asked")

    asyncio.run(run())


def test_who_waits_when_there_is_nobody_left_is_told() -> None:
    async def run() -> None:
        questions: Questions[str] = Questions()
        asked = asyncio.ensure_future(questions.ask(lambda number: None))
        await asyncio.sleep(0)
        questions.end(RuntimeError("gone"))
        with pytest.raises(RuntimeError, match="gone"):
            await asked

    asyncio.run(run())
