"""Parts of the site: links, runs, tables, and a place in the navigation for each page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from inflight.cli import VERBS
from website.api_page import api_page, openapi_document
from website.errors import WebsiteError
from website.links import Links
from website.metrics_page import metrics_page
from website.option_tables import PAGES as OPTION_PAGES
from website.option_tables import with_options
from website.options_pages import options_pages, with_verbs
from website.pages import ELSEWHERE, ROOT
from website.runs import with_runs

SETTINGS = with_verbs((ROOT / "website/mkdocs.yml").read_text(encoding="utf-8"))
PAGES = sorted(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", [*PAGES, *ELSEWHERE.values(), *(f"reference/{verb}.md" for verb in VERBS)])
def test_a_page_has_its_place_in_the_navigation(page: str) -> None:
    assert re.search(rf"[-:] {re.escape(page)}$", SETTINGS, re.MULTILINE), f"add {page} to nav in website/mkdocs.yml"


def test_the_navigation_names_no_page_that_is_not_made() -> None:
    made = {*PAGES, *ELSEWHERE.values(), *options_pages(), "reference/api.md", "reference/series.md"}
    assert set(re.findall(r"- (?:[^:\n]+: )?(\S+\.md)$", SETTINGS, re.MULTILINE)) == made


@pytest.mark.parametrize("path", OPTION_PAGES, ids=lambda path: path.name)
def test_tables_of_options_are_those_of_the_command_line(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert with_options(page) == page, "run python -m website.option_tables"


def test_a_table_of_options_is_made_of_their_help() -> None:
    page = "<!-- options of serve: --watermark -->\nold\n<!-- end of options -->\n"
    row = "| `--watermark FLOAT` | Fraction of KV blocks kept free when admitting new requests.  [default: 0.01] |"
    assert row in with_options(page) and "old" not in with_options(page)


@pytest.fixture
def links(tmp_path: Path) -> Links:
    for name in ("docs/a.md", "docs/deep/b.md", "deploy/README.md", "docs/pictures/p.svg", "src/code.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return Links(tmp_path, {"docs/a.md": "a.md", "docs/deep/b.md": "deep/b.md", "deploy/README.md": "deployment.md"})


@pytest.mark.parametrize(
    ("source", "written", "shown"),
    [
        ("docs/a.md", "[b](deep/b.md#here)", "[b](deep/b.md#here)"),
        ("docs/a.md", "[run it](../deploy/README.md)", "[run it](deployment.md)"),
        ("docs/deep/b.md", "[run it](../../deploy/README.md#x)", "[run it](../deployment.md#x)"),
        ("deploy/README.md", "[a](../docs/a.md) and [b](../docs/deep/b.md)", "[a](a.md) and [b](deep/b.md)"),
        ("docs/deep/b.md", "![p](../pictures/p.svg)", "![p](../pictures/p.svg)"),
        ("deploy/README.md", "![p](../docs/pictures/p.svg)", "![p](pictures/p.svg)"),
        ("docs/a.md", "[the code](../src/code.py)", "the code (`src/code.py`)"),
        ("docs/a.md", "[`src/code.py`](../src/code.py)", "`src/code.py`"),
        ("docs/a.md", "[there](https://example.org/a.md) [here](#x)", "[there](https://example.org/a.md) [here](#x)"),
        ("docs/a.md", "```\n[no](link.md)\n```", "```\n[no](link.md)\n```"),
    ],
)
def test_links_lead_to_the_same_text(links: Links, source: str, written: str, shown: str) -> None:
    assert links.rewritten(written, source) == shown


def test_a_link_to_nothing_is_refused_by_name(links: Links) -> None:
    with pytest.raises(WebsiteError, match=r"docs/a\.md links to \.\./src/other\.py"):
        links.rewritten("[x](../src/other.py)", "docs/a.md")


@pytest.mark.parametrize("text", ["README.md", "examples/README.md"])
def test_texts_that_are_not_on_the_site_lead_somewhere_too(text: str) -> None:
    pages = {f"docs/{page}": page for page in PAGES}
    Links(ROOT, {**pages, **ELSEWHERE, text: "text.md"}).rewritten((ROOT / text).read_text(encoding="utf-8"), text)


def test_command_lines_are_run_and_answers_put_below() -> None:
    page = with_runs("Before.\n\n<!-- run: inflight -->\n```sh\ninflight --version\n```\n\nBehind.\n", "page.md")
    assert re.fullmatch(
        r"Before\.\n\n```sh\ninflight --version\n```\n\n```text\ninflight [\d.]+\n```\n\nBehind\.\n", page
    )


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("<!-- run: a unicorn -->\n```sh\ninflight --version\n```\n", "does not say 'a unicorn'"),
        ("<!-- run -->\n```sh\ninflight report nothing.jsonl\n```\n", "ended with 2"),
        ("<!-- run -->\n```sh\nrm -rf /tmp/nothing\n```\n", "only inflight is run"),
    ],
)
def test_a_page_whose_run_shows_something_else_is_refused(block: str, message: str) -> None:
    with pytest.raises(WebsiteError, match=message):
        with_runs(block, "page.md")


def test_references_are_read_off_the_program() -> None:
    serve = options_pages()["reference/serve.md"]
    assert "| `--max-num-seqs INTEGER` |" in serve and serve.index("## Engine") < serve.index("## Scheduling")
    assert "`inflight_kv_waste_ratio`" in metrics_page() and "`vllm:num_requests_running`" in metrics_page()
    api = api_page(openapi_document())
    assert "## POST /v1/chat/completions" in api and "## POST /v1/batches" in api
    assert re.search(r"\| `messages` \(needed\) \|", api)
