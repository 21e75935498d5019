"""Views of a page: text in the shape in which it is shown, without HTML; templates escape it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from inflight.report.charts.chart import Chart
from inflight.report.charts.svg import Drawing

Figure = Drawing | Chart
Content = TypeVar("Content", covariant=True)


@dataclass(frozen=True, slots=True)
class Below:
    """A line below a cell's value, which breaks between its parts only. title: the meaning of its tone."""

    parts: tuple[str, ...]
    tone: Literal["", "good", "bad"] = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """whole: an unfoldable name that is too long to be shown. struck: not to be believed."""

    text: str
    below: tuple[Below, ...] = ()
    whole: str = ""
    struck: bool = False
    code: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """The first cell of a row names it. kind: a class of the style sheet. title: of a table in a card; wide: the card
    takes a whole row."""

    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    kind: Literal["", "several", "words", "requests"] = ""
    title: str = ""
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Part(Generic[Content]):
    """title: of a part that can be folded; "": of the only part. note: above it."""

    content: Content
    title: str = ""
    opened: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """name: its anchor, and its template. view: values of the template; an empty one leaves the section out."""

    name: str
    title: str
    view: dict[str, Any]
