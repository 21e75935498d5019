"""Measure what the live page takes of a browser: until it is seen first, for each drawing, and of memory over time.

Drawings: a record of a full batch (256 rows, 20 steps a second, unless one is given) is played at its own speed in a
headless Chromium without a GPU, so that every pixel is drawn by the processor. Chromium's own trace shows what each
drawing took of the page's main thread, in processor time, so that what else runs on the machine is not in it: script,
style, layout and paint (what the page is to keep small), and everything that the thread did until the next drawing,
with what it takes to hand canvases over (`all`). First paint: of the page of a server, opened again and again in one
browser with an empty cache; by the clock, which on a busy machine holds what others took.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.chromium import Page, opened_page
from benchmarks.long_record import write_record
from benchmarks.results import table, write_section
from benchmarks.served import Server
from inflight.cli.live_replay import replays_of, write_page
from inflight.live.page_files import page_file, served_page

WIDTHS = (390, 1440)
ROWS, STEP_SECONDS = 256, 0.05
OPENINGS = 7
ASKED_DRAWING_MS, ASKED_PAINT_MS, ASKED_BYTES = 8, 300, 250_000
# Of a drawing, in the trace; FireAnimationFrame is its script, with what that calls.
_PARTS = {
    "FireAnimationFrame": "script",
    "UpdateLayoutTree": "style",
    "Layout": "layout",
    **dict.fromkeys(("PrePaint", "Paint", "Layerize"), "paint"),
}
_CATEGORIES = "devtools.timeline,toplevel,disabled-by-default-devtools.timeline"

Event = Mapping[str, Any]


async def _trace(page: Page, seconds: float) -> list[Event]:
    collected, done = page.listen("Tracing.dataCollected"), page.listen("Tracing.tracingComplete")
    await page.send("Tracing.start", categories=_CATEGORIES, transferMode="ReportEvents")
    await asyncio.sleep(seconds)
    await page.send("Tracing.end")
    while not done:
        await asyncio.sleep(0.05)
    return [event for one in collected for event in one["value"]]


def drawings_of(events: Sequence[Event]) -> list[dict[str, float]]:
    """Return each drawing's milliseconds of processor time, for its parts and for `all`."""
    fired = [one["tid"] for one in events if one["name"] == "FireAnimationFrame"]
    thread = max(set(fired), key=fired.count)
    mine = sorted((one for one in events if one["tid"] == thread and one["ph"] == "X"), key=lambda one: one["ts"])
    tasks = [one for one in mine if one["name"] == "RunTask"]
    begins = [one["ts"] for one in tasks]
    places = [bisect_right(begins, one["ts"]) - 1 for one in mine if one["name"] == "FireAnimationFrame"]
    starts = [begins[place] for place in places]
    found = [
        dict.fromkeys(_PARTS.values(), 0.0) | {"all": sum(task.get("tdur", 0) for task in tasks[first:last]) / 1e3}
        for first, last in pairwise(places)
    ]
    for one in mine:
        place = bisect_right(starts, one["ts"]) - 1
        if one["name"] in _PARTS and 0 <= place < len(found):
            found[place][_PARTS[one["name"]]] += one.get("tdur", 0) / 1e3
    return found


async def drawn(url: str, width: int, seconds: float, start: float) -> dict[str, float]:
    async with opened_page(width) as page:
        await page.open(url)
        await page.until("document.getElementById('status-text').textContent === 'replay'", 120)
        played = f"{{ speed: 1, span: 20, offset: {start} }}"
        await page.eval(f"Object.assign(inflight.page, {played}); inflight.page.again()")
        await asyncio.sleep(2)
        await page.send("HeapProfiler.enable")
        before = await _heap(page)
        one = drawings_of(await _trace(page, seconds))
        grown = await _heap(page) - before
        parts = {name: statistics.fmean(drawing[name] for drawing in one) for name in one[0]}
        together = sorted(sum(value for name, value in drawing.items() if name != "all") for drawing in one)
        whole = sorted(drawing["all"] for drawing in one)
        rows = await page.eval("inflight.page.runs[0].batch.fitted")
        counts = {"rows": rows, "per_s": len(one) / seconds, "grown_mb": grown / 1e6}
        return parts | counts | {"p95": _at(together, 0.95), "all_p95": _at(whole, 0.95)}


async def _heap(page: Page) -> float:
    await page.send("HeapProfiler.collectGarbage")
    return float((await page.send("Runtime.getHeapUsage"))["usedSize"])


def _at(rising: Sequence[float], share: float) -> float:
    return rising[min(len(rising) - 1, int(share * len(rising)))]


async def painted(url: str, width: int) -> list[float]:
    """First contentful paint, in milliseconds since the page was asked for."""
    paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
    found = []
    async with opened_page(width) as page:
        await page.send("Network.setCacheDisabled", cacheDisabled=True)
        for _ in range(OPENINGS):
            await page.open("about:blank")
            await page.open(url)
            found.append(float(await page.until(paint, 60)))
    return found


def page_bytes() -> int:
    return len(served_page("index.html").content) + len(page_file("index.bundle.js").content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("record", type=Path, nargs="?", help="that is played; a full batch's unless given")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--start", type=float, default=20.0, help="seconds of the record that are left out")
    parser.add_argument("--write", action="store_true", help="into docs/results.md")
    given = parser.parse_args()
    drawings, checks = [], []
    with tempfile.TemporaryDirectory() as folder:
        record = given.record or write_record(
            Path(folder) / "full.jsonl", int((given.start + given.seconds + 30) / STEP_SECONDS), ROWS, STEP_SECONDS
        )
        path = Path(folder) / "page.html"
        write_page(path, replays_of([record]))
        for width in WIDTHS:
            one = asyncio.run(drawn(path.as_uri(), width, given.seconds, given.start))
            drawings.append(_drawing(width, one))
            name = f"script, style, layout and paint of a drawing, 95 %, {width} pixels"
            checks.append((name, f"{one['p95']:.1f} ms", f"≤ {ASKED_DRAWING_MS} ms"))
    with Server() as server:
        for name in ("", "playground"):
            for width in WIDTHS:
                times = asyncio.run(painted(f"http://127.0.0.1:{server.port}/{name}", width))
                shown = f"{statistics.median(times):.0f} ms ({min(times):.0f} to {max(times):.0f})"
                checks.append((f"first paint of /{name}, {width} pixels", shown, f"< {ASKED_PAINT_MS} ms"))
    checks.append(("the page", f"{page_bytes() / 1e3:,.0f} kB", f"< {ASKED_BYTES / 1e3:.0f} kB"))
    head = ("width", "rows", "drawings/s", "script, ms", "style", "layout", "paint", "all", "all, p95", "heap grew, MB")
    body = (
        table(("what", "measured", "asked"), checks)
        + f"\n\nMilliseconds of processor time for a drawing, mean; {given.seconds:g} s of a replayed record.\n\n"
        + table(head, drawings)
    )
    print(body)
    if given.write:
        write_section("live_page", "Drawing the live page", "python -m benchmarks.live_page", body)


def _drawing(width: int, one: Mapping[str, float]) -> list[object]:
    keys = ("script", "style", "layout", "paint", "all", "all_p95", "grown_mb")
    return [width, f"{one['rows']:.0f}", f"{one['per_s']:.0f}", *(f"{one[key]:.1f}" for key in keys)]


if __name__ == "__main__":
    main()
