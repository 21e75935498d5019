"""Charts: numbers, axes, what uPlot is given and what their tables say; our own pictures as files."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from itertools import combinations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from inflight.metrics.definitions import percentiles
from inflight.metrics.summary import Window
from inflight.records.computed import Work
from inflight.report.charts.batch import MAX_CELLS, batch_picture
from inflight.report.charts.blocks import blocks_picture
from inflight.report.charts.chart import Key
from inflight.report.charts.distribution import Column, CurvePoint, cumulative, curve, histogram, percentile_bars
from inflight.report.charts.frame import Axis, text_width
from inflight.report.charts.over_time import COLUMNS, over_time, stack
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


@given(st.floats(1e-6, 1e9), st.sampled_from(["s", "", "blocks"]))
def test_an_axis_has_a_few_ticks_of_different_names(greatest: float, unit: str) -> None:
    ticks = Axis(0.0, greatest, "x", unit).ticks(4)
    positions = [Axis(0.0, greatest, "x", unit).position(value) for value, _ in ticks]
    assert 3 <= len(positions) <= 8 and positions == sorted(positions) and positions[0] == 0.0
    assert len({name for _, name in ticks}) == len(positions), "no two ticks of one name"


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
    bands = [("a & b", function, "s1"), ("b", function, "shared")]
    drawing = blocks_picture("A & B", "About <it>.", bands, Window(0, 2), 8.0)
    file = ElementTree.fromstring(drawing.standalone())
    space = "{http://www.w3.org/2000/svg}"
    assert file.find(f"{space}title").text == "A & B"  # type: ignore[union-attr]
    assert file.find(f"{space}rect") is not None, "a ground of its own"
    style = file.find(f"{space}style").text or ""  # type: ignore[union-attr]
    assert set(re.findall(r"var\(--([a-z0-9]+)\)", style)) <= set(re.findall(r"--([a-z0-9]+):", style))


def one_row(waiting: float) -> list[tuple[str, float, float]]:
    """Words of a picture of one row that prefills and decodes, each with its place."""
    runs = [RowRun(0, 0, Work.PREFILL, 0.0, 1.0), RowRun(0, 0, Work.DECODE, 1.0, 3.0)]
    drawing = batch_picture("t", runs, [(0.0, waiting)], Window(0.0, 3.0))
    assert drawing is not None
    found = ElementTree.fromstring(drawing.standalone()).iter("{http://www.w3.org/2000/svg}text")
    return [(one.text or "", float(one.get("x") or 0), float(one.get("y") or 0)) for one in found]


@pytest.mark.parametrize("waiting", [0.0, 3.0])
def test_no_word_of_one_row_lies_on_another(waiting: float) -> None:
    shown = [one for one in one_row(waiting) if one[0] != "t"]
    assert {"row", "0", "prefill", "decode"} <= {word for word, _, _ in shown}
    for (one, left, y), (other, right, below) in combinations(shown, 2):
        if left - text_width(one) < right + text_width(other) and right - text_width(other) < left + text_width(one):
            assert y == below or abs(y - below) >= 12, (one, other)


def test_a_long_name_keeps_its_ends_within_the_picture() -> None:
    name = "tenant-" * 20 + "seven"
    picture = blocks_picture("t", "a", [(name, StepFunction.of_changes([(0.0, 2)]), "s1")], Window(0, 2), 8.0)
    (shown,) = re.findall(r'class="key"[^>]*>([^<]*)<', picture.body)
    assert shown.startswith("tenant-") and shown.endswith("seven") and "…" in shown
    assert 24 + text_width(shown) < picture.width


def test_a_line_is_as_long_as_a_card_is_wide_and_keeps_its_peaks() -> None:
    """A hundred thousand changes, one of them a peak."""
    changes = [(float(index), 1.0 if index % 2 else -1.0) for index in range(1, 100_000)]
    function = StepFunction.of_changes([*changes, (50_000.5, 90.0), (50_001.5, -90.0)])
    chart = over_time("t", "a", [("one", function)], Window(0.0, 100_000.0), ("n", "tokens"), ("most", 100.0))
    (line,) = chart.plot.series
    assert len(chart.plot.xs) == len(line.values) == len(line.high) == COLUMNS
    assert max(one for one in line.high if one is not None) >= 90 > max(one or 0 for one in line.values)
    assert chart.plot.xs == sorted(chart.plot.xs) and chart.plot.limit == 100.0
    assert [key.name for key in chart.keys] == ["one", "most"]
    assert any("max 9" in cell for row in chart.table.rows for cell in row), "the table has the peak, too"


def test_bands_lie_on_each_other_up_to_the_end() -> None:
    function = StepFunction.of_changes([(0.0, 2)])
    chart = stack("t", "a", [("one", function, "decode"), ("two", function, "prefill")], Window(0.0, 4.0), ("n", ""))
    assert (chart.plot.xs[0], chart.plot.xs[-1]) == (0.0, 4.0)
    assert {tuple(one.values) for one in chart.plot.series} == {(2.0,) * (COLUMNS + 1)}
    assert chart.table.rows[-1] == ("3.5 s to 4 s", "2", "2")


@given(st.lists(st.floats(1e-4, 1e4), min_size=1, max_size=300), st.lists(st.floats(1e-4, 1e4), max_size=300))
def test_a_cumulative_line_rises_from_nothing_to_all(some: list[float], others: list[float]) -> None:
    chart = cumulative("t", "a", [("one", some), ("two", others), ("none", [])])
    assert chart is not None
    xs = chart.plot.xs
    assert xs == sorted(xs) and (not chart.plot.x.log or xs[0] > 0)
    for line, values in zip(chart.plot.series, (some, others), strict=False):
        shares = [one for one in line.values if one is not None]
        assert len(shares) == len(xs) and shares == sorted(shares) and shares[-1] == 1.0
        assert shares[0] == 0.0 or min(values) < max(*some, *others, 0.0) / 1e5, "what is less begins at the axis"
    assert [one.name for one in chart.plot.series] == ["one", "two"][: 1 + bool(others)]


def test_a_cumulative_line_is_none_where_there_are_no_values() -> None:
    assert cumulative("t", "a", [("one", []), ("two", [])]) is None
    assert cumulative("t", "a", [("one", [0.0])]) is None


def test_what_is_not_to_be_believed_is_marked() -> None:
    points = [CurvePoint("1/s", 100.0, 0.1), CurvePoint("2/s", 150.0, 9.0, saturated=True, valid=False)]
    chart = curve("t", "About.", [("one", points), ("none", [])], ("output", "tokens/s"), ("TTFT", "s"))
    assert chart is not None and chart.plot.y.log
    assert [(one.hollow, one.crossed) for one in chart.plot.series[0].points] == [(False, False), (True, True)]
    assert "Hollow" in chart.description and "Crossed out" in chart.description
    assert chart.table.rows[1] == ("one, 2/s", "150 tokens/s", "9 s, saturated, not valid")
    assert len({one.mark for one in chart.plot.series}) == 2, "distinct by their shapes, too"


def test_percentiles_have_their_intervals() -> None:
    values = [index / 1000 for index in range(1, 1001)]
    chart = percentile_bars("t", "a", [("one", percentiles(values)), ("none", percentiles([]))])
    assert chart is not None
    (columns,) = chart.plot.series
    for low, value, high in zip(columns.low, columns.values, columns.high, strict=True):
        assert low is not None and value is not None and high is not None and low < value < high
    assert "…" in chart.table.rows[0][1] and chart.keys == ()


def test_columns_are_stacked_parts() -> None:
    keys = [Key("x", "s1", "area"), Key("y", "s2", "area")]
    chart = histogram("t", "a", [Column("one", (3.0, 1.0), "4 s"), Column("two", (1.0, 0.0), "")], keys, "", ("n", "s"))
    assert chart is not None and chart.plot.names == ["one", "two"] and chart.plot.labels == ["4 s", ""]
    assert [one.values for one in chart.plot.series] == [[3.0, 1.0], [1.0, 0.0]]
    assert chart.table.head == ("", "x", "y", "above it") and chart.table.rows[0] == ("one", "3 s", "1 s", "4 s")
    assert histogram("t", "a", [Column("one", (0.0, 0.0), "")], keys, "", ("n", "s")) is None


def test_many_runs_are_merged_to_what_a_row_did_most() -> None:
    """Ten thousand alternating runs: three quarters decode."""
    runs = []
    for index in range(10_000):
        runs.append(RowRun(0, index, Work.PREFILL, float(index), index + 0.25))
        runs.append(RowRun(0, index, Work.DECODE, index + 0.25, index + 1.0))
    drawing = batch_picture("t", runs, [(0.0, 0.0)], Window(0.0, 10_000.0))
    assert drawing is not None and "Merged: each stretch of" in drawing.description
    body = ElementTree.fromstring(f"<svg>{drawing.body}</svg>")
    drawn = {path.get("class"): path.get("d") or "" for path in body.iter("path")}
    assert "area decode" in drawn
    assert len(drawing.body) < 40 * MAX_CELLS
    cells = sum(path.get("class") == "area prefill" for path in body.iter("path"))
    assert cells == 0, "nowhere did it prefill for most of a stretch"


def test_names_in_little_room_keep_the_end_that_differs() -> None:
    assert (shortened("interactive"), shortened("chatcmpl-0123456789abcdef")) == ("interactive", "chat…abcdef")
