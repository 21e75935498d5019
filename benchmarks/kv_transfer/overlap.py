"""A picture of what of the last chunk's keys and values is computed, and there, while the prefill engine computes."""

from __future__ import annotations

from pathlib import Path

from benchmarks.chart_pictures import photograph
from benchmarks.kv_transfer.waits import Overlap
from inflight.report.charts.chart import Chart, Key, Plot, Scale, Series, ValueTable, dash_of, series_class

PICTURE = Path(__file__).parents[2] / "docs" / "pictures" / "kv-overlap.png"
NAMES = {"layers": "there, layer by layer", "blocks": "there, where whole blocks alone travel"}
_MB, _BEFORE = 1e6, 0.02  # of the chunk's time, and so long before


def draw(title: str, overlaps: dict[str, Overlap], path: Path = PICTURE) -> None:
    """overlaps: by mode."""
    photograph(path, title, [chart(title, overlaps)])


def chart(title: str, overlaps: dict[str, Overlap]) -> Chart:
    """Megabytes over milliseconds, from the end of the step on."""
    steps = {"computed": _relative(overlaps["layers"].computed, overlaps["layers"].last_step)}
    steps |= {NAMES[mode]: _relative(overlaps[mode].there, overlaps[mode].last_step) for mode in NAMES}
    begin = 1.05 * min(first for (first, _), *_ in steps.values())
    xs = sorted({begin, *(at for of_one in steps.values() for at, _ in of_one if at >= begin)})
    series, keys, rows = [], [], []
    for number, (name, points) in enumerate(steps.items()):
        colour = series_class(number)
        series.append(Series(name, colour, dash_of(colour), [_at(points, x) / _MB for x in xs]))
        keys.append(Key(name, f"line {colour}"))
        rows.append((name, f"{points[0][0]:.0f}", f"{points[-1][0]:.0f}", f"{points[-1][1] / _MB:.1f}"))
    plot = Plot("lines", Scale("behind the step's end, ms", "ms"), Scale("MB", "MB"), series, xs, stepped=True)
    table = ValueTable(("", "first, ms", "last, ms", "MB"), tuple(rows))
    return Chart(title, "Keys and values of the last chunk of a prompt.", plot, tuple(keys), table)


def _relative(points: list[tuple[float, int]], end: float) -> list[tuple[float, int]]:
    return [(1e3 * (at - end), nbytes) for at, nbytes in points if nbytes]


def _at(points: list[tuple[float, int]], x: float) -> float:
    return max((nbytes for at, nbytes in points if at <= x), default=0)
