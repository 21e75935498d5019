"""`inflight demo` as a newcomer calls it: what is printed, what happens behind it, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from inflight.cli import call

SEEN = re.compile(r"Seen: (\d[\d,]*) × chunked prefill, (\d[\d,]*) × batch lane, (\d[\d,]*) × preemption\.")


class Demo:
    """One that runs, with its words so far."""

    def __init__(self, *arguments: str):
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", "inflight.cli", "demo", "--no-browser", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        found = re.match(r"(http://127\.0\.0\.1:\d+) is for your browser\.$", first.rstrip())
        assert found, first + self.process.stdout.read()
        self.url = found[1]

    def metric(self, name: str, **labels: str) -> float:
        page = httpx.get(f"{self.url}/metrics", timeout=30).text
        samples = (sample for family in text_string_to_metric_families(page) for sample in family.samples)
        return sum(one.value for one in samples if one.name == name and labels.items() <= one.labels.items())

    def is_gone(self) -> bool:
        try:
            httpx.get(f"{self.url}/health", timeout=5)
        except httpx.TransportError:
            return True
        return False


@pytest.mark.wide
def test_within_a_minute_all_is_seen(tmp_path: Path) -> None:
    record = tmp_path / "run.jsonl"
    demo = Demo("--seconds", "60", "--record", str(record))
    waited = preempted = 0.0
    while demo.process.poll() is None and not (waited and preempted):
        time.sleep(0.5)
        try:
            waited = max(waited, demo.metric("inflight_sequences_waiting", lane="batch"))
            preempted = demo.metric("inflight_preemptions_total")
        except httpx.TransportError:
            break
    out = demo.process.communicate(timeout=180)[0]
    assert demo.process.returncode == 0, out
    assert waited >= 1 and preempted >= 1, out
    found = SEEN.search(out)
    assert found and all(int(one.replace(",", "")) >= 1 for one in found.groups()), out
    assert "Not seen yet" not in out
    assert re.search(r"interactive +[\d,]+ answers +p50 +[\d,]+ ms", out), out
    assert re.search(r"batch +[\d,]+ answers +p50 +[\d,]+ ms", out), out
    for words in ("was computed in", "loses its row", "A batch request is done"):
        assert words in out
    assert record.stat().st_size and demo.is_gone()


@pytest.mark.wide
def test_ctrl_c_ends_it_with_a_summary() -> None:
    demo = Demo()
    deadline = time.monotonic() + 60
    while demo.metric("inflight_sequences_running", lane="batch") < 3 and time.monotonic() < deadline:
        time.sleep(0.3)
    os.killpg(demo.process.pid, signal.SIGINT)  # as a terminal does: to all of its processes
    out = demo.process.communicate(timeout=120)[0]
    assert demo.process.returncode == 0 and "Traceback" not in out, out
    assert "output tokens/s" in out and SEEN.search(out), out
    assert demo.is_gone()


@pytest.mark.wide
def test_its_server_ends_with_it() -> None:
    demo = Demo()
    os.kill(demo.process.pid, signal.SIGKILL)
    demo.process.wait()
    deadline = time.monotonic() + 30
    while not demo.is_gone() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert demo.is_gone()


@pytest.mark.wide
def test_a_port_that_is_taken_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "inflight.cli", "demo", "--no-browser", "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert f"127.0.0.1:{port} cannot be used" in done.stderr and "--port" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--seconds", "0"], "--seconds is 0; give a number above 0"),
        (["--seconds", "nan"], "--seconds is nan; give a number above 0"),
        (["--port", "70000"], "--port is 70000; give a number from 1 to 65535"),
        (["--record", "/nowhere/run.jsonl"], "the folder /nowhere does not exist"),
    ],
)
def test_mistakes_are_reported_before_anything_starts(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["demo", "--no-browser", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_where_no_browser_can_be_opened_it_says_the_address(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import webbrowser

    from inflight.cli import demo

    def none(url: str) -> bool:
        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.setattr(webbrowser, "open", none)
    monkeypatch.setenv("DISPLAY", ":9")
    demo._begin("http://127.0.0.1:1", False, opened=demo._open("http://127.0.0.1:1"), wanted=True)
    assert capsys.readouterr().out.startswith(
        "http://127.0.0.1:1 is for your browser. None could be opened from here.\n"
    )


def test_a_browser_in_this_very_terminal_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    import webbrowser

    from inflight.cli import demo

    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or True)
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    assert not demo._open("http://127.0.0.1:1") and not opened
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    assert demo._open("http://127.0.0.1:1") and opened == ["http://127.0.0.1:1"]
