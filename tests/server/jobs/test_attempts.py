"""Attempts at a line: what is an answer and what is none, and lines that break the steps they are in."""

from __future__ import annotations

import asyncio
import gc
import json
from pathlib import Path

import pytest

from inflight.server.errors import ApiError
from inflight.server.jobs import attempts
from inflight.server.jobs.attempts import Answer, InFlight, NotNow, StepFailed
from inflight.server.jobs.lines import line_id
from inflight.server.tenants import ANYONE, Tenant

from .rig import Rig, jsonl, live, request_line, until


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "USUAL_WAIT", 0.001)
    monkeypatch.setattr(attempts, "MIN_WAIT", 0.001)


def step_failed() -> StepFailed:
    return StepFailed(ApiError(500, "The step failed.", type="server_error", code="step_failed"))


class BreakableEngine:
    """A line with the prompt "poison" breaks the step, and ends all that is in flight beside it."""

    def __init__(self) -> None:
        self.in_flight: set[asyncio.Future[None]] = set()
        self.tries: dict[str, int] = {}

    async def answer(self, url: str, body: bytes, tenant: Tenant, request_id: str, in_flight: InFlight) -> Answer:
        async with in_flight():
            return await self._answer(body)

    async def _answer(self, body: bytes) -> Answer:
        prompt = json.loads(body)["prompt"]
        self.tries[prompt] = self.tries.get(prompt, 0) + 1
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.in_flight.add(mine)
        asyncio.get_running_loop().call_later(0.01, self._step, prompt, mine)
        await mine
        return Answer(200, json.dumps({"echo": prompt}).encode())

    def _step(self, prompt: str, mine: asyncio.Future[None]) -> None:
        if mine not in self.in_flight:
            return
        if prompt != "poison":
            self.in_flight.discard(mine)
            mine.set_result(None)
            return
        for one in self.in_flight:
            one.set_exception(step_failed())
        self.in_flight.clear()


def test_what_is_no_answer_is_asked_again(tmp_path: Path) -> None:
    unrequested = asyncio.CancelledError()

    async def test(rig: Rig) -> None:
        not_now = [NotNow("Full.", 0.001), NotNow("The engine has stopped.")] * 3
        rig.answerer.refuse = {"x": [*not_now, unrequested]}
        job = await rig.ended(await rig.create(jsonl(request_line("a"))))
        assert (job.completed, job.failed) == (1, 0) and rig.answerer.calls[line_id(job.id, 1)] == 8

    live(tmp_path, test)


@pytest.mark.parametrize("status", [400, 403, 404, 408, 413, 422])
def test_a_refusal_of_the_line_is_its_answer(tmp_path: Path, status: int) -> None:
    async def test(rig: Rig) -> None:
        refusal = ApiError(status, "Never.", code="never", retry_after=0.001)
        rig.answerer.refuse = {"x": [refusal] * 5}
        job = await rig.ended(await rig.create(jsonl(request_line("a"))))
        (line,) = await rig.lines(job.error_file_id)
        assert line["response"]["status_code"] == status and line["response"]["body"] == refusal.body
        assert rig.answerer.calls[line_id(job.id, 1)] == 1

    live(tmp_path, test)


def test_a_failed_step_is_no_answer_until_it_fails_for_the_third_time(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.answerer.refuse = {"twice": [step_failed(), NotNow("Full.", 0.001), step_failed()]}
        rig.answerer.refuse["ever"] = [step_failed() for _ in range(9)]
        job = await rig.ended(await rig.create(jsonl(request_line("a", "twice"), request_line("b", "ever"))))
        assert [line["custom_id"] for line in await rig.lines(job.output_file_id)] == ["a"]
        (line,) = await rig.lines(job.error_file_id)
        assert line["custom_id"] == "b" and line["response"]["status_code"] == 500
        assert line["response"]["body"]["error"]["code"] == "step_failed"
        assert [rig.answerer.calls[line_id(job.id, number)] for number in (1, 2)] == [4, 3]

    live(tmp_path, test)


def test_a_line_that_breaks_every_step_takes_no_other_with_it(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        prompts = [f"innocent {number}" for number in range(40)]
        prompts.insert(7, "poison")
        job = await rig.ended(await rig.create(jsonl(*(request_line(prompt, prompt) for prompt in prompts))))
        assert (job.status, job.completed, job.failed) == ("completed", 40, 1)
        (line,) = await rig.lines(job.error_file_id)
        assert line["custom_id"] == "poison" and rig.answerer.tries["poison"] == 3
        assert max(rig.answerer.tries.values()) == 3 and min(rig.answerer.tries.values()) == 1

    live(tmp_path, test, answerer=BreakableEngine(), concurrency=16)


def test_a_fault_of_the_engine_that_passes_fails_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Down for ten waits: sixteen lines with three tries each would be through with them after two."""
    monkeypatch.setattr(attempts, "USUAL_WAIT", 0.02)

    async def test(rig: Rig) -> None:
        refuse: dict[str, list[BaseException]] = {"x": [step_failed() for _ in range(10_000)]}
        rig.answerer.refuse = refuse
        job = await rig.create(jsonl(*(request_line(str(number)) for number in range(16))))
        await until(lambda: rig.answerer.calls.total() == 16)
        asyncio.get_running_loop().call_later(0.2, refuse.clear)
        job = await rig.ended(job)
        assert (job.completed, job.failed) == (16, 0) and rig.answerer.calls.total() > 32

    live(tmp_path, test, concurrency=16)


@pytest.mark.wide
def test_an_abandoned_line_leaves_nothing_for_the_collector(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        rig.answerer.gate = asyncio.Event()
        job = await rig.create(jsonl(*(request_line(str(number)) for number in range(8))))
        await until(lambda: rig.answerer.running == 8)
        gc.collect()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            await rig.jobs.cancel(ANYONE, job.id)
            await rig.ended(job)
            gc.collect()
            left = [type(one).__name__ for one in gc.garbage]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
        # Python 3.11's task group keeps the one that cancelled the job itself in its frame.
        assert left.count("CancelledError") <= 1 and left.count("BatchLine") == 0

    live(tmp_path, test, concurrency=8)
