"""SVG as text: tags with escaped content, short paths, and the finished picture, for a page or as a file of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import ClassVar, NamedTuple

from inflight.report.charts.palette import PATTERNS, STANDALONE_RULES


def tag(name: str, content: str = "", **attributes: object) -> str:
    """Return a tag. content: SVG. Names: class_ → class, stroke_width → stroke-width."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(number(value) if isinstance(value, float) else str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{given}>{content}</{name}>" if content else f"<{name}{given}/>"


def text(x: float, y: float, content: str, class_: str = "tick", anchor: str = "start") -> str:
    return tag("text", escape(content), x=x, y=y, class_=class_, text_anchor=anchor)


def number(value: float) -> str:
    """Return a number of pixels, to a tenth at most."""
    rounded = f"{value:.1f}"
    return rounded[:-2] if rounded.endswith(".0") else rounded


class Point(NamedTuple):
    x: float
    y: float


def polyline(points: Iterable[Point]) -> str:
    """Return path data through the points."""
    return "M" + "L".join(f"{number(point.x)} {number(point.y)}" for point in points)


def rectangle(x: float, y: float, width: float, height: float) -> str:
    """Return path data, so that many rectangles are one element."""
    return f"M{number(x)} {number(y)}h{number(width)}v{number(height)}h{number(-width)}z"


_TITLE_SPACE = 30
_MARGIN = 10


@dataclass(frozen=True, slots=True)
class Drawing:
    """width, height in pixels at full size. description: the caption, and for screen readers. body: SVG. wide: to be
    scrolled on a phone, not shrunk."""

    kind: ClassVar[str] = "drawing"
    title: str
    description: str
    width: float
    height: float
    body: str
    wide: bool = False

    def standalone(self) -> str:
        """Return a file: with its title, on a ground of its own, so that it reads on light and dark pages."""
        width, height = self.width + 2 * _MARGIN, self.height + _TITLE_SPACE + _MARGIN
        ground = tag("rect", width=width, height=height, rx=6, style="fill:var(--page)")
        head = text(_MARGIN + 4, 22, self.title, "title")
        moved = tag("g", self.body, transform=f"translate({_MARGIN} {_TITLE_SPACE})")
        said = tag("title", escape(self.title)) + tag("desc", escape(self.description))
        style = tag("style", escape(STANDALONE_RULES, quote=False))
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img" width="{width:g}" height="{height:g}" '
            f'viewBox="0 0 {width:g} {height:g}">{said}{style}{PATTERNS}{ground}{head}{moved}</svg>\n'
        )
