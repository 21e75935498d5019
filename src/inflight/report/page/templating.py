"""Pages of views by Jinja templates: one file with its styles and its script, which loads nothing. Text is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import jinja2
import msgspec
from markupsafe import Markup

from inflight import page_policy, uplot
from inflight.report.charts.chart import Plot
from inflight.report.charts.palette import CHART_RULES, PAGE_VARIABLES, PATTERNS
from inflight.report.page.views import Figure, Section
from inflight.report.run import Report

_FOLDER = Path(__file__).parent
_OPTION = re.compile(
    r"(--[a-z][a-z0-9-]*"
    r"(?: (?:sjf|deadline|fcfs|fair|prefix|chunked|continuous|dynamic|static|adaptive|slo|auto|paged)\b)?"
    r"|\[lanes\.NAME\])"
)
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}  # in a script element, in which HTML escapes have no effect


@dataclass(frozen=True, slots=True)
class PageFiles:
    """policy: the page runs this script and loads nothing."""

    style: str
    script: str
    patterns: str
    policy: str


def page(report: Report, notes: Sequence[str], sections: Sequence[Section]) -> str:
    template = _environment().get_template("report.html")
    return template.render(title=report.title, about=report.about, notes=notes, sections=sections, files=_files())


def figures_alone(title: str, figures: Sequence[Figure], columns: int = 1) -> str:
    """Return a page of figures alone, to be looked at or photographed."""
    template = _environment().get_template("figures_alone.html")
    return template.render(title=title, figures=figures, columns=columns, files=_files())


@cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["as_json"] = _as_json
    made.filters["split_options"] = _split_options
    return made


@cache
def _files() -> PageFiles:
    script = "\n".join((uplot.notice(), uplot.text_of(uplot.SCRIPT), _text_of("charts.js")))
    style = "\n".join((PAGE_VARIABLES, _text_of("report.css"), CHART_RULES, uplot.text_of(uplot.STYLE)))
    policy = page_policy.content_security_policy(script, "'unsafe-inline'")  # lines of charts have styles of their own
    return PageFiles(style, script, PATTERNS, policy)


def _text_of(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _as_json(plot: Plot) -> Markup:
    text = msgspec.json.encode(plot).decode()
    for sign, escaped in _UNSAFE.items():
        text = text.replace(sign, escaped)
    return Markup(text)


def _split_options(sentence: str) -> Iterator[tuple[str, bool]]:
    """Yield pieces of the sentence, and whether each is an option."""
    return ((piece, index % 2 == 1) for index, piece in enumerate(_OPTION.split(sentence)) if piece)
