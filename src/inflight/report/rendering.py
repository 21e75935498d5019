"""Text of reports from the Jinja templates in `templates`: whole reports, and findings by name."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from inflight.report.charts.quantity import quantity


@cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(q=quantity, f=format)
    return made


def render(template: str, **values: Any) -> str:
    """Return the text of a template. Its filters: q (a quantity of a unit), f (Python's format)."""
    return _environment().get_template(f"{template}.j2").render(values)


def paragraphs(name: str, **values: Any) -> list[str]:
    """Return the paragraphs of a macro of `findings.j2`, each on one line. Blank lines in names, which are the users',
    begin no paragraph."""
    macro = getattr(_environment().get_template("findings.j2").module, name)
    values = {key: " ".join(value.split()) if isinstance(value, str) else value for key, value in values.items()}
    return [" ".join(one.split()) for one in str(macro(**values)).split("\n\n") if one.strip()]
