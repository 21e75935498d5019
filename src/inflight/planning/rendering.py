"""Text of planning's results from the Jinja templates in `templates`: whole answers, and single sentences by name."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from inflight.config.engine import describe_engine
from inflight.counted import counted

MAX_DIGITS = 6  # of a millisecond


@cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        line=line,
        f=number,
        ms=milliseconds,
        dollars=dollars,
        counted=counted,
        finite=math.isfinite,
        engine_at=describe_engine,
    )
    return made


def render(template: str, **values: Any) -> str:
    """Return the text of a template. Its filters: f (`number`), ms, dollars, counted, finite,
    engine_at, line."""
    return _environment().get_template(f"{template}.j2").render(values).rstrip("\n")


def sentence(name: str, **values: Any) -> str:
    """Return a sentence of `sentences.j2`, on one line."""
    macro = getattr(_environment().get_template("sentences.j2").module, name)
    return line(macro(**values)).rstrip()


def line(text: str, indent: int = 0) -> str:
    """Return a text as one line, behind so many spaces."""
    return f"{' ' * indent}{' '.join(text.split())}\n"


def number(value: Any, form: str) -> str:
    """Return a value in one of Python's formats; a large number has all of its digits in place of an exponent. A text,
    which is only padded, may contain the same letters."""
    text = format(value, form)
    return format(value, ",.0f") if "e+" in text and not isinstance(value, str) else text


def per_second(requests: float) -> str:
    return f"{number(requests, ',.3g')}/s"


def milliseconds(seconds: float, limit: float = math.inf) -> str:
    """Return a time in whole milliseconds; one that misses a limit and rounds to it has as many digits as distinguish
    the two."""
    if math.isnan(seconds) or math.isinf(seconds):
        return "-" if math.isnan(seconds) else "endless"
    digits = 0
    while seconds > limit and digits < MAX_DIGITS and _rounded(seconds, digits) == _rounded(limit, digits):
        digits += 1
    return f"{_rounded(seconds, digits)} ms"


def _rounded(seconds: float, digits: int) -> str:
    return f"{seconds * 1e3:,.{digits}f}"


def dollars(amount: float) -> str:
    """Return an amount of money: cents, and below one cent two significant digits."""
    digits = 2 if not 0 < amount < 0.01 else 1 - math.floor(math.log10(amount))
    return f"{amount:,.{digits}f}"
