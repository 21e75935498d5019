"""vllm-router before servers, as a test starts it, and what comes through it.

Knows the router's command line and when it is ready; nothing of its policies.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from server.conftest import Server

from .environments import Environment

SECONDS_TO_READY = 60


class Router:
    """One process on free ports, before workers that are all alike, or before those that options name. Use it in
    `with`."""

    def __init__(self, environment: Environment, workers: Sequence[str], policy: str, *options: str):
        self._workers = len(workers) or sum(one.startswith("http://") for one in options)
        port, self._metrics_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{port}"
        asked = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(self._metrics_port)]
        asked += ["--policy", policy, "--worker-startup-check-interval", "1", *options]
        asked += ["--worker-urls", *workers] if workers else []
        self.process = subprocess.Popen(
            [environment.program("vllm-router"), *asked],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment.variables(),
        )
        self.log: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Router:
        end = time.monotonic() + SECONDS_TO_READY
        while self.healthy() < self._workers:
            assert self.process.poll() is None and time.monotonic() < end, "".join(self.log)
            time.sleep(0.1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            print("".join(self.log[-80:]))
        self.process.kill()
        self.process.wait(30)

    def healthy(self) -> int:
        """Workers that it thinks well of; 0 before it listens."""
        try:
            answer = self.get("/readiness")
        except httpx.TransportError:
            return 0
        # Between prefill and decode servers it says of each kind how many are well, and is ready when one of each is.
        return int(answer.json().get("healthy_workers", self._workers)) if answer.status_code == 200 else 0

    def get(self, path: str, **settings: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=30, **settings)

    def post(self, path: str, body: Any, **settings: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=60, **settings)

    def count(self, name: str, **labels: str) -> float:
        """Return of its own metrics the sum of a name's samples that have these labels."""
        page = httpx.get(f"http://127.0.0.1:{self._metrics_port}/metrics", timeout=30).text
        families = text_string_to_metric_families(page)
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.log.extend(iter(self.process.stdout.readline, ""))


@dataclass(slots=True)
class Streamed:
    """A stream of completions or chat, put together. texts: by sample; token_ids, finish_reason: of the first sample.
    done: [DONE] came. error: what came within the stream."""

    texts: dict[int, str] = field(default_factory=dict)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    done: bool = False
    error: Any = None

    @property
    def text(self) -> str:
        return self.texts.get(0, "")

    def take(self, line: str) -> None:
        if line == "data: [DONE]":
            self.done = True
        elif line.startswith("data: "):
            frame = json.loads(line.removeprefix("data: "))
            self.error = frame.get("error") or self.error
            self.usage = frame.get("usage") or self.usage
            for choice in frame.get("choices", ()):
                index, text = choice["index"], choice.get("text") or choice.get("delta", {}).get("content") or ""
                self.texts[index] = self.texts.get(index, "") + text
                if index == 0:
                    self.token_ids += choice.get("token_ids") or ()
                    self.finish_reason = choice.get("finish_reason") or self.finish_reason


def lines(url: str, path: str, body: dict[str, Any], **settings: Any) -> Iterator[str]:
    """Yield the pieces of a streamed answer as they come. Raises httpx.TransportError where the connection breaks."""
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    with httpx.stream("POST", url + path, json=asked, timeout=60, **settings) as answer:
        assert answer.status_code == 200, answer.read()
        yield from answer.iter_lines()


def streamed(url: str, path: str, body: dict[str, Any], **settings: Any) -> Streamed:
    whole = Streamed()
    for line in lines(url, path, body, **settings):
        whole.take(line)
    return whole


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def kv_event_addresses(server: Server) -> tuple[str, str]:
    """Where it publishes, and where missed messages are asked for."""
    log = "".join(server.log).replace("0.0.0.0", "127.0.0.1")
    found = re.search(r"KV events: published at (\S+), missed ones are asked for at (\S+?)\.[\s\"]", log)
    assert found, log
    return found[1], found[2]
