"""Pages of results as the benchmark programs keep them: sections in order, and the contents of all pages."""

from __future__ import annotations

import re
import shlex
from datetime import datetime, tzinfo
from pathlib import Path

import pytest

import benchmarks.results as results


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "docs/results.md"
    monkeypatch.setattr(results, "RESULTS", path)
    return path


def dated(monkeypatch: pytest.MonkeyPatch, day: int) -> None:
    """Let sections be written on a day of January."""

    class Day(datetime):
        @classmethod
        def now(cls, zone: tzinfo | None = None) -> Day:
            return cls(2026, 1, day, tzinfo=zone)

    monkeypatch.setattr(results, "datetime", Day)


def test_a_page_has_its_newest_sections_first(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for day, name in ((2, "roofline b"), (2, "roofline a"), (1, "growth"), (3, "latent")):
        dated(monkeypatch, day)
        results.write_section(name, f"Of {name}", name, "0.9")
    results.write_section("soak", "500 streams", "soak", "none lost")
    kernels = (page.parent / "results/kernels.md").read_text()
    titles = ["Of latent", "Of roofline a", "Of roofline b", "Of growth"]
    assert re.findall("^## (.*)$", kernels, re.MULTILINE) == titles
    contents = page.read_text()
    assert re.findall(r"  - \[(.*)\]\(results/kernels\.md#", contents) == titles
    assert "[500 streams](results/server.md#500-streams)" in contents
    assert "results/simulator.md" not in contents, "no heading for what was not measured"


def test_a_section_is_rewritten_and_the_others_stay_to_the_letter(page: Path) -> None:
    results.write_section("recurrence", "Recurrence", "recurrence", "none lost\n\n```\n## not a section\n```")
    results.write_section("growth", "Growth", "growth", "first")
    path = page.parent / "results/kernels.md"
    before = path.read_text()
    results.write_section("growth", "Growth", "growth", "second")
    assert path.read_text() == before.replace("first", "second")


def test_links_are_as_from_the_pages_own_folder(page: Path) -> None:
    body = "[page](gpu.md#one), ![picture](pictures/x.png), [site](https://example.org), [here](#soak)"
    results.write_section("soak", "Streams", "soak", body)
    written = (page.parent / "results/server.md").read_text()
    assert "(../gpu.md#one)" in written and "(../pictures/x.png)" in written
    assert "(https://example.org)" in written and "(#soak)" in written


def test_a_program_without_a_subject_is_an_error_that_names_the_place(page: Path) -> None:
    with pytest.raises(ValueError, match=r"brand_new is of no subject of results; add it to SUBJECTS in results\.py"):
        results.write_section("brand_new", "New", "new", "1")
    assert not page.exists()


def test_every_program_that_writes_has_one_subject() -> None:
    sources = [path.read_text() for path in (Path(results.__file__).parent).glob("**/*.py")]
    written = {name for text in sources for name in re.findall(r'(?:publish|write_section)\(\s*f?"(\w+)', text)}
    programs = [program for subject in results.SUBJECTS.values() for program in subject.programs]
    assert "peers" in written and "simulator" in written
    assert written <= set(programs) and len(programs) == len(set(programs))


def test_the_pages_of_this_checkout_are_in_that_form() -> None:
    sections = {page: results.read_sections(page) for page in results.SUBJECTS}
    assert sum(map(len, sections.values())) > 20
    for page, found in sections.items():
        path = results.RESULTS.with_suffix("") / f"{page}.md"
        assert path.read_text(encoding="utf-8") == results.render_page(page, found), page
    assert results.RESULTS.read_text(encoding="utf-8") == results.render_contents(sections)


def test_the_plan_that_is_timed_is_the_one_that_the_page_on_planning_shows() -> None:
    text = (results.RESULTS.with_suffix("") / "simulator.md").read_text(encoding="utf-8")
    found = re.search(r"`inflight (?P<asked>plan [^`]*)` takes .* It answers: (?P<answer>.*)\.", text)
    assert found is not None, "no section has the plan; run python -m benchmarks.simulator --plan --write"
    planning = results.RESULTS.with_name("planning.md").read_text(encoding="utf-8")
    shown = re.search(r"\n```\ninflight (?P<asked>plan --model llama-3-70b[^`]*)```\n\n```\n(?P<answer>.*)\n", planning)
    assert shown is not None
    assert shlex.split(found["asked"]) == shlex.split(shown["asked"].replace("\\\n", " "))
    assert found["answer"] == shown["answer"]
