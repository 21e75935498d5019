"""Charts of docs as picture files: what a report shows of them, photographed in Chromium."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.chromium import find_chromium, opened_page
from inflight.report.page import figures_alone
from inflight.report.page.views import Figure

NARROW, WIDE = 700, 960  # pixels of one column, and of several
_DRAWN = "document.querySelectorAll('.plot .uplot').length === document.querySelectorAll('.plot').length"
SCALE = 2  # pixels of the file to one of the page, for screens of small ones


def photograph(path: Path, title: str, figures: Sequence[Figure], columns: int = 1) -> None:
    """Writes a PNG of the figures in so many columns."""
    if find_chromium() is None:
        raise SystemExit(f"{path} cannot be drawn: 0 of chromium, chromium-browser, google-chrome are on PATH.")
    asyncio.run(_photograph(path, title, figures, columns))


async def _photograph(path: Path, title: str, figures: Sequence[Figure], columns: int) -> None:
    width = NARROW if columns == 1 else WIDE
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "figures.html"
        file.write_text(figures_alone(title, figures, columns), encoding="utf-8")
        async with opened_page(width, scale=SCALE) as page:
            await page.open(file.as_uri())
            await page.until(f"document.querySelectorAll('figure').length === {len(figures)}")
            await page.until(_DRAWN)
            await page.picture(path, "main")
