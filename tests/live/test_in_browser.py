"""The page in a real browser: replays and live, both widths, keys and mouse, bad names, many requests, lost servers."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from core.builders import request
from report.recorded import Engine
from server.conftest import Server, start

from benchmarks.chromium import Page, find_chromium, opened_page
from benchmarks.long_record import write_record
from inflight.cli.live_replay import replays_of, write_page
from inflight.core.strategies.chunked import Chunked
from inflight.core.strategies.static import Static

__all__ = ["start"]
pytestmark = [
    pytest.mark.wide,
    pytest.mark.skipif(find_chromium() is None, reason="no Chromium on PATH"),
]

MARKUP = "<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"
FIRST = "inflight.page.runs[0]"
DRAWN = f"""(() => {{
  const canvas = {FIRST}.element.querySelector(".batch canvas"), pen = canvas.getContext("2d");
  const seen = new Set();
  for (let x = 60; x < canvas.width - 20; x += 9)
    for (let y = 48; y < canvas.height - 24; y += 5) seen.add(pen.getImageData(x, y, 1, 1).data.join());
  return seen.size;
}})()"""


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Static beside chunked, in one file; ids are full of markup."""
    folder = tmp_path_factory.mktemp("compared")
    paths = []
    for name, strategy in (("static", Static(4, 1.0)), ("chunked", Chunked(38))):
        asked = [
            request(f"r{index}{MARKUP}", prompt=range(30 + index), output=20 + index % 7, arrival=index * 0.05)
            for index in range(24)
        ]
        paths.append(folder / f"{name}.jsonl")
        Engine(strategy=strategy, num_blocks=1024, settings={"strategy": name}).record(paths[-1], asked)
    page = folder / "page.html"
    write_page(page, replays_of(paths))
    return page


def faults(page: Page) -> list[str]:
    """Return what the page logged, except requests to a missing server and pictures that the test reads."""
    return [one for one in page.console if "Failed to load resource" not in one and "readback" not in one]


def run(work: Any) -> None:
    asyncio.run(work)


async def pick_a_run(page: Page) -> None:
    """Clicks into the middle of a run that is seen."""
    place = await page.eval(
        f"""(() => {{
          const batch = {FIRST}.batch, box = batch.canvas.getBoundingClientRect(), {{ end, span, until }} = batch.shown;
          for (let row = batch.fitted - 1; row >= 0; row--)
            for (const run of batch.history.rows[row] || []) {{
              if (run.end <= end - span || run.start >= until) continue;
              const time = (Math.max(run.start, end - span) + Math.min(run.end, until)) / 2;
              if (run.work > 2 || (Math.min(run.end, until) - Math.max(run.start, end - span)) / span < 0.01) continue;
              const x = 34 + (1 - (end - time) / span) * batch.plotWidth, y = 6 + 34 + (row + 0.6) * batch.rowHeight;
              return [box.left + x, box.top + y];
            }}
        }})()"""
    )
    await page.click(*place)


@pytest.mark.parametrize(("width", "dark"), [(1440, False), (390, True)])
def test_a_replay_is_drawn_without_requests(compared: Path, width: int, dark: bool) -> None:
    async def look() -> None:
        async with opened_page(width, dark=dark) as page:
            await page.open(compared.as_uri())
            await page.until("document.getElementById('status-text').textContent === 'replay'")
            await page.until(f"{FIRST}.batch.shown && inflight.page.offset > 0.3")
            assert await page.eval("inflight.page.runs.length") == 2
            assert await page.until(f"{DRAWN} > 6"), "rows have colours"
            assert await page.until("document.querySelectorAll('.uplot').length === 8")
            widest = await page.eval("document.documentElement.scrollWidth")
            assert widest <= width, "nothing is wider than the screen"
            assert [one for one in page.asked if not one.startswith(("file:", "data:"))] == []
            assert faults(page) == []

    run(look())


