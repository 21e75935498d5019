"""The page in a real browser: every kind of it at both widths, what the pointer reads, a part of the time, paper."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from benchmarks.chromium import Page, find_chromium, opened_page
from inflight.core.strategies.static import Static
from inflight.report.page import render
from inflight.report.run import Report, Setting

from .recorded import Engine, short_of_blocks, workload
from .test_page import client_side

pytestmark = [
    pytest.mark.wide,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium on PATH"),
]
LONG = "a-name-without-any-place-to-break-it-" * 4
UNFOLD = "document.querySelectorAll('details').forEach((one) => (one.open = true))"
DRAWN = "document.querySelectorAll('.plot .uplot').length === document.querySelectorAll('.plot').length"


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Pages by what they are about."""
    folder = tmp_path_factory.mktemp("pages")
    static = Engine(Static(6, 0.1)).setting(folder, workload(14), "static")
    small = Setting("small", [short_of_blocks(folder)])
    named = [
        structs.replace(one, request_id=f"{number}{LONG}")
        for number, one in enumerate(workload(20, tenants=("a", LONG)))
    ]
    sweep = [Setting(name, [client_side(60, slow * by) for slow in (1.0, 1.5)]) for name, by in (("a", 1), (LONG, 2))]
    return {
        "one": render(Report("One", [static])),
        "two": render(Report("Two", [static, small])),
        "named": render(Report(LONG, [Engine(settings={"model": LONG}).setting(folder, named, "long")], (LONG,))),
        "sweep": render(Report("Sweep", sweep)),
        "row": render(Report("Row", [Engine(max_rows=1).setting(folder, workload(3, gap=1.0), "row")])),
    }


def looked_at(
    path: Path, html: str, look: Callable[[Page], Awaitable[Any]], width: int = 1440, dark: bool = False
) -> Any:
    """Return the result of `look` on a page with all charts drawn and no console message."""
    path.write_text(html, encoding="utf-8")

    async def opened() -> Any:
        async with opened_page(width, dark=dark) as page:
            await page.open(path.as_uri())
            await page.until("document.querySelectorAll('footer').length")
            await page.eval(UNFOLD)
            await page.until(DRAWN)
            found = await look(page)
            assert page.console == [] and [one for one in page.asked if not one.startswith(("file:", "data:"))] == []
            return found

    return asyncio.run(opened())


@pytest.mark.parametrize("kind", ["one", "two", "named", "sweep", "row"])
@pytest.mark.parametrize(("width", "dark"), [(1440, False), (390, True)])
def test_nothing_is_wider_than_the_screen(
    reports: dict[str, str], tmp_path: Path, kind: str, width: int, dark: bool
) -> None:
    async def look(page: Page) -> int:
        return int(await page.eval("document.documentElement.scrollWidth"))

    assert looked_at(tmp_path / "page.html", reports[kind], look, width, dark) <= width


INK = """(() => [...document.querySelectorAll('.plot canvas')].map((canvas) => {
  const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  const seen = new Set(new Uint32Array(pixels.buffer));
  return [...seen].filter((one) => one >>> 24 === 255).length;
}))()"""


def test_every_chart_has_colours_in_it(reports: dict[str, str], tmp_path: Path) -> None:
    async def look(page: Page) -> list[int]:
        found: list[int] = await page.eval(INK)
        page.console.clear()  # that its pictures are read
        return found

    inks = looked_at(tmp_path / "page.html", reports["two"], look)
    assert len(inks) == 17 and min(inks) >= 3, "words, grid and what is drawn"


async def middle(page: Page, title: str) -> tuple[float, float, float]:
    """Return of a chart's plot: the middle, and a third of its width."""
    x, y, third = await page.eval(
        f"""(() => {{
          const all = [...document.querySelectorAll("figure")];
          const figure = all.find((one) => one.querySelector("b").textContent === "{title}");
          figure.scrollIntoView({{ block: "center" }});
          const box = figure.querySelector(".u-over").getBoundingClientRect();
          window.figure = figure;
          window.at = () => figure.querySelector(".at").textContent;
          return [box.left + box.width / 2, box.top + box.height / 2, box.width / 3];
        }})()"""
    )
    return x, y, third


