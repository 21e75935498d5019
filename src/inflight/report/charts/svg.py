"""SVG as text: tags with escaped content, paths with as few digits as a pixel needs. Knows nothing of charts."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import NamedTuple


def tag(name: str, content: str = "", **attributes: object) -> str:
    """content is SVG or HTML already. Names: class_ → class, stroke_width → stroke-width."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(number(value) if isinstance(value, float) else str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{given}>{content}</{name}>" if content else f"<{name}{given}/>"


def text(x: float, y: float, words: str, class_: str = "tick", anchor: str = "start") -> str:
    return tag("text", escape(words), x=x, y=y, class_=class_, text_anchor=anchor)


def number(value: float) -> str:
    """A tenth of a pixel at most."""
    rounded = f"{value:.1f}"
    return rounded[:-2] if rounded.endswith(".0") else rounded


class Point(NamedTuple):
    x: float
    y: float


def polyline(points: Iterable[Point]) -> str:
    """Path data through the points."""
    return "M" + "L".join(f"{number(point.x)} {number(point.y)}" for point in points)


def rectangle(x: float, y: float, width: float, height: float) -> str:
    """Path data, so that many rectangles are one element."""
    return f"M{number(x)} {number(y)}h{number(width)}v{number(height)}h{number(-width)}z"
