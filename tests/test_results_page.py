"""docs/results.md as the benchmark programs keep it: sections in order under their table of contents."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import benchmarks.results as results


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "docs/results.md"
    monkeypatch.setattr(results, "RESULTS", path)
    return path


def test_sections_stand_in_the_order_of_questions_whoever_wrote_first(page: Path) -> None:
    results.write_section("soak", "500 streams", "soak", "none lost")
    results.write_section("roofline b", "Shares: b", "roofline b", "0.9")
    results.write_section("roofline a", "Shares: a", "roofline a", "0.8")
    results.write_section("peers a", "Beside others: a's shape", "peers", "1.2×")
    text = page.read_text()
    assert re.findall("^## (.*)$", text, re.MULTILINE) == [
        "Beside others: a's shape",
        "Shares: a",
        "Shares: b",
        "500 streams",
    ]
    assert "  - [Beside others: a's shape](#beside-others-as-shape)" in text
    assert "simulator" not in text.partition("<!--")[0], "no heading for what was not measured"


def test_a_section_is_rewritten_and_the_others_stay_to_the_letter(page: Path) -> None:
    results.write_section("soak", "500 streams", "soak", "none lost\n\n```\n## not a section\n```")
    results.write_section("growth", "Growth", "growth", "first")
    before = page.read_text()
    results.write_section("growth", "Growth", "growth", "second")
    assert page.read_text() == before.replace("first", "second")


def test_a_program_without_a_place_is_told_where_to_add_it(page: Path) -> None:
    with pytest.raises(ValueError, match=r"brand_new is in no group of results; add it to _ORDER in results\.py"):
        results.write_section("brand_new", "New", "new", "1")
    assert not page.exists()


def test_every_program_that_writes_has_a_place() -> None:
    sources = [path.read_text() for path in (Path(results.__file__).parent).glob("**/*.py")]
    written = {name for text in sources for name in re.findall(r'(?:publish|write_section)\(\s*f?"(\w+)', text)}
    assert "peers" in written and "simulator" in written
    assert written <= {program for programs in results._ORDER.values() for program in programs}


def test_the_page_of_this_checkout_is_in_that_form() -> None:
    text = results.RESULTS.read_text(encoding="utf-8")
    sections = {found["name"]: found["body"] for found in results._SECTION.finditer(text)}
    assert len(sections) > 20
    assert results._page(sections) == text


def test_the_plan_that_is_timed_is_the_one_that_the_page_on_planning_shows() -> None:
    text = results.RESULTS.read_text(encoding="utf-8")
    found = re.search(r"`inflight (?P<asked>plan [^`]*)` takes .* It answers: (?P<answer>.*)\.", text)
    assert found is not None, "no section tells of the plan; run python -m benchmarks.simulator --plan --write"
    planning = results.RESULTS.with_name("planning.md").read_text(encoding="utf-8")
    shown = re.search(r"\n```\ninflight (?P<asked>plan --model llama-3-70b[^`]*)```\n\n```\n(?P<answer>.*)\n", planning)
    assert shown is not None
    assert shlex.split(found["asked"]) == shlex.split(shown["asked"].replace("\\\n", " "))
    assert found["answer"] == shown["answer"]