def test_keys_pause_go_through_time_and_close(compared: Path) -> None:
    async def look() -> None:
        async with opened_page() as page:
            await page.open(compared.as_uri())
            await page.until("window.inflight && inflight.page.offset > 0.5")
            await page.key(" ", "Space", " ")
            await page.until("inflight.page.paused")
            before = await page.eval("inflight.page.offset")
            await page.key("ArrowLeft")
            assert await page.until(f"inflight.page.offset < {before}")
            await page.key("ArrowRight")
            await page.until(f"Math.abs(inflight.page.offset - {before}) < 1e-6")
            assert await page.eval("document.getElementById('pause').getAttribute('aria-pressed')") == "true"
            await page.eval("inflight.page.scrub(0.5)")
            await page.until(f"Math.abs({FIRST}.batch.shown.until - inflight.page.timeOf({FIRST})) < 1e-6")
            await pick_a_run(page)
            await page.until("!document.getElementById('drawer').hidden")
            text = await page.eval("document.getElementById('drawer').innerText")
            assert "in all" in text and "prompt" in text.lower() and "Computed beside it" in text
            await page.key("Escape")
            await page.until("document.getElementById('drawer').hidden")

    run(look())


def test_names_are_text_whatever_they_hold(compared: Path) -> None:
    async def look() -> None:
        async with opened_page() as page:
            await page.open(compared.as_uri())
            await page.until("window.inflight && inflight.page.offset > 0.5")
            await page.key(" ", "Space", " ")
            await page.eval("document.querySelectorAll('details').forEach((one) => (one.open = true))")
            await pick_a_run(page)
            await page.until("document.getElementById('drawer').innerText.includes('<img src=x')")
            await page.until(f"{FIRST}.element.querySelector('.requests').innerText.includes('<img')")
            assert await page.eval("document.querySelectorAll('img').length") == 0
            assert await page.eval("document.title") == "static beside chunked · inflight" and faults(page) == []

    run(look())


def test_everything_can_be_reached_and_has_a_name(compared: Path) -> None:
    async def look() -> None:
        async with opened_page() as page:
            await page.open(compared.as_uri())
            await page.until("window.inflight && inflight.page.offset > 0.5")
            # Charts have their names once they are drawn.
            await page.until(
                """[...document.querySelectorAll('button, select, input, canvas, [role=img]')].filter((one) =>
                  one.checkVisibility() && one.ariaHidden !== 'true'
                  && !(one.getAttribute('aria-label') || one.innerText || one.labels?.length))
                  .length === 0"""
            )
            tree = await page.send("Accessibility.getFullAXTree")
            roles = {node["role"]["value"] for node in tree["nodes"] if not node.get("ignored")}
            assert roles >= {"main", "banner", "heading", "button", "slider", "status", "image"}

    run(look())


HELLO = {
    "type": "hello", "source": "live", "title": "m", "server": "a", "num_blocks": 9000, "block_size": 16,
    "max_rows": 256, "sees_all": True,
}  # fmt: skip
FEED = f"""(() => {{
  const page = inflight.page, run = page.runs[0];
  run.greet({json.dumps(HELLO)}, true);
  window.fed = window.fed || 0;
  window.feedOne = () => {{
    const number = window.fed++, start = number / 10, runs = [], holders = [], map = [];
    for (let row = 0; row < 256; row++) {{
      const sequence = Math.floor((number + row) / 50) * 256 + row;
      runs.push([row, sequence, (number + row) % 50 ? 1 : 0, start, start + 0.1, 2]);
      holders.push([sequence, row, 100, 99, 20, 0]);
      map.push(sequence, 20);
    }}
    map.push(-3, 9000 - 256 * 20);
    const steps = [[start, start + 0.05, 0.05, 0.05, 1, 0, 256, 0, 0, 0],
      [start + 0.05, start + 0.1, 0.05, 0.05, 1, 0, 256, 0, 0, 0]];
    const requests = runs.filter((one) => one[2] === 0).map((one) => ({{ number: one[1], request_id: "r" + one[1],
      lane: "interactive", arrival: start }}));
    run.history.add({{ number, start, end: start + 0.1, steps, runs, requests,
      lanes: [{{ name: "interactive", waiting: 10000, running: 256, stands_for: "rows", first: [], oldest: 5 }}],
      blocks: {{ held: 5120, free: 3880, map: number % 5 ? [] : map }}, holders: number % 5 ? [] : holders,
      rates: {{ output_tokens: 5000 }} }});
  }};
  return true;
}})()"""


