"""Pages that are rendered for all that ask meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from inflight.server.state import Rendering


def test_a_page_is_begun_after_it_was_asked_for() -> None:
    async def run() -> None:
        begun, gate = 0, asyncio.Event()

        async def render() -> int:
            nonlocal begun
            begun += 1
            page = begun
            await gate.wait()
            return page

        page = Rendering(render)
        first = asyncio.ensure_future(page())
        while not begun:
            await asyncio.sleep(0)
        later = [asyncio.ensure_future(page()) for _ in range(20)]
        await asyncio.sleep(0.01)
        later[3].cancel()
        gate.set()
        assert await first == 1
        assert {await one for one in later if one is not later[3]} == {2} and begun == 2
        assert await page() == 3

    asyncio.run(run())


def test_a_page_that_fails_is_rendered_anew_for_the_next() -> None:
    async def run() -> None:
        faults = [ValueError("first")]

        async def render() -> str:
            if faults:
                raise faults.pop()
            return "page"

        page = Rendering(render)
        with pytest.raises(ValueError, match="first"):
            await page()
        assert await page() == "page"

    asyncio.run(run())
