"""The site as a whole: made with strict links, from pages of today's program, and without a request to anybody else."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from foreign.environments import Environment

from inflight.cli import VERBS

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(3600)]  # packages are installed, and the pages' runs are run
ROOT = Path(__file__).parents[2]
ENVIRONMENT = Environment("website", Path(__file__).with_name("environment"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("website")
    ended = subprocess.run([sys.executable, "-m", "website", folder], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    settings = str(folder / "mkdocs.yml")
    output = ENVIRONMENT.make().run("mkdocs", "build", "--strict", "-q", "-f", settings, NO_MKDOCS_2_WARNING="1")
    assert "WARNING" not in output
    return folder / "site"


def test_every_page_of_docs_and_every_verb_is_there(site: Path) -> None:
    for path in (ROOT / "docs").rglob("*.md"):
        assert (site / path.relative_to(ROOT / "docs").with_suffix(".html")).exists()
    for verb in VERBS:
        assert "--help" in (site / "reference" / f"{verb}.html").read_text(encoding="utf-8")
    assert "/v1/chat/completions" in (site / "reference/api.html").read_text(encoding="utf-8")
    assert "inflight_kv_waste_ratio" in (site / "reference/series.html").read_text(encoding="utf-8")


def test_mistakes_stand_beside_their_diagnoses(site: Path) -> None:
    page = (site / "concepts/common-mistakes.html").read_text(encoding="utf-8")
    shown = re.sub(r"<[^>]+>", "", page)
    assert (
        shown.count("inflight simulate --model") == shown.count("inflight report run.jsonl") == page.count("<h2 ") >= 9
    )
    assert "Prompts stall the running streams. ITL p99 is" in shown


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe|source)[^>]*src=\"?([^\s\">]+)", page)
        loaded += re.findall(
            r"<link[^>]*rel=\"?(?:stylesheet|preload|preconnect|icon)\"?[^>]*href=\"?([^\s\">]+)", page
        )
        assert loaded and not [one for one in loaded if one.startswith(("http:", "https:", "//"))], path
