"""Real servers in processes of their own, on free ports, serving the built-in model."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from .scripted import write_qwenlike

SCRIPTED = str(Path(__file__).with_name("scripted.py"))


class Server:
    """One process. `url` when it is ready; `log` holds its lines. program: what stands for the command line."""

    def __init__(
        self,
        *arguments: str,
        env: dict[str, str] | None = None,
        program: Sequence[str] = ("-m", "inflight.cli"),
        python: str = sys.executable,
    ):
        self.process = subprocess.Popen(
            [python, *program, "serve", "--port", "0", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )
        self.log: list[str] = []
        self._has_begun = threading.Event()
        self.url = ""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            found = re.search(r"Ready at (http://\S+)", line)
            if found:
                self.url = found[1]
                self._has_begun.set()
        self._has_begun.set()

    def ready(self, seconds: float = 60) -> Server:
        assert self._has_begun.wait(seconds) and self.url, "".join(self.log)
        return self

    def client(self, key: str = "none", **settings: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, **settings)

    def async_client(self, key: str = "none") -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0)

    def get(self, path: str, **settings: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=30, **settings)

    def post(self, path: str, body: Any, **settings: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=60, **settings)

    def metric(self, name: str, **labels: str) -> float:
        """Sum of a name's samples that have these labels."""
        found = 0.0
        for family in text_string_to_metric_families(self.get("/metrics").text):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    found += sample.value
        return found

    def settled(self, met: Callable[[], bool], seconds: float = 20) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if met():
                return True
            time.sleep(0.02)
        return False

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(30)

    def lose_power(self) -> None:
        """Kill all its processes at once."""
        self.process.send_signal(signal.SIGSTOP)  # it starts none again
        for child in children(self):
            os.kill(child, signal.SIGKILL)
        self.stop(signal.SIGKILL)


def children(server: Server, module: str = "") -> list[int]:
    """Process ids of those that it has started (to run a module), by their order of starting."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if (not module or module.encode() in words) and parent == server.process.pid:
            found.append(int(entry.name))
    return sorted(found)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The defaults, shared by all tests that change nothing."""
    folder = str(tmp_path_factory.mktemp("data"))
    running = Server("--policy", "priority", "--data-dir", folder, "--store-responses").ready()
    yield running
    assert running.stop() == 0, "".join(running.log)


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model that shows tools and reasons, as a Qwen does, and says what `scripted.py` has for the last word."""
    folder = write_qwenlike(tmp_path_factory.mktemp("model") / "qwenlike")
    running = Server(str(folder), "--served-model-name", "qwenlike", program=[SCRIPTED]).ready()
    yield running
    assert running.stop() == 0, "".join(running.log)


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    """Servers of one test."""
    running: list[Server] = []

    def start_one(*arguments: str, ready: bool = True, **settings: Any) -> Server:
        running.append(Server(*arguments, **settings))
        return running[-1].ready() if ready else running[-1]

    yield start_one
    for one in running:
        one.process.kill()
        one.process.wait(30)


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return server.client()


KEYS = '[acme]\nkey = "sk-acme"\nmax_concurrent = 2\n[umbrella]\nkey = "sk-umbrella"\n'


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(KEYS, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With the keys of `keys_file`, shared by all tests that set nothing else."""
    path = tmp_path_factory.mktemp("keyed") / "keys.toml"
    path.write_text(KEYS, encoding="utf-8")
    running = Server("--api-keys-file", str(path)).ready()
    yield running
    assert running.stop() == 0, "".join(running.log)
