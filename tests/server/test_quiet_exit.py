"""A server that ends writes nothing but its log, all of which is JSON."""

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


class Written:
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
def written(tmp_path: Path) -> Iterator[Written]:
    running = Written(tmp_path)
    yield running
    running.process.kill()
    running.process.wait(30)


def idle(written: Written, url: str) -> None:
    written.process.send_signal(signal.SIGTERM)


def with_a_stream_in_flight(written: Written, url: str) -> None:
    with httpx.stream("POST", url + "/v1/completions", json={**ENDLESS, "n": 8}, timeout=60) as response:
        lines = response.iter_lines()  # kept: the stream is closed with it
        next(lines)
        written.process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        written.process.send_signal(signal.SIGINT)
        written.process.wait(30)


@pytest.mark.parametrize("stop", first_of([with_a_stream_in_flight, idle]))
def test_a_stopped_server_writes_log_lines_alone(written: Written, stop: Callable[[Written, str], None]) -> None:
    url = written.url()
    assert httpx.post(url + "/v1/completions", json={"prompt": "x", "max_tokens": 3}, timeout=60).status_code == 200
    stop(written, url)
    assert written.process.wait(30) == 0
    entries = [json.loads(line) for line in written.lines()]
    assert len(entries) >= 3 and all(entry["message"] and entry["logger"] for entry in entries)
