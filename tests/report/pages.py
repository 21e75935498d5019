"""Parse pages for tests."""

from __future__ import annotations

import json
import re
from html import unescape
from html.parser import HTMLParser
from typing import Any, NamedTuple

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """Refuses what is not well formed: end tags without a beginning, and beginnings without an end."""

    def __init__(self, text: str):
        super().__init__()
        self.text: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.sources: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, dict(attrs))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, dict(attrs))

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open[-1] == tag, f"</{tag}> closes {self._open[-1:]}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open[-1:] not in (["script"], ["style"]):
            self.text.append(data)

    def _note(self, tag: str, attributes: dict[str, str | None]) -> None:
        self.elements.append((tag, attributes))
        if attributes.get("id"):
            self.ids.append(str(attributes["id"]))
        href = attributes.get("href") or ""
        self.links += [href[1:]] if href.startswith("#") else []
        self.sources += [value for name in ("src", "href") if (value := attributes.get(name)) and value[0] != "#"]

    @property
    def words(self) -> str:
        return " ".join(self.text)


class Figure(NamedTuple):
    """plot: of a chart, what uPlot is given. html: all of it."""

    title: str
    kind: str
    plot: dict[str, Any] | None
    html: str

    @property
    def table(self) -> list[list[str]]:
        """Head and rows, as text."""
        rows = re.findall(r"<tr>(.*?)</tr>", self.html.partition('class="values"')[2], re.S)
        return [[unescape(cell) for cell in re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", row)] for row in rows]


def figures(text: str) -> list[Figure]:
    """The page's pictures and charts, in their order."""
    found = []
    for part in text.split("<figure ")[1:]:
        html = part.partition("</figure>")[0]
        title = re.search(r"<figcaption><b>(.*?)</b>", html)
        kind = re.match(r'class="(\w+)', html)
        plot = re.search(r'<script type="application/json">(.*?)</script>', html)
        assert title is not None and kind is not None, html[:200]
        found.append(Figure(unescape(title[1]), kind[1], json.loads(plot[1]) if plot else None, html))
    return found


def titled(text: str, title: str) -> Figure:
    """The one figure of this title."""
    (found,) = (one for one in figures(text) if one.title == title)
    return found
