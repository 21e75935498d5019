"""Charts of docs as files: all of them, sharp, and none where there is no browser."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from benchmarks import chart_pictures
from benchmarks.chart_pictures import NARROW, SCALE, WIDE, photograph
from benchmarks.chromium import find_chromium
from inflight.report.charts.distribution import CurvePoint, curve
from inflight.report.page.views import Figure


def chart() -> Figure:
    points = [CurvePoint("1/s", 10.0, 0.1), CurvePoint("2/s", 19.0, 0.4)]
    made = curve("A curve", "About.", [("one", points)], ("output", "tokens/s"), ("TTFT", "s"))
    assert made is not None
    return made


def size(path: Path) -> tuple[int, int]:
    """Return a PNG's width and height, from its first chunk."""
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", head[16:24])
    return width, height


@pytest.mark.skipif(find_chromium() is None, reason="no Chromium on PATH")
def test_a_picture_holds_all_figures(tmp_path: Path) -> None:
    photograph(tmp_path / "one.png", "One", [chart()])
    photograph(tmp_path / "four.png", "Four", [chart()] * 4, columns=2)
    (width, height), (wide, high) = size(tmp_path / "one.png"), size(tmp_path / "four.png")
    assert (width, wide) == (NARROW * SCALE, WIDE * SCALE)
    assert height > 200 * SCALE and high > 1.9 * height, "two rows, all of them"


def test_without_a_browser_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chart_pictures, "find_chromium", lambda: None)
    with pytest.raises(SystemExit, match=r"one.png cannot be drawn: 0 of chromium"):
        photograph(tmp_path / "one.png", "One", [chart()])
