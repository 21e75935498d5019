"""What a drawing of the live page takes of a browser's main thread, and whether its memory stays flat.

A record is played at its own speed in a headless Chromium without a GPU, so that every pixel is drawn by the processor.
`script`, `style` and `layout` are the main thread's own CPU for a drawing, as the browser counts them; p95 is the time
that a drawing's script took by the clock, which on a busy machine holds what others took. Frames are those of a live
feed: a record of a batch of 256 rows with 20 steps a second is what the page must bear.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.chromium import Page, opened_page
from benchmarks.results import table, write_section
from inflight.cli.live_replay import replays_of, write_page
from inflight.live.page_files import SCRIPTS, STYLES, page_file

WIDTHS = (390, 1440)
_COSTS = """(() => {
  const { costs, drawings } = inflight.page, count = Math.min(drawings, costs.length);
  const sorted = Array.from(costs.slice(0, count)).sort((one, other) => one - other);
  const at = (share) => sorted[Math.min(count - 1, Math.floor(share * count))] || 0;
  return { count: drawings, p50: at(0.5), p95: at(0.95), rows: inflight.page.runs[0].batch.fitted };
})()"""


async def _metrics(page: Page) -> dict[str, float]:
    told = await page.send("Performance.getMetrics")
    return {str(one["name"]): float(one["value"]) for one in told["metrics"]}


async def measured(url: str, width: int, seconds: float, start: float) -> dict[str, Any]:
    async with opened_page(width) as page:
        await page.open(url)
        await page.until("document.getElementById('status-text').textContent === 'replay'", 120)
        played = f"{{ speed: 1, span: 20, offset: {start}, drawings: 0 }}"
        await page.eval(f"Object.assign(inflight.page, {played}); inflight.page.again()")
        await asyncio.sleep(2)
        await page.send("Performance.enable", timeDomain="threadTicks")
        await page.send("HeapProfiler.enable")
        await page.send("HeapProfiler.collectGarbage")
        before, drawn = await _metrics(page), await page.eval("inflight.page.drawings")
        await asyncio.sleep(seconds)
        after, costs = await _metrics(page), await page.eval(_COSTS)
        await page.send("HeapProfiler.collectGarbage")
        heap = (await _metrics(page))["JSHeapUsedSize"]
        drawings = max(1, costs["count"] - drawn)
        names = {"script": "ScriptDuration", "style": "RecalcStyleDuration", "layout": "LayoutDuration"}
        ms = {key: (after[name] - before[name]) / drawings * 1e3 for key, name in names.items()}
        paint = await page.eval("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0")
        return {**costs, **ms, "per_s": drawings / seconds, "grown_mb": (heap - before["JSHeapUsedSize"]) / 1e6} | {
            "paint": paint
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("record", type=Path)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--start", type=float, default=10.0, help="seconds of the record that are left out")
    parser.add_argument("--write", action="store_true", help="into docs/results.md")
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        write_page(path, replays_of([given.record]))
        for width in WIDTHS:
            rows.append(_row(width, asyncio.run(measured(path.as_uri(), width, given.seconds, given.start))))
    size = sum(len(page_file(name).content) for name in ("index.html", *SCRIPTS, *STYLES))
    head = ("width", "rows", "drawings/s", "script, ms", "style", "layout", "all", "script p50", "p95", "heap grew, MB")
    body = (
        f"The page is {size / 1e3:,.0f} kB. Milliseconds for a drawing; {given.seconds:g} s of a replayed record.\n\n"
        + table(head, rows)
    )
    print(body)
    if given.write:
        write_section("live_page", "Drawing the live page", "python -m benchmarks.live_page RECORD", body)


def _row(width: int, one: Mapping[str, Any]) -> list[object]:
    parts = [one["script"], one["style"], one["layout"]]
    shown = [f"{value:.1f}" for value in (*parts, sum(parts), one["p50"], one["p95"], one["grown_mb"])]
    return [width, one["rows"], f"{one['per_s']:.0f}", *shown]


if __name__ == "__main__":
    main()
