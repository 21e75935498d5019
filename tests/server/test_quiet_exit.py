"""A server that ends says nothing but its log: whoever reads that as JSON can read all of it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from breadth import first_of

ENDLESS = {"prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True}


class Told:
    """A server whose standard error is a file, which is whole when the process has ended."""

    def __init__(self, folder: Path):
        self._path = folder / "stderr"
        settings = ("--port", "0", "--log-format", "json", "--data-dir", str(folder / "data"))
        command = [sys.executable, "-m", "inflight.cli", "serve", *settings]
        with self._path.open("w") as out:
            self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=out)

    def lines(self) -> list[str]:
        return self._path.read_text().splitlines()

    def url(self) -> str:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            ready = [line for line in self.lines() if "Ready at" in line]
            if ready:
                return str(json.loads(ready[0])["message"].split()[2])
            time.sleep(0.05)
        raise AssertionError("\n".join(self.lines()))


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    running = Told(tmp_path)
    yield running
    running.process.kill()
    running.process.wait(30)


def idle(told: Told, url: str) -> None:
    told.process.send_signal(signal.SIGTERM)


def with_a_stream_under_way(told: Told, url: str) -> None:
    with httpx.stream("POST", url + "/v1/completions", json={**ENDLESS, "n": 8}, timeout=60) as response:
        lines = response.iter_lines()  # kept: the stream is closed with it
        next(lines)
        told.process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        told.process.send_signal(signal.SIGINT)
        told.process.wait(30)


@pytest.mark.parametrize("stop", first_of([with_a_stream_under_way, idle]))
def test_a_stopped_server_has_written_nothing_but_log_lines(told: Told, stop: Callable[[Told, str], None]) -> None:
    url = told.url()
    assert httpx.post(url + "/v1/completions", json={"prompt": "x", "max_tokens": 3}, timeout=60).status_code == 200
    stop(told, url)
    assert told.process.wait(30) == 0
    entries = [json.loads(line) for line in told.lines()]
    assert len(entries) >= 3 and all(entry["message"] and entry["logger"] for entry in entries)
