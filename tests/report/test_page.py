"""The page: whole, self-contained, small; what is text stays text; and it says what was run."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from html import escape, unescape
from pathlib import Path

import pytest
from msgspec import structs

from benchmarks.chromium import find_chromium, opened_page
from inflight import uplot
from inflight.core.strategies.chunked import Chunked
from inflight.core.strategies.static import Static
from inflight.metrics.observation import Observation
from inflight.metrics.summary import Window, summarize
from inflight.report.page import render
from inflight.report.run import Option, Report, Run, Setting

from .pages import Page, figures, titled
from .recorded import Engine, short_of_blocks, workload

MAX_BYTES = 400_000  # of which uPlot, the styles and our script are 80,000


@pytest.fixture
def report(tmp_path: Path) -> Report:
    """Two settings, the second one short of blocks."""
    static = Engine(Static(6, 0.1)).setting(tmp_path, workload(14), "static")
    return Report("Two <settings> & more", [static, Setting("small", [short_of_blocks(tmp_path)])], ("A sentence.",))


def client_side(number: int, slow: float = 1.0) -> Run:
    """A load client's run, without steps."""
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
    assert "@import" not in text and not re.search(r"\b(?:fetch|XMLHttpRequest|WebSocket|innerHTML)\b", text)
    assert not [place for place, number in Counter(page.ids).items() if number > 1]
    assert set(page.links) <= set(page.ids)
    named = set(re.findall(r"--([a-z0-9]+):", text))
    assert set(re.findall(r"var\(--([a-z0-9]+)\)", text)) <= named
    assert "Two <settings> & more" in page.words
    assert uplot.notice() in text, "a copy of uPlot comes with its licence"


def test_its_one_script_is_the_one_that_may_run(report: Report) -> None:
    text = render(report)
    (policy,) = (attributes["content"] for _, attributes in Page(text).elements if "http-equiv" in attributes)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.S)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy is not None and f"script-src 'sha256-{digest}';" in policy and "default-src 'none'" in policy


BAD = "</script><img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>&amp;'"


@pytest.fixture
def hostile(tmp_path: Path) -> str:
    """A page about names that are all markup: of the model, requests, tenants, lanes, settings, notes and loads."""
    asked = [
        structs.replace(one, request_id=f"{number}{BAD}") for number, one in enumerate(workload(12, tenants=("a", BAD)))
    ]
    setting = Engine(settings={"model": BAD}).setting(tmp_path, asked, "named")
    reasons = {"model": Option(BAD, f"because of {BAD}")}
    first = replace(setting, name=BAD, about=BAD, created=BAD, options=reasons)
    runs = [replace(setting.runs[0], load=BAD, notes=(BAD,)), replace(setting.runs[0], load="2")]
    return render(Report(BAD, [first, Setting(f"other{BAD}", runs)], (BAD,)))


def test_names_are_text_whatever_they_hold(hostile: str) -> None:
    page = Page(hostile)
    assert [tag for tag, _ in page.elements if tag == "img"] == []
    kinds = Counter(attributes.get("type") for tag, attributes in page.elements if tag == "script")
    assert kinds == {None: 1, "application/json": len([one for one in figures(hostile) if one.kind == "chart"])}
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert page.words.count(BAD) > 10, "they are all there, as they are"
    assert any(BAD in series["name"] for one in figures(hostile) if one.plot for series in one.plot["series"])