def test_ten_minutes_of_a_full_batch_keep_no_more_than_three(start: Callable[..., Server]) -> None:
    """And 10,000 waiting requests are a number."""
    server = start()

    async def look() -> None:
        async with opened_page() as page:
            await page.open(server.url)
            await page.until("window.inflight && inflight.page.runs.length === 1")
            await page.eval("inflight.page.feed.run = () => {}; inflight.feeds.LiveFeed.prototype.take = () => {}")
            await page.eval(FEED)
            sizes = []
            for _ in range(4):
                await page.eval("for (let k = 0; k < 2000; k++) feedOne()")
                sizes.append(
                    await page.eval(
                        f"""[{FIRST}.history.frames.length, {FIRST}.history.steps.length, {FIRST}.history.requests.size,
                        {FIRST}.history.rows.reduce((sum, one) => sum + one.length, 0), {FIRST}.history.maps.length]"""
                    )
                )
                await asyncio.sleep(0.2)
            assert sizes[1] == pytest.approx(sizes[3], rel=0.1), "it grows no more"
            await page.until(f"{FIRST}.element.querySelector('.queues').innerText.includes('10.0 k waiting')")
            assert await page.until(f"{DRAWN} > 20") and faults(page) == []

    run(look())


@pytest.fixture
def traffic() -> Iterator[Callable[[str], None]]:
    """Requests, one after the other, until the test ends."""
    ending = threading.Event()
    threads: list[threading.Thread] = []

    def ask(url: str, key: str, tokens: int) -> None:
        body = {"prompt": "one two three", "max_tokens": tokens, "ignore_eos": True}
        while not ending.is_set():
            with suppress(httpx.HTTPError):
                httpx.post(f"{url}/v1/completions", json=body, timeout=30, headers={"Authorization": f"Bearer {key}"})

    def begin(url: str, key: str = "none", tokens: int = 300) -> None:
        threads.append(threading.Thread(target=ask, args=(url, key, tokens), daemon=True))
        threads[-1].start()

    yield begin
    ending.set()
    for one in threads:
        one.join(30)


def test_a_fresh_server_says_how_to_send_it_a_request(start: Callable[..., Server]) -> None:
    server = start()

    async def look() -> None:
        async with opened_page() as page:
            await page.open(server.url)
            await page.until("!document.getElementById('first').hidden")
            command = await page.eval("document.querySelector('#first code').textContent")
            assert command.startswith(f"curl {server.url}/v1/completions -H ")
            subprocess.run(shlex.split(command), check=True, timeout=60, capture_output=True)
            await page.until("document.getElementById('first').hidden")
            assert faults(page) == []

    run(look())


def test_a_server_is_seen_at_work_and_again_when_it_comes_back(
    start: Callable[..., Server], traffic: Callable[[str], None]
) -> None:
    first = start()
    port = first.url.rsplit(":", 1)[1]
    traffic(first.url)

    async def look() -> None:
        async with opened_page() as page:
            await page.open(first.url)
            await page.until("document.getElementById('status-text').textContent === 'live'")
            assert await page.until(f"{DRAWN} > 4")
            assert {httpx.URL(one).host for one in page.asked if one.startswith("http")} == {"127.0.0.1"}
            await page.key(" ", "Space", " ")
            await page.until("document.getElementById('status-text').textContent === 'paused'")
            await page.key(" ", "Space", " ")
            server = await page.eval("inflight.page.server")
            first.stop()
            await page.until("document.getElementById('status').dataset.kind === 'lost'")
            start("--port", port)
            await page.until(f"inflight.page.server !== {json.dumps(server)}", 60)
            await page.until("document.getElementById('notice').textContent.includes('started anew')")
            await page.until("inflight.page.runs[0].history.frames.length > 3")
            assert faults(page) == []

    run(look())


def test_a_tenant_gives_his_key_and_sees_his_own(
    start: Callable[..., Server], keys_of_two: Path, traffic: Callable[..., None]
) -> None:
    server = start("--api-keys-file", str(keys_of_two))
    traffic(server.url, "sk-umbrella")

    async def look() -> None:
        async with opened_page() as page:
            await page.open(server.url)
            await page.until("document.getElementById('key').open")
            await page.send("Input.insertText", text="sk-acme")
            await page.key("Enter", "Enter", "\r")
            await page.until("document.getElementById('status-text').textContent === 'live'")
            assert "requests of acme" in await page.until("document.getElementById('notice').textContent")
            assert await page.eval("getComputedStyle(document.getElementById('pause')).display") == "none"
            await page.until(f"{DRAWN} > 2")
            assert not [one for one in page.asked if "sk-acme" in one]
            infos = await page.eval(f"[...{FIRST}.history.requests.values()].map((one) => one.info)")
            assert infos and all(one.get("mine") is False for one in infos if "request_id" in one or "mine" in one)

    run(look())


