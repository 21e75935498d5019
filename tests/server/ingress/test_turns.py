"""Whose request is begun next, and what happens between two."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from inflight.server import fair_line
from inflight.server.ingress import turns as module
from inflight.server.ingress.turns import RequestTurns, Turns

Begin = Callable[..., Awaitable[None]]


def asked(address: str, path: str = "/v1/completions") -> dict[str, Any]:
    return {"type": "http", "client": (address, 1), "path": path}


class Clock:
    """Stands still but for what requests cost."""

    def __init__(self) -> None:
        self.now = 0.0

    def thread_time(self) -> float:
        return self.now


def begun_by(script: Callable[[Begin, list[str]], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the requests in the order in which they were begun. A request costs a second, or what it says."""
    clock, begun = Clock(), list[str]()
    monkeypatch.setattr(module, "time", clock)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope["name"])
        clock.now += scope["cost"]

    async def run() -> None:
        turns = Turns()
        layer = RequestTurns(app, turns)

        async def begin(name: str, cost: float = 1.0, gone: bool = False) -> None:
            state = {"is_gone": lambda: gone}
            scope = {**asked(f"10.0.0.{name[0]}"), "name": name, "cost": cost, "state": state}
            await layer(scope, None, None)  # type: ignore[arg-type]

        await script(begin, begun)
        await asyncio.sleep(0.01)
        lines = (turns._work, turns._state)
        assert not turns._goes_on and not any(lines) and not any(line._waiting for line in lines), "nothing is left"

    asyncio.run(run())
    return begun


def test_addresses_take_turns_and_each_ones_requests_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(begin: Begin, begun: list[str]) -> None:
        await asyncio.gather(*(begin(name) for name in ("1a", "1b", "1c", "2a", "2b", "3a")))

    assert begun_by(script, monkeypatch) == ["1a", "2a", "3a", "1b", "2b", "1c"]


def test_who_uses_more_waits_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(begin: Begin, begun: list[str]) -> None:
        names = [*((f"1{i}", 3.0) for i in range(3)), *((f"2{i}", 1.0) for i in range(6))]
        await asyncio.gather(*(begin(name, cost) for name, cost in names))

    assert begun_by(script, monkeypatch) == ["10", "20", "21", "22", "11", "23", "24", "25", "12"]


def test_a_newcomer_waits_for_one_request_and_not_for_a_crowd(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(begin: Begin, begun: list[str]) -> None:
        crowd = [asyncio.ensure_future(begin(f"{address}{number}")) for number in range(50) for address in (1, 2)]
        while len(begun) < 40:
            await asyncio.sleep(0)
        for number in range(8):  # it asks again and again, of little cost
            before = len(begun)
            await begin(f"3{number}", 0.01)
            assert begun.index(f"3{number}") <= before + 2
        await asyncio.gather(*crowd)

    begun_by(script, monkeypatch)


def test_idle_time_is_not_banked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(begin: Begin, begun: list[str]) -> None:
        await begin("1 early")
        for number in range(20):
            await begin(f"2{number}")
        await asyncio.gather(*(begin(name) for name in ("2a", "2b", "2c", "1a", "1b", "1c")))

    assert begun_by(script, monkeypatch)[-6:] in (
        ["2a", "1a", "2b", "1b", "2c", "1c"],
        ["1a", "2a", "1b", "2b", "1c", "2c"],
    )


def test_newcomers_are_not_before_who_has_asked_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(begin: Begin, begun: list[str]) -> None:
        for number in range(30):
            await begin(f"1{number}", 0.01)
        await begin("2 seldom", 0.01)
        crowd = [asyncio.ensure_future(begin(f"{number % 5 + 3}x", 0.01)) for number in range(100)]
        await begin("1 again", 0.01)
        assert begun.index("1 again") <= 31 + 6
        await asyncio.gather(*crowd)

    begun_by(script, monkeypatch)


def test_other_work_runs_between_two_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    async def script(begin: Begin, begun: list[str]) -> None:
        async def other() -> None:
            while len(begun) < 20:
                seen.append(len(begun))
                await asyncio.sleep(0)

        await asyncio.gather(other(), *(begin(f"1{number}") for number in range(20)))

    begun_by(script, monkeypatch)
    assert set(range(20)) <= set(seen)


def test_many_that_cost_little_are_begun_in_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(begin: Begin, begun: list[str]) -> None:
        for number in range(30):  # what one costs is learnt
            await begin(f"1{number}", 0.0001)
        crowd, rounds = [asyncio.ensure_future(begin(f"1{number}", 0.0001)) for number in range(200)], 0
        while len(begun) < 230:
            await asyncio.sleep(0)
            rounds += 1
        assert rounds < 20
        await asyncio.gather(*crowd)

    begun_by(script, monkeypatch)


def test_a_probe_does_not_wait_behind_work() -> None:
    begun: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope["path"])

    async def run() -> None:
        turns = Turns()
        layer = RequestTurns(app, turns)
        for _ in range(20):
            await layer(asked("10.0.0.1", "/health"), None, None)  # type: ignore[arg-type]
        wanted = [asked(f"10.0.0.{number % 20}") for number in range(100)] + [asked("10.0.0.1", "/health")]
        await asyncio.gather(*(layer(one, None, None) for one in wanted))  # type: ignore[arg-type]

    asyncio.run(run())
    assert begun.index("/health", 20) <= 21


def test_who_left_or_was_cancelled_costs_nothing_and_nobody_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(begin: Begin, begun: list[str]) -> None:
        tasks = [asyncio.ensure_future(begin(f"1{number}", gone=number == 2)) for number in range(6)]
        await asyncio.sleep(0)
        tasks[3].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    assert begun_by(script, monkeypatch) == ["10", "11", "14", "15"]


def test_addresses_that_are_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_line, "_MOST_KNOWN", 4)
    turns = Turns()

    async def run() -> None:
        for number in range(50):
            await turns.wait(f"10.0.0.{number}")
            await asyncio.sleep(0)
            assert len(turns._work._used) <= 6

    asyncio.run(run())


@pytest.mark.parametrize("cost", [0.0, 0.002])
def test_a_real_clock_charges_what_was_used(cost: float) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        end = time.thread_time() + cost
        while time.thread_time() < end:
            pass

    async def run() -> None:
        turns = Turns()
        layer = RequestTurns(app, turns)
        for _ in range(3):
            await layer(asked("10.0.0.1"), None, None)  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        assert turns._work._used["10.0.0.1"] >= 3 * cost

    asyncio.run(run())
