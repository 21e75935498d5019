"""What templates are given: text, in the shape in which it stands on the page. Knows no HTML; templates escape it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from inflight.report.charts.chart import Chart
from inflight.report.charts.parts import PartBars
from inflight.report.charts.svg import Drawing
from inflight.report.diagnosis import Diagnosis

Figure = Drawing | Chart | PartBars
Content = TypeVar("Content", covariant=True)


@dataclass(frozen=True, slots=True)
class Below:
    """A line under a cell's value, which breaks between its parts only. title: what its tone means."""

    parts: tuple[str, ...]
    tone: Literal["", "good", "bad"] = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """whole: all of a name that is too long to be shown, for those who unfold it. struck: not to be believed."""

    text: str
    below: tuple[Below, ...] = ()
    whole: str = ""
    struck: bool = False
    code: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """The first cell of a row names it. kind: how it is laid out, a class of the style sheet."""

    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    kind: Literal["", "several", "words", "requests"] = ""


@dataclass(frozen=True, slots=True)
class Card:
    title: str
    table: Table
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Part(Generic[Content]):
    """title: of a part that can be folded; "": of all there is. note: above it."""

    content: Content
    title: str = ""
    opened: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class RunView:
    """settings: name and details. differing: options that are not the same in all."""

    settings: Sequence[tuple[str, str]]
    differing: Table | None
    options: Sequence[Part[Table]]


@dataclass(frozen=True, slots=True)
class FiguresView:
    """tiles: value and name, and cards: of one setting. groups: tables of several, side by side."""

    note: str = ""
    tiles: Sequence[tuple[str, str]] = ()
    cards: Sequence[Card] = ()
    groups: Sequence[Part[Sequence[Table]]] = ()


@dataclass(frozen=True, slots=True)
class FiguresShown:
    note: str
    figures: Sequence[Figure]


@dataclass(frozen=True, slots=True)
class BatchView:
    wide: Sequence[Figure]
    small: Sequence[Figure]


@dataclass(frozen=True, slots=True)
class TablesView:
    note: str
    tables: Sequence[Part[Table]]


View = (
    RunView
    | FiguresView
    | FiguresShown
    | TablesView
    | Sequence[Part[Diagnosis]]
    | Sequence[Part[Table]]
    | Sequence[Part[BatchView]]
)


@dataclass(frozen=True, slots=True)
class Section:
    """place: its anchor, and its template's name."""

    place: str
    title: str
    view: View


@dataclass(frozen=True, slots=True)
class PageView:
    """notes: what must be known before a figure is believed."""

    title: str
    about: Sequence[str]
    notes: Sequence[str]
    sections: Sequence[Section]
