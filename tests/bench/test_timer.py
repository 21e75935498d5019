from __future__ import annotations

import asyncio
import time

import pytest
import uvloop
from breadth import first_of

from inflight.bench import timer
from inflight.bench.timer import Timer


async def rung(*moments: float, wait: float = 0.3) -> list[float]:
    """When it rang, after it was set to each of the moments in turn."""
    found: list[float] = []
    began = time.perf_counter()
    bell = Timer(asyncio.get_running_loop(), lambda: found.append(time.perf_counter() - began))
    for moment in moments:
        bell.set(began + moment)
    await asyncio.sleep(wait)
    bell.close()
    await asyncio.sleep(0.05)
    return found


@pytest.mark.parametrize("file", first_of([True, False]), ids=["timer file", "loop's timer"])
def test_it_rings_once_and_never_early(file: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    early = 0.0 if file else 0.002  # a loop's timer counts milliseconds
    if not file:
        monkeypatch.setattr(timer, "_timer_file", lambda: -1)
    for run in (asyncio.run, uvloop.run):
        (at,) = run(rung(0.05))
        assert at >= 0.05 - early
        (at,) = run(rung(0.02, 0.1))  # set anew: the one before is forgotten
        assert at >= 0.1 - early
        assert len(run(rung(-1.0))) == 1  # passed already
        assert run(rung(5.0)) == []  # closed before