def test_a_browser_takes_them_for_text(hostile: str, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(hostile, encoding="utf-8")
    shown_by = chromium("--dump-dom", path.as_uri())
    assert "<title>broken" not in shown_by.stdout and "<img" not in shown_by.stdout and not console(shown_by)


def test_every_picture_says_what_it_is_and_every_chart_has_its_values(report: Report) -> None:
    drawn = figures(render(report))
    assert Counter(one.kind for one in drawn) == {"drawing": 6, "chart": 17}
    for one in drawn:
        (said,) = re.findall(r'(?:<svg class="chart"[^>]*|class="plot") role="img" aria-label="([^"]+)"', one.html) or [
            ""
        ]
        assert unescape(said).startswith(one.title) and len(said) > len(one.title) + 20
        if one.kind != "drawing":
            head, *rows = one.table
            assert rows and all(len(row) == len(head) and all(row[1:]) for row in rows), one.title


def test_it_shows_the_batch_the_blocks_and_the_service(report: Report) -> None:
    titles = Counter(one.title for one in figures(render(report)))
    assert titles["The batch over time"] == 2
    assert titles["KV blocks over time by tenant"] == titles["Service by tenant"] == 1
    assert titles["TTFT, cumulative"] == titles["TTFT p99 against throughput"] == 1, "settings share these"


def test_nothing_is_drawn_outside_of_its_picture(report: Report) -> None:
    for one in figures(render(report)):
        size = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', one.html)
        if one.kind != "drawing":
            continue
        assert size is not None
        width, height = map(float, size.groups())
        for path in re.findall(r' d="([^"]*)"', one.html):
            for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path):
                assert -1 <= float(x) <= width + 1 and -1 <= float(y) <= height + 1, one.title


def test_notes_stand_before_the_figures(report: Report) -> None:
    cut = replace(report.settings[0].runs[0], notes=("The record is cut off.",), valid=False)
    content = Page(render(replace(report, settings=[replace(report.settings[0], runs=[cut])]))).words
    assert 0 < content.index("The record is cut off.") < content.index("What was run")
    assert "not valid" in content


def test_settings_are_shown_with_their_reasons(report: Report) -> None:
    one = replace(report.settings[0], options={"max_num_seqs": Option(32, "because <of> weights")})
    content = Page(render(Report("r", [one]))).words
    assert "max_num_seqs" in content and "because <of> weights" in content


def test_what_a_client_saw_is_enough() -> None:
    """Without steps: figures and latencies, and no batch."""
    text = render(Report("client", [Setting("server", [client_side(60)])]))
    titles = [one.title for one in figures(text)]
    assert "TTFT, percentiles" in titles and "The batch over time" not in titles
    content = Page(text).words
    assert "batch and memory were not judged" in content and "r7" in content, "the slowest requests are there"


def test_repeats_are_compared_with_intervals() -> None:
    """Three repeats of two settings, of which the second takes twice as long, surely."""
    fast = Setting("fast", [replace(client_side(60, slow), load="") for slow in (1.0, 1.02, 0.98)])
    slow = Setting("slow", [replace(client_side(60, slow), load="") for slow in (2.0, 2.03, 1.97)])
    content = Page(render(Report("compare", [fast, slow]))).words
    assert re.search(r"▼ \+\d+\.\d % \(\+\d+ … \+\d+\)", content), "worse, with an interval"
    assert "paired repeat by repeat" in content


def test_a_sweep_is_a_curve() -> None:
    sweep = Setting("server", [client_side(60, slow) for slow in (1.0, 1.5, 2.0)])
    text = render(Report("sweep", [sweep]))
    curve = titled(text, "TTFT p99 against throughput")
    assert curve.plot is not None
    (series,) = curve.plot["series"]
    assert [point["name"] for point in series["points"]] == ["1.0 requests/s", "0.7 requests/s", "0.5 requests/s"]
    assert [row[0] for row in curve.table[1:]] == [point["name"] for point in series["points"]]


