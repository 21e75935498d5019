"""A finished picture: for a page that brings the colours, or as a file of its own. Knows no data."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from itertools import count

from inflight.report.charts.palette import PATTERNS, STANDALONE_RULES
from inflight.report.charts.svg import tag, text

_TITLE_SPACE = 30
_MARGIN = 10
_SUBTITLE = 26
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Drawing:
    """width, height in pixels at full size. description: what it shows, for those who do not see it and for the
    caption. body: SVG. wide: must not be shrunk to a phone's width, but scrolled."""

    title: str
    description: str
    width: float
    height: float
    body: str
    wide: bool = False

    def inline(self) -> str:
        """For a page that has the palette's variables, rules and patterns."""
        place = f"c{next(_numbers)}"
        said = tag("title", escape(self.title), id=f"{place}t") + tag("desc", escape(self.description), id=f"{place}d")
        return tag(
            "svg",
            said + self.body,
            class_="chart",
            viewBox=f"0 0 {self.width:g} {self.height:g}",
            role="img",
            aria_labelledby=f"{place}t {place}d",
        )

    def standalone(self) -> str:
        """A file: with its title, on a ground of its own, so that it reads on light and dark pages."""
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


def above(title: str, first: Drawing, second: Drawing) -> Drawing:
    """Two pictures as one, the first over the second, which keeps its title."""
    top = first.height + _SUBTITLE
    lower = text(2, top - 12, second.title, "subtitle") + tag("g", second.body, transform=f"translate(0 {top:g})")
    width, height = max(first.width, second.width), top + second.height
    described = f"{first.title}: {first.description} {second.title}: {second.description}"
    return Drawing(title, described, width, height, first.body + lower, first.wide or second.wide)
