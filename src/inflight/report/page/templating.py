"""Pages of views by Jinja's templates: one file with its styles, its script and nothing else to ask for.

Escapes whatever is text. Knows the templates and what every page holds; what is told, the views hold.
"""

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
from inflight.report.page.views import Figure, PageView

_FOLDER = Path(__file__).parent
_OPTION = re.compile(
    r"(--[a-z][a-z0-9-]*"
    r"(?: (?:sjf|deadline|fcfs|fair|prefix|chunked|continuous|dynamic|static|adaptive|slo|auto|paged)\b)?"
    r"|\[lanes\.NAME\])"
)
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}  # in a script's element, in which nothing is escaped


@dataclass(frozen=True, slots=True)
class PageFiles:
    """policy: what the page may do: run this script, and ask nobody for anything."""

    style: str
    script: str
    patterns: str
    policy: str


def page(view: PageView) -> str:
    return _environment().get_template("report.html").render(title=view.title, page=view, files=_files())


def figures_alone(title: str, figures: Sequence[Figure], columns: int = 1) -> str:
    """A page of these alone, to be looked at or photographed."""
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
    made.filters["options_apart"] = _options_apart
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


def _options_apart(sentence: str) -> Iterator[tuple[str, bool]]:
    """Pieces of the sentence, and whether each is an option."""
    return ((piece, place % 2 == 1) for place, piece in enumerate(_OPTION.split(sentence)) if piece)
