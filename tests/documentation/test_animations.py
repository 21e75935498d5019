"""Moving pictures: what is uncovered when, and that they stand still where people ask for that."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.animations import FOLDER, HELD, PLAYED, WIDTH, draw, scenes

ROOT = Path(__file__).parents[2]
PICTURES = {
    Path(one).stem
    for page in (ROOT / "docs").rglob("*.md")
    for one in re.findall(r"moving/[\w-]+\.svg", page.read_text())
}


def frames(picture: str, name: str) -> list[tuple[float, float]]:
    """Percent of the loop and pixels uncovered, of a curtain."""
    [rule] = re.findall(rf"@keyframes {name}{{((?:[^{{}}]*{{[^{{}}]*}})*)}}", picture)
    found = re.findall(r"([\d.]+)%[^{]*{transform:translateX\(([\d.]+)", rule)
    return [(float(share), float(pixels)) for share, pixels in found]


def test_pages_show_what_is_drawn() -> None:
    assert set(scenes()) == PICTURES == {path.stem for path in FOLDER.glob("*.svg")}


def test_steps_uncover_a_run_in_their_order_and_all_of_it() -> None:
    picture = draw("static-and-chunked", scenes()["static-and-chunked"])
    ElementTree.fromstring(picture)
    static, chunked = frames(picture, "c0"), frames(picture, "c1")
    for one in (static, chunked):
        assert one == sorted(one) and one[0] == (0, 0)
        assert one[-1][0] == pytest.approx(100 * PLAYED / (PLAYED + HELD), abs=0.1) and one[-1][1] > 0.8 * WIDTH
    # A static batch computes its prompts in one long step, so that there are wider leaps.
    assert max(b[1] - a[1] for a, b in pairwise(static[:-1])) > 100
    assert "prefers-reduced-motion:reduce){.future{display:none}" in picture


def test_a_run_is_the_same_every_time() -> None:
    scene = scenes()["disaggregated"]
    assert draw("disaggregated", scene) == draw("disaggregated", scene)
