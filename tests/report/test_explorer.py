"""The page of a plan: what its sliders say of runs that are known exactly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chromium import Page as Browser
from benchmarks.chromium import find_chromium, opened_page
from inflight.report.page.explorer import Explored, ExploredLayout, ExploredRun, render_explorer

from .pages import Page


def run(rate: float, seconds: float, saturated: bool = False, slow_saturated: bool = False) -> ExploredRun:
    """Return a run whose TTFT is `seconds` at p50, twice that at p95 and four times that at p99."""

    def latency(by: float) -> dict[str, list[float | None]]:
        values: list[float | None] = [by * seconds, 2 * by * seconds, 4 * by * seconds]
        return {"ttft": values, "tpot": [value / 10 for value in values if value], "itl": values, "e2e": values}

    return ExploredRun(
        rate=rate,
        saturated=saturated,
        latency={} if saturated else latency(1.0),
        low={} if saturated else latency(0.8),
        high={} if saturated or slow_saturated else latency(1.25),
        slow_saturated=saturated or slow_saturated,
        fast_saturated=saturated,
        shares={"compute": 0.7, "bandwidth": 0.3},
        rows=8.0,
        step_seconds=0.05,
        is_full=False,
        requests=600,
    )


def explored(pooled: int = 1) -> Explored:
    """Return two layouts: the second takes two GPUs for three times the rate."""
    one = [run(1.0, 0.1), run(2.0, 0.2), run(4.0, 0.8), run(5.0, 9.0, saturated=True)]
    two = [run(3.0, 0.05), run(6.0, 0.1), run(12.0, 0.4), run(15.0, 9.0, saturated=True)]
    settings = {"max-num-seqs": "64"}
    return Explored(
        rate=20.0,
        limits={"ttft": 800.0, "tpot": None, "itl": None},
        share=2,
        input_tokens=100.0,
        output_tokens=10.0,
        layouts=[
            ExploredLayout("one <b>&", 1, settings, pooled, 2.0, one),
            ExploredLayout("two", 2, settings, pooled, 2.0, two),
        ],
        about=["Planned for 20 requests/s."],
    )


def test_the_page_is_one_well_formed_file_with_all_runs_as_text() -> None:
    html = render_explorer("Plan: <made>", explored())
    page = Page(html)
    assert page.sources == ["data:,"] and len(page.ids) == len(set(page.ids))
    assert "Plan: <made>" in page.words and "one <b>&" in page.words
    assert "5 (saturated)" in page.words and "3,200 ms" in page.words
    begin = html.index('id="explored">') + len('id="explored">')
    assert json.loads(html[begin : html.index("</script>", begin)])["layouts"][0]["name"] == "one <b>&"


TILES = """Object.fromEntries(
  ['replicas', 'gpus', 'hour', 'million'].map((one) => [one, document.getElementById(one).textContent])
)"""
VERDICT = "document.getElementById('verdict').textContent"


def set_to(name: str, value: float) -> str:
    """Return a script that moves a slider as a user does."""
    return (
        f"(() => {{ const one = document.getElementById('{name}'); one.value = {value}; "
        "one.dispatchEvent(new Event('input', { bubbles: true })); })()"
    )


def looked_at(path: Path, look: Callable[[Browser], Awaitable[Any]], found: Explored, width: int = 1280) -> Any:
    path.write_text(render_explorer("Plan", found), encoding="utf-8")

    async def opened() -> Any:
        async with opened_page(width, dark=width < 500) as page:
            await page.open(path.as_uri())
            await page.until("document.querySelectorAll('.plot .uplot').length === 2")
            seen = await look(page)
            assert page.console == [] and [one for one in page.asked if not one.startswith(("file:", "data:"))] == []
            return seen

    return asyncio.run(opened())


browser = [pytest.mark.wide, pytest.mark.skipif(find_chromium() is None, reason="no Chromium on PATH")]


class TestInBrowser:
    pytestmark = browser

    def test_the_cheapest_layout_that_keeps_the_limits_is_shown(self, tmp_path: Path) -> None:
        """TTFT p99 is 0.8 s at 2/s of a replica of `one`, and at 6 + (12 - 6) · log(0.8 / 0.4) / log(4) = 9/s of
        `two`: 10 GPUs against 3 · 2."""

        async def look(page: Browser) -> tuple[Any, str]:
            return await page.eval(TILES), await page.eval(VERDICT)

        tiles, verdict = looked_at(tmp_path / "page.html", look, explored())
        assert tiles == {"replicas": "3", "gpus": "6", "hour": "12.00", "million": "16.67"}
        assert "two: a replica keeps the limits up to 9 requests/s" in verdict
        assert "TTFT p99 is missed first: 1,600 ms in the run at 12" in verdict and "interpolated" in verdict

    def test_nothing_is_counted_on_beyond_a_saturated_run(self, tmp_path: Path) -> None:
        async def look(page: Browser) -> tuple[Any, str, str]:
            await page.eval(set_to("ttft", 200))
            first = await page.eval(VERDICT)
            row = await page.eval("document.getElementById('ttft-row').textContent")
            return await page.eval(TILES), first, row

        tiles, verdict, row = looked_at(tmp_path / "page.html", look, explored())
        assert tiles["replicas"] == "2", "12 requests/s, the last run that was in balance"
        assert "The run at 15 is saturated: no rate between the two is counted on" in verdict
        assert "interpolated" not in verdict and "TTFT" in row

    def test_limits_that_nothing_keeps_are_said_with_the_number(self, tmp_path: Path) -> None:
        async def look(page: Browser) -> tuple[Any, str]:
            await page.eval(set_to("ttft", 0))
            return await page.eval(TILES), await page.eval(VERDICT)

        tiles, verdict = looked_at(tmp_path / "page.html", look, explored())
        assert tiles["replicas"] == "none" and tiles["hour"] == "-"
        assert "No number of replicas keeps the limits" in verdict and "TTFT p99 is 200 ms, above 20 ms" in verdict

    def test_one_replica_is_no_plural(self, tmp_path: Path) -> None:
        async def look(page: Browser) -> list[Any]:
            read = "['replicas', 'gpus'].map((one) => document.getElementById(one + '-title').textContent)"
            many = await page.eval(read)
            await page.eval(set_to("rate", 1.0))
            return [many, await page.eval(read)]

        many, one = looked_at(tmp_path / "page.html", look, explored())
        assert many == ["replicas", "GPUs"] and one[0] == "replica"

    def test_fewer_replicas_than_were_simulated_together_are_said_to_be(self, tmp_path: Path) -> None:
        async def look(page: Browser) -> str:
            await page.eval(set_to("rate", 20))
            found: str = await page.eval(VERDICT)
            return found

        assert "plan this rate again" in looked_at(tmp_path / "page.html", look, explored(pooled=3))

    def test_keys_move_sliders_and_the_button_takes_them_back(self, tmp_path: Path) -> None:
        async def look(page: Browser) -> list[Any]:
            await page.eval("document.getElementById('rate').focus()")
            seen = [await page.eval(TILES)]
            await page.key("End", "End")
            seen.append(await page.eval(TILES))
            text = await page.eval("document.getElementById('rate').getAttribute('aria-valuetext')")
            await page.eval("document.querySelector('button').click()")
            return [*seen, await page.eval(TILES), text]

        before, moved, back, text = looked_at(tmp_path / "page.html", look, explored())
        assert before == back != moved and moved["replicas"] == "45" and text == "400/s"

    @pytest.mark.parametrize("width", [1280, 390])
    def test_nothing_is_wider_than_the_screen(self, tmp_path: Path, width: int) -> None:
        async def look(page: Browser) -> int:
            return int(await page.eval("document.documentElement.scrollWidth"))

        assert looked_at(tmp_path / "page.html", look, explored(), width) <= width