def test_a_saturated_run_has_no_percentiles() -> None:
    seen = [
        Observation(str(index), 0.1 * index, 0.1 * index + 0.2 * index, first_token=0.1 * index + 0.19 * index)
        for index in range(200)
    ]
    window = Window(0.0, 20.0)
    run = Run(seen, summarize(seen, window), window)
    assert run.summary.saturated
    content = Page(render(Report("r", [Setting("s", [run])]))).words
    assert "Saturated at" in content and "TTFT p99" not in content and "More was offered than can be served" in content


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page of 10,000 requests."""
    many = workload(10_000, gap=0.06, prompts=(12, 40, 90), outputs=(2, 4, 6), tenants=("a", "b", "c"))
    engine = Engine(Chunked(96), num_blocks=600, max_rows=64)
    return render(Report("Many", [engine.setting(tmp_path_factory.mktemp("large"), many)]))


@pytest.mark.wide
def test_ten_thousand_requests_make_a_small_page(large: str) -> None:
    assert "10,000" in large
    assert len(large.encode()) < MAX_BYTES
    assert "Merged: each stretch of" in large, "it says what was thinned"


def chromium(*arguments: str) -> subprocess.CompletedProcess[str]:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium on PATH")
    fixed = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=60000"]
    command = [browser, *fixed, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def console(shown_by: subprocess.CompletedProcess[str]) -> Sequence[str]:
    return [line for line in shown_by.stderr.splitlines() if "CONSOLE" in line]


def test_a_browser_draws_it(large: str, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(large, encoding="utf-8")
    shown_by = chromium("--dump-dom", path.as_uri())
    assert shown_by.returncode == 0 and not console(shown_by)
    assert shown_by.stdout.count('class="uplot') == large.count('class="plot"') > 4, "every chart was drawn"
    assert shown_by.stdout.count('<svg class="chart" viewBox') == large.count('<svg class="chart" viewBox') > 2


def test_without_a_script_its_values_are_there(large: str, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text(large, encoding="utf-8")
    if find_chromium() is None:
        pytest.skip("no Chromium on PATH")

    async def look() -> dict[str, int]:
        async with opened_page() as page:
            await page.send("Emulation.setScriptExecutionDisabled", value=True)
            await page.open(path.as_uri())
            await page.until("document.readyState === 'complete' && document.querySelectorAll('footer').length")
            seen = "[...document.querySelectorAll('%s')].filter((one) => one.checkVisibility()).length"
            kinds = (".plot", ".values summary", "noscript p", "svg.chart[viewBox]", "table")
            return {kind: await page.eval(seen % kind) for kind in kinds}

    seen = asyncio.run(look())
    assert seen[".plot"] == 0 and seen["noscript p"] == 1, "nothing is left empty, and it is said why"
    assert seen[".values summary"] == large.count('class="values"') > 4
    assert seen["svg.chart[viewBox]"] > 2 and seen["table"] > 3


def test_the_console_would_be_seen(tmp_path: Path) -> None:
    """So that its silence means something."""
    path = tmp_path / "page.html"
    path.write_text("<script>console.error('seen')</script>")
    assert console(chromium("--dump-dom", path.as_uri()))


@pytest.fixture
def long_ids(tmp_path: Path) -> str:
    """A page about requests with ids as servers make them, and latencies of ten characters."""
    many = [
        structs.replace(one, request_id=f"chatcmpl-0123456789abcdef-{number:010}")
        for number, one in enumerate(workload(70))
    ]
    return render(Report("r", [Engine(Chunked(38)).setting(tmp_path, many)]))


def test_ids_are_shown_short_and_kept_whole(long_ids: str) -> None:
    shown = re.findall(r'<details class="id"><summary>([^<]*)</summary>([^<]*)</details>', long_ids)
    assert len(shown) == 15 and len({short for short, _ in shown}) == 15, "their ends differ"
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


def test_saturated_columns_share_one_note() -> None:
    seen = [
        Observation(str(index), 0.1 * index, 0.1 * index + 0.2 * index, first_token=0.1 * index + 0.19 * index)
        for index in range(200)
    ]
    window = Window(0.0, 20.0)
    settings = [Setting(name, [Run(seen, summarize(seen, window), window)]) for name in ("one", "other")]
    words = Page(render(Report("r", settings))).words
    assert re.search(r"Saturated\. one at [\d.]+ requests/s, other at [\d.]+ requests/s\. In each latency", words)
    assert "Saturated at" not in words
