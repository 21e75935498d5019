"""The page: whole, self-contained, small; and it says what was run."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest

from inflight.core.strategies.chunked import Chunked
from inflight.core.strategies.static import Static
from inflight.metrics.observation import Observation
from inflight.metrics.summary import Window, summarize
from inflight.report.page import render
from inflight.report.run import Option, Report, Run, Setting

from .pages import Page, pictures
from .recorded import Engine, short_of_blocks, workload

MOST_BYTES = 3_000_000


@pytest.fixture
def report(tmp_path: Path) -> Report:
    """Two settings, the second one short of blocks."""
    static = Engine(Static(6, 0.1)).setting(tmp_path, workload(14), "static")
    return Report("Two <settings> & more", [static, Setting("small", [short_of_blocks(tmp_path)])], ("A sentence.",))


def client_side(number: int, slow: float = 1.0) -> Run:
    """What a load client saw: no steps."""
    seen = [
        Observation(
            f"r{index}",
            0.1 * index,
            0.1 * index + slow * (0.5 + 0.01 * (index % 7)),
            first_token=0.1 * index + slow * 0.1,
            last_token=0.1 * index + slow * 0.5,
            token_times=[0.1 * index + slow * (0.1 + 0.1 * token) for token in range(5)],
            output_tokens=5,
            longest_output=5,
        )
        for index in range(number)
    ]
    return Run(seen, summarize(seen), load=f"{1 / slow:.1f} requests/s")


def test_it_is_well_formed_and_needs_nothing_else(report: Report) -> None:
    text = render(report)
    page = Page(text)
    assert page.sources == ["data:,"], "nothing is fetched"
    assert "<script" not in text and "@import" not in text and "http" not in text.replace("http-equiv", "")
    assert not [place for place, number in Counter(page.ids).items() if number > 1]
    assert set(page.links) <= set(page.ids)
    assert set(re.findall(r"var\(--([a-z0-9]+)\)", text)) <= set(re.findall(r"--([a-z0-9]+):", text))
    assert "Two <settings> & more" in page.words


def test_every_picture_is_xml_with_a_title_and_a_description(report: Report) -> None:
    drawn = pictures(render(report))
    assert len(drawn) > 15
    for picture in drawn:
        title, description = picture[0], picture[1]
        assert (title.tag, description.tag) == ("title", "desc")
        assert title.text and description.text
        labels = (picture.get("aria-labelledby") or "").split()
        assert labels == [title.get("id"), description.get("id")]


def test_it_shows_the_batch_the_blocks_and_the_service(report: Report) -> None:
    titles = Counter(picture[0].text for picture in pictures(render(report)))
    assert titles["The batch over time"] == 2
    assert titles["KV blocks over time by tenant"] == titles["Service by tenant"] == 1
    assert titles["TTFT, cumulative"] == titles["TTFT p99 against throughput"] == 1, "settings share these"


def test_nothing_is_drawn_outside_of_its_picture(report: Report) -> None:
    for picture in pictures(render(report)):
        width, height = (float(part) for part in (picture.get("viewBox") or "").split()[2:])
        for path in picture.iter("path"):
            for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path.get("d") or ""):
                assert -1 <= float(x) <= width + 1 and -1 <= float(y) <= height + 1, picture[0].text


def test_notes_stand_before_the_figures(report: Report) -> None:
    cut = replace(report.settings[0].runs[0], notes=("The record is cut off.",), valid=False)
    words = Page(render(replace(report, settings=[replace(report.settings[0], runs=[cut])]))).words
    assert 0 < words.index("The record is cut off.") < words.index("What was run")
    assert "not valid" in words


def test_settings_are_told_with_their_reasons(report: Report) -> None:
    one = replace(report.settings[0], options={"max_num_seqs": Option(32, "because <of> weights")})
    words = Page(render(Report("r", [one]))).words
    assert "max_num_seqs" in words and "because <of> weights" in words


def test_what_a_client_saw_is_enough() -> None:
    """Without steps: figures and latencies, and no batch."""
    text = render(Report("client", [Setting("server", [client_side(60)])]))
    titles = [picture[0].text for picture in pictures(text)]
    assert "TTFT, percentiles" in titles and "The batch over time" not in titles
    words = Page(text).words
    assert "batch and memory were not looked at" in words and "r7" in words, "the slowest requests are there"


def test_repeats_are_compared_with_intervals() -> None:
    """Three repeats of two settings, of which the second takes twice as long, surely."""
    fast = Setting("fast", [replace(client_side(60, slow), load="") for slow in (1.0, 1.02, 0.98)])
    slow = Setting("slow", [replace(client_side(60, slow), load="") for slow in (2.0, 2.03, 1.97)])
    words = Page(render(Report("compare", [fast, slow]))).words
    assert re.search(r"▼ \+\d+\.\d % \(\+\d+ … \+\d+\)", words), "worse, with an interval"
    assert "paired repeat by repeat" in words


def test_a_sweep_is_a_curve() -> None:
    sweep = Setting("server", [client_side(60, slow) for slow in (1.0, 1.5, 2.0)])
    text = render(Report("sweep", [sweep]))
    curve = next(one for one in pictures(text) if one[0].text == "TTFT p99 against throughput")
    assert len([title for title in curve.iter("title")]) == 1 + 3, "a point for each load, with its values"


def test_a_saturated_run_has_no_percentiles() -> None:
    seen = [
        Observation(str(index), 0.1 * index, 0.1 * index + 0.2 * index, first_token=0.1 * index + 0.19 * index)
        for index in range(200)
    ]
    window = Window(0.0, 20.0)
    run = Run(seen, summarize(seen, window), window)
    assert run.summary.saturated
    words = Page(render(Report("r", [Setting("s", [run])]))).words
    assert "Saturated at" in words and "TTFT p99" not in words and "More was offered than can be served" in words


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page of 10,000 requests."""
    many = workload(10_000, gap=0.06, prompts=(12, 40, 90), outputs=(2, 4, 6), tenants=("a", "b", "c"))
    engine = Engine(Chunked(96), num_blocks=600, max_rows=64)
    return render(Report("Many", [engine.setting(tmp_path_factory.mktemp("large"), many)]))


