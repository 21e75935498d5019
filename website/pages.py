"""All pages of the site in one folder: those of docs/, other texts of the checkout, and what is generated."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from website.api_page import api_page, openapi_document
from website.links import Links
from website.metrics_page import metrics_page
from website.options_pages import options_pages
from website.runs import with_runs

ROOT = Path(__file__).parents[1]
# Texts of the checkout outside of docs/, by their names there, and their places on the site.
ELSEWHERE = {
    "deploy/README.md": "deployment.md",
    "builtin/README.md": "built-in-model.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
FILES = ("site.css", "site.js", "logo.svg")


def write_pages(folder: Path, runs: bool = True) -> int:
    """Return the number of pages.

    Args:
        folder: Where they are put.
        runs: Run the command lines of pages and show their output; if not, pages show the lines alone.

    Raises:
        WebsiteError: For a link to nothing, or a run that does not show what its page says.
    """
    written = {path.relative_to(ROOT).as_posix(): path.relative_to(ROOT / "docs").as_posix() for path in _docs()}
    written |= ELSEWHERE
    links = Links(ROOT, written)
    for source, place in written.items():
        text = links.rewritten((ROOT / source).read_text(encoding="utf-8"), source)
        _write(folder / place, with_runs(text, source) if runs else text)
    shutil.copytree(ROOT / "docs" / "pictures", folder / "pictures")
    for name in FILES:
        shutil.copy(ROOT / "website" / name, folder / name)
    made = _generated()
    for place, text in made.items():
        _write(folder / place, text)
    return len(written) + sum(place.endswith(".md") for place in made)


def _docs() -> list[Path]:
    return sorted((ROOT / "docs").rglob("*.md"))


def _generated() -> dict[str, str]:
    """Place → text."""
    document = openapi_document()
    made: dict[str, Callable[[], str]] = {
        "reference/api.md": lambda: api_page(document),
        "reference/openapi.json": lambda: json.dumps(document, indent=1),
        "reference/series.md": metrics_page,
    }
    return {place: make() for place, make in made.items()} | options_pages()


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
