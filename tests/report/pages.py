"""What tests look for in a page."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """Refuses what is not well formed: end tags without a beginning, and beginnings without an end."""

    def __init__(self, text: str):
        super().__init__()
        self.text: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.sources: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(dict(attrs))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(dict(attrs))

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open[-1] == tag, f"</{tag}> closes {self._open[-1:]}"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def _note(self, attributes: dict[str, str | None]) -> None:
        if attributes.get("id"):
            self.ids.append(str(attributes["id"]))
        href = attributes.get("href") or ""
        self.links += [href[1:]] if href.startswith("#") else []
        self.sources += [value for name in ("src", "href") if (value := attributes.get(name)) and value[0] != "#"]

    @property
    def words(self) -> str:
        return " ".join(self.text)


def pictures(text: str) -> list[ElementTree.Element]:
    """The page's charts, each parsed as XML."""
    return [ElementTree.fromstring(f"<svg{part.partition('</svg>')[0]}</svg>") for part in text.split("<svg")[2:]]
