"""Parts of charts: numbers, axes, files of their own."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given

from inflight.metrics.definitions import percentiles
from inflight.metrics.summary import Window
from inflight.records.computed import Work
from inflight.report.charts.batch import MOST_CELLS, batch_picture
from inflight.report.charts.distribution import percentile_bars
from inflight.report.charts.frame import Axis, from_zero, text_width
from inflight.report.charts.lines import over_time
from inflight.report.charts.palette import _DARK, _LIGHT
from inflight.report.charts.quantity import quantity, shortened
from inflight.report.steps.rows import RowRun
from inflight.report.steps.series import StepFunction


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [
        (0.0123, "s", "12.3 ms"), (3.2e-5, "s", "32 µs"), (75.0, "s", "75 s"), (0.0, "s", "0 s"),
        (0.367, "share", "36.7 %"),
        (4210.4, "tokens", "4,210 tokens"), (None, "s", "–"), (7.0, "", "7"), (0.5, "requests/s", "0.5 requests/s"),
    ],
)  # fmt: skip
def test_quantities_have_three_digits_and_a_unit(value: float | None, unit: str, said: str) -> None:
    assert quantity(value, unit) == said


@given(st.floats(1e-6, 1e9), st.sampled_from(["s", "", "share", "tokens"]))
def test_an_axis_from_zero_holds_its_greatest_and_has_a_few_ticks(greatest: float, unit: str) -> None:
    axis = from_zero(greatest, "x", unit)
    assert greatest <= axis.high * (1 + 1e-9) <= 1.6 * greatest + 1e-12
    places = [axis.place(value) for value, _ in axis.ticks(4)]
    assert 3 <= len(places) <= 8 and places == sorted(places)
    assert len({name for _, name in axis.ticks(4)}) == len(places), "no two ticks of one name"


@given(st.floats(1e-4, 1.0), st.floats(25, 1e6))
def test_a_logarithmic_axis_names_values_inside_of_it(low: float, times: float) -> None:
    axis = Axis(low, low * times, "x", "s", log=True)
    ticks = axis.ticks()
    assert len(ticks) >= 1
    assert all(low * 0.99 <= value <= low * times * 1.01 for value, _ in ticks)


def contrast(one: str, other: str) -> float:
    """WCAG 2: ratio of relative luminances."""

    def luminance(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("colours", [_LIGHT, _DARK], ids=["light", "dark"])
def test_colours_can_be_seen_on_the_page_and_on_cards(colours: dict[str, str]) -> None:
    for ground in ("page", "card"):
        for ink in ("ink", "soft", "good", "bad", "s1"):
            assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
        for mark in ("s1", "s2", "s3", "s4", "s5", "s6", "s7", "decode", "recomputed", "waiting"):
            assert contrast(colours[mark], colours[ground]) >= 3, (mark, ground)


def test_a_drawing_can_be_a_file_of_its_own() -> None:
    function = StepFunction.of_changes([(0.0, 1), (1.0, 2)])
    drawing = over_time("A & B", "About <it>.", [("a", function), ("b", function)], Window(0, 2), ("n", "tokens"))
    file = ElementTree.fromstring(drawing.standalone())
    space = "{http://www.w3.org/2000/svg}"
    assert file.find(f"{space}title").text == "A & B"  # type: ignore[union-attr]
    assert file.find(f"{space}rect") is not None, "a ground of its own"
    style = file.find(f"{space}style").text or ""  # type: ignore[union-attr]
    assert set(re.findall(r"var\(--([a-z0-9]+)\)", style)) <= set(re.findall(r"--([a-z0-9]+):", style))


def test_many_runs_are_merged_to_what_a_row_did_most() -> None:
    """Ten thousand alternating runs: three quarters decode."""
    runs = []
    for index in range(10_000):
        runs.append(RowRun(0, index, Work.PREFILL, float(index), index + 0.25))
        runs.append(RowRun(0, index, Work.DECODE, index + 0.25, index + 1.0))
    drawing = batch_picture("t", runs, [(0.0, 0.0)], Window(0.0, 10_000.0))
    assert drawing is not None and "Merged: each stretch of" in drawing.description
    body = ElementTree.fromstring(drawing.inline())
    drawn = {path.get("class"): path.get("d") or "" for path in body.iter("path")}
    assert "area decode" in drawn
    assert len(drawing.body) < 40 * MOST_CELLS
    cells = sum(path.get("class") == "area prefill" for path in body.iter("path"))
    assert cells == 0, "nowhere did it prefill for most of a stretch"


def test_values_above_bars_do_not_reach_over_their_neighbours() -> None:
    """0.965 ms beside 1.16 ms, on bars that have no room for more than the digits."""
    named = [("small", percentiles([0.000965, 0.0135, 0.0172])), ("large", percentiles([0.00116, 0.0104, 0.0182]))]
    drawing = percentile_bars("ITL", "About.", named)
    assert drawing is not None
    body = ElementTree.fromstring(drawing.inline())
    values = [
        one
        for one in body.iter("text")
        if re.fullmatch(r"[\d.]+", one.text or "") and one.get("text-anchor") == "middle"
    ]
    assert len(values) == 6
    for left, right in pairwise(values):
        room = float(right.get("x") or 0) - float(left.get("x") or 0)
        assert (text_width(left.text or "") + text_width(right.text or "")) / 2 < room


def test_names_in_little_room_keep_the_end_that_tells_them_apart() -> None:
    assert (shortened("interactive"), shortened("chatcmpl-0123456789abcdef")) == ("interactive", "chat…abcdef")
