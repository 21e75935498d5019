"""HTML as text. Knows escaping and nothing else; what is passed as content is HTML already."""

from __future__ import annotations

from html import escape

from inflight.report.charts.drawing import Drawing
from inflight.report.charts.quantity import shortened
from inflight.report.charts.svg import tag


def words(text: str) -> str:
    return escape(text)


def element(name: str, *content: str, **attributes: object) -> str:
    """Always with an end tag, which HTML wants of all but void elements."""
    opened = tag(name, "\0", **attributes)
    return opened.replace("\0", "".join(content))


def identifier(name: str) -> str:
    """A name, short where it is long; whoever unfolds it can read and copy all of it."""
    short = shortened(name)
    if short == name:
        return words(name)
    return element("details", element("summary", words(short)), words(name), class_="id")


def section(place: str, title: str, *content: str) -> str:
    return element("section", element("h2", words(title)), *content, id=place)


def fold(title: str, *content: str, opened: bool = False) -> str:
    """A part that is read by those who open it; printed all the same."""
    return element("details", element("summary", words(title)), *content, open="open" if opened else None)


def figure(drawing: Drawing) -> str:
    """A picture with its title and what it shows. Wide ones scroll inside of their box."""
    kind = "wide" if drawing.wide else "normal"
    style = f"min-width:{drawing.width * 0.9:.0f}px" if drawing.wide else ""
    box = (
        element("div", element("div", drawing.inline(), style=style), class_="scroll")
        if drawing.wide
        else drawing.inline()
    )
    caption = element("figcaption", element("b", words(drawing.title)))
    return element("figure", caption, box, element("p", words(drawing.description), class_="about"), class_=kind)


def grid(*content: str) -> str:
    return element("div", *content, class_="grid-of")


def table(head: list[str], rows: list[list[str]], class_: str = "") -> str:
    """Cells are HTML; the first column names its row."""
    first = element("tr", *(element("th", cell, scope="col") for cell in head))
    body = [
        element("tr", element("th", row[0], scope="row"), *(element("td", cell) for cell in row[1:])) for row in rows
    ]
    whole = element("table", element("thead", first), element("tbody", *body), class_=class_)
    return element("div", whole, class_="scroll", tabindex="0")