def test_ten_thousand_requests_make_a_small_page(large: str) -> None:
    assert "10,000" in large
    assert len(large.encode()) < MOST_BYTES
    assert "Merged: each stretch of" in large, "it says what was thinned"


def chromium(*arguments: str) -> subprocess.CompletedProcess[str]:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium on PATH")
    fixed = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=8000"]
    command = [browser, *fixed, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def console(told: subprocess.CompletedProcess[str]) -> Sequence[str]:
    return [line for line in told.stderr.splitlines() if "CONSOLE" in line]


def test_a_browser_reads_it(large: str, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(large, encoding="utf-8")
    told = chromium("--dump-dom", path.as_uri())
    assert told.returncode == 0
    assert told.stdout.count('<svg class="chart"') == large.count('<svg class="chart"') > 8
    assert "The batch over time" in told.stdout and not console(told)


def test_the_console_would_be_seen(tmp_path: Path) -> None:
    """So that its silence means something."""
    path = tmp_path / "page.html"
    path.write_text("<script>console.error('seen')</script>")
    assert console(chromium("--dump-dom", path.as_uri()))


@pytest.fixture
def long_ids(tmp_path: Path) -> str:
    """A page about requests with ids as servers make them, and latencies of ten characters."""
    many = [
        replace(one, request_id=f"chatcmpl-0123456789abcdef-{number:010}") for number, one in enumerate(workload(70))
    ]
    return render(Report("r", [Engine(Chunked(38)).setting(tmp_path, many)]))


def test_ids_are_shown_short_and_kept_whole(long_ids: str) -> None:
    shown = re.findall(r'<details class="id"><summary>([^<]*)</summary>([^<]*)</details>', long_ids)
    assert len(shown) == 15 and len({short for short, _ in shown}) == 15, "their ends tell them apart"
    assert all(len(short) <= 11 and len(whole) == 36 for short, whole in shown)


def overflowing(page: str, width: int, tmp_path: Path) -> set[str]:
    """First heads of the tables that are wider than their room on a screen of so many pixels."""
    script = """onload = () => {
        const inside = document.querySelector("iframe").contentDocument;
        const wide = [...inside.querySelectorAll(".scroll")].filter((box) => box.scrollWidth > box.clientWidth + 1);
        const heads = wide.map((box) => box.querySelector("th:nth-child(2)")).filter((head) => head);
        document.title = "seen:" + heads.map((head) => head.textContent).join(",");
    }"""
    frame = f'<iframe style="width:{width}px;height:900px" srcdoc="{escape(page)}"></iframe>'
    path = tmp_path / "frame.html"
    path.write_text(f"<title></title>{frame}<script>{script}</script>", encoding="utf-8")
    found = re.search(r"<title>seen:(.*?)</title>", chromium("--hide-scrollbars", "--dump-dom", path.as_uri()).stdout)
    assert found is not None
    return set(found[1].split(",")) - {""}


def test_tables_fit_on_a_desktop_and_percentiles_on_a_phone(long_ids: str, tmp_path: Path) -> None:
    assert overflowing(long_ids, 1280, tmp_path) == set()
    assert overflowing(long_ids, 390, tmp_path) == {"E2E"}, "only the many columns of single requests are scrolled"