def test_a_pointer_reads_values(reports: dict[str, str], tmp_path: Path) -> None:
    async def look(page: Page) -> list[str]:
        found = []
        for title in ("Running and waiting", "Tokens per step", "TTFT, percentiles", "E2E, cumulative"):
            x, y, _ = await middle(page, title)
            await page.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
            found.append(await page.until("window.at()"))
        return found

    queue, tokens, percentiles, cumulative = looked_at(tmp_path / "page.html", reports["one"], look)
    assert "running" in queue and "waiting" in queue and " s: " in queue
    assert "decode" in tokens and percentiles.startswith("p95: ") and cumulative.endswith("%")


def test_keys_read_values_and_say_them(reports: dict[str, str], tmp_path: Path) -> None:
    async def look(page: Page) -> list[list[str]]:
        found: list[list[str]] = []
        for title in ("Running and waiting", "TTFT, percentiles", "TTFT p99 against throughput"):
            await middle(page, title)
            await page.eval("window.figure.querySelector('.plot').focus()")
            found.append([])
            for key in ("ArrowRight", "ArrowRight", "End", "ArrowLeft", "Home"):
                await page.key(key)
                found[-1].append(await page.eval("window.at()"))
            assert await page.eval("window.figure.querySelector('.at').ariaLive") == "polite"
        return found

    queue, percentiles, curve = looked_at(tmp_path / "page.html", reports["two"], look)
    assert all(queue) and len(set(queue)) == 4 and queue[0] == queue[-1]
    assert [one.split(":")[0] for one in percentiles] == ["p50", "p50", "p99", "p99", "p50"], "columns of two settings"
    assert len(set(curve)) == 2 and all("tokens/s" in one for one in curve)


def test_a_part_of_the_time_can_be_seen_and_all_of_it_again(reports: dict[str, str], tmp_path: Path) -> None:
    async def look(page: Page) -> list[str]:
        x, y, third = await middle(page, "Running and waiting")
        left, found = x - third, []
        for part in (False, True, False):
            if part:
                for kind, at in (("mousePressed", x), ("mouseMoved", x + third / 2), ("mouseReleased", x + third)):
                    await page.send("Input.dispatchMouseEvent", type=kind, x=at, y=y, button="left", clickCount=1)
            elif found:
                for clicks in (1, 2):
                    for kind in ("mousePressed", "mouseReleased"):
                        await page.send(
                            "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=clicks
                        )
            for at in (left - 2, left):
                await page.send("Input.dispatchMouseEvent", type="mouseMoved", x=at, y=y)
            await asyncio.sleep(0.2)
            found.append(await page.eval("window.at().split(' s: ')[0]"))
        return found

    whole, part, again = map(float, looked_at(tmp_path / "page.html", reports["one"], look))
    assert whole == again < part


def test_paper_is_light_and_nothing_is_folded(reports: dict[str, str], tmp_path: Path) -> None:
    async def look(page: Page) -> tuple[Any, Any, Any]:
        await page.eval("document.querySelectorAll('details').forEach((one) => (one.open = false))")
        ask = """[getComputedStyle(document.body).backgroundColor,
          document.querySelectorAll('details[open]:not(.id):not(.values)').length]"""
        before = await page.eval(ask)
        await page.eval("dispatchEvent(new Event('beforeprint'))")
        during = await page.eval(ask)
        await page.eval("dispatchEvent(new Event('afterprint'))")
        return before, during, await page.eval(ask)

    before, during, after = looked_at(tmp_path / "page.html", reports["two"], look, dark=True)
    assert before == after == ["rgb(20, 23, 26)", 0]
    assert during[0] == "rgb(255, 255, 255)" and during[1] > 4