@pytest.fixture
def keys_of_two(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text('[acme]\nkey = "sk-acme"\n[umbrella]\nkey = "sk-umbrella"\n', encoding="utf-8")
    return path


ENGINES = """(() => {
  const page = inflight.page, hello = page.runs[0].history.hello;
  window.greet = (engine, clock) => page.greetLive({ type: "hello", source: "live", title: "m · " + engine, engine,
    clock, server: page.server, num_blocks: 40, block_size: 16, max_rows: 4, sees_all: true });
  window.addFrame = (engine, number, start) => page.engines.get(engine).history.add({ number, start, end: start + 1,
    runs: [[0, 1, 0, start, start + 0.5, 9], [0, 1, 1, start + 0.5, start + 1, 4]],
    requests: [{ number: 1, request_id: "r" }],
    lanes: [{ name: "interactive", waiting: 2, running: 1, apart: { kv: 2 } }], holders: [[1, 0, 13, 13, 3, 0]],
    blocks: { held: 5, moving: 2, free: 35, map: [1, 3, -5, 2, -3, 35],
      host: { blocks: 20, kept: 4, wanted: 6, map: [7, 6, -2, 4, -3, 10] },
      disk: { blocks: 900, kept: 30, others: 60, map: [-2, 3, -4, 6, -3, 81], per_cell: 10 } } });
  return Boolean(hello);
})()"""
ENGINE = "inflight.page.engines.get"


def test_of_several_engines_each_is_drawn_on_one_clock_until_it_is_gone(start: Callable[..., Server]) -> None:
    """With its host and its folder."""
    server = start()

    async def look() -> None:
        async with opened_page() as page:
            await page.open(server.url)
            await page.until("window.inflight && inflight.page.runs[0]?.history.hello")
            await page.eval("inflight.feeds.LiveFeed.prototype.take = () => {}")
            assert await page.eval(ENGINES)
            for number, name in enumerate("abcdef"):
                await page.eval(f"greet('{name}', {-1000 * number}); addFrame('{name}', 0, {1000 * number} + 5)")
            await page.until(f"{ENGINE}('b').batch.shown && {ENGINE}('a').batch.shown")
            ends = await page.eval(
                f"['a', 'b'].map((one) => {ENGINE}(one).batch.shown.end - {ENGINE}(one).history.end)"
            )
            assert abs(ends[0] - ends[1]) < 0.1, "both are drawn to the same moment"
            folded = await page.eval("[...inflight.page.engines.values()].map((one) => Boolean(one.folded))")
            assert folded == [False] * 5 + [True] * 2, "four are open, and what is there of all"
            said = f"{ENGINE}('b').element.innerText"
            await page.until(f"{said}.includes('In the folder') && {said}.includes('2 deferred')")
            text = await page.eval(said)
            for part in (
                "4 kept · 6 for preempted requests · 10 free",
                "30 kept · 60 of other models · 810 free; a cell is 10 blocks",
                "moving 2",
                "2 deferred: keys and values are on their way",
            ):
                assert part in text, part
            tiers = f"[...{ENGINE}('b').element.querySelectorAll('.tier canvas')]"
            colours = f"""{tiers}.map((one) => new Set([3, 9, 15].map((cell) => {{
              const map = {ENGINE}('b').memory[one === {tiers}[0] ? 'host' : 'disk'].cells, side = map.side;
              const x = (cell % map.columns + 0.3) * side, y = (Math.floor(cell / map.columns) + 0.3) * side;
              return one.getContext('2d').getImageData(x, y, 1, 1).data.join(); }})).size)"""
            assert min(await page.eval(colours)) >= 2, "cells differ"
            await page.eval("greet('b', -7); addFrame('b', 0, 3)")
            assert await page.eval(f"{ENGINE}('b').history.frames.length") == 1, "it has started again"
            await page.eval("inflight.page.keepEngines([{ name: 'a' }, { name: 'b', state: 'not loaded' }])")
            assert await page.eval("[...inflight.page.engines.keys()]") == ["", "a"]
            assert await page.eval("document.querySelectorAll('.run').length") == 2 and faults(page) == []

    run(look())


def test_a_request_in_flight_shows_the_engines_account(
    start: Callable[..., Server], traffic: Callable[..., None]
) -> None:
    server = start("--max-num-seqs", "1")
    for _ in range(24):
        traffic(server.url, tokens=900)

    async def look() -> None:
        async with opened_page() as page:
            await page.open(server.url)
            await page.until("window.inflight && inflight.page.runs[0]?.history.frames.length")
            chip = f"[...{FIRST}.element.querySelectorAll('.queues .chip')].at(-1)"
            for _ in range(40):  # who waits may soon be served
                if await page.eval(f"{chip} ? ({chip}.click(), true) : false"):
                    await asyncio.sleep(0.7)
                if "as the engine counts it" in await page.eval("document.getElementById('drawer').innerText"):
                    break
                await asyncio.sleep(0.1)
            text = await page.eval("document.getElementById('drawer').innerText")
            assert "until now, as the engine counts it" in text and "waiting" in text, text
            assert any("/live/account?id=" in one for one in page.asked) and faults(page) == []

    run(look())


def test_a_long_record_is_looked_at_closely(tmp_path: Path) -> None:
    """Its own frames are coarse; those of the shown stretch are asked for."""
    record = write_record(tmp_path / "long.jsonl", 12_000)
    command = [sys.executable, "-m", "inflight.cli", "report", "--live", str(record)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None

    async def look(url: str) -> None:
        async with opened_page() as page:
            await page.open(url)
            await page.until("window.inflight && inflight.page.runs[0]?.history.frames.length", 60)
            await page.until("document.getElementById('status-text').textContent === 'replay'", 120)
            await page.eval("inflight.page.scrub(0.5); inflight.page.span = 2")
            assert await page.until(f"{FIRST}.shown !== {FIRST}.history", 60)
            seen = await page.eval(
                f"""[{FIRST}.close.found.from, {FIRST}.close.found.to, {FIRST}.shown.frames.length,
                {FIRST}.shown.steps.length, {FIRST}.shown.requests === {FIRST}.history.requests]"""
            )
            assert seen[0] == pytest.approx(116, abs=0.1) and seen[1] == pytest.approx(122, abs=0.1)
            assert seen[2] > 500 and seen[3] == pytest.approx(300, abs=3) and seen[4], "every step is there"
            assert await page.until(f"{DRAWN} > 4")
            await page.eval("inflight.page.span = 180")
            assert await page.until(f"{FIRST}.shown === {FIRST}.history"), "a wide window has frames enough"
            assert faults(page) == []

    try:
        found = re.search(r"http://\S+", process.stderr.readline())
        assert found is not None
        run(look(found[0]))
    finally:
        process.terminate()
        process.wait()


def test_the_first_paint_comes_soon(compared: Path) -> None:
    """Measure in the browser; the time is printed, and only an absurd one fails."""

    async def look() -> float:
        async with opened_page() as page:
            began = time.monotonic()
            await page.open(compared.as_uri())
            paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
            value = float(await page.until(paint))
            assert time.monotonic() - began < 60
            return value

    assert 0 < asyncio.run(look()) < 20_000


def test_a_page_that_is_opened_while_the_model_loads_says_so(tmp_path: Path) -> None:
    """A stream that is refused with 503 is no lost connection."""
    feeds = Path("src/inflight/live/page/feeds.js").read_text(encoding="utf-8")
    page_file = tmp_path / "page.html"
    page_file.write_text(
        f"<script>{feeds}</script><script>window.said = []; window.fetch = async () => "
        'new Response(JSON.stringify({ error: { message: "The model loads." } }), { status: 503 });'
        "new window.inflight.feeds.LiveFeed('/x', { state: (...state) => said.push(state) }).run();</script>"
    )

    async def opened() -> Any:
        async with opened_page() as page:
            await page.open(page_file.as_uri())
            await page.until("said.length > 1")
            return await page.eval("said.slice(0, 2)")

    assert asyncio.run(opened()) == [["loading", "The model loads."]] * 2
