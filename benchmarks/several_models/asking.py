"""Servers with several models, and calls to them."""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.served import Server

TEXT_TOKENS = 128


def models_server(folder: Path, text: str, *under: str) -> Server:
    """Start a server of a models file, under a command such as `nice -n 19`.

    Args:
        folder: Where the file is written, one server in each.
        text: The models file.
        under: The command's words.
    """
    path = folder / "models.toml"
    path.write_text(text, encoding="utf-8")
    if not under:
        return Server("--models", str(path))
    program = (*under[1:], sys.executable, "-m", "inflight.cli")
    return Server("--models", str(path), python=under[0], program=program)


def model_table(name: str, folder: str, *options: str) -> str:
    """Return the table of a pinned model with random weights in a models file. folder: with its config.json."""
    lines = (f"[models.{name}]", f'model = "{folder}"', 'load-format = "dummy"', "pin = true", *options)
    return "\n".join(lines) + "\n"


def first_answer(port: int, model: str) -> float:
    """Seconds until one token is answered, a load included."""
    began = time.perf_counter()
    body = {"model": model, "prompt": [1, 2, 3], "max_tokens": 1, "ignore_eos": True}
    response = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=120)
    response.raise_for_status()
    return time.perf_counter() - began


def metric(port: int, name: str) -> float:
    """The sum of its samples."""
    page = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=30).text
    families = text_string_to_metric_families(page)
    return sum(one.value for family in families for one in family.samples if one.name == name)


class Chatting:
    """Streams on each of some connections, with pauses between them, and the gaps between their events."""

    def __init__(self, port: int, model: str, streams: int, tokens: int, pause_seconds: float):
        """pause_seconds: on average."""
        self._pause_seconds = pause_seconds
        self._port, self._model, self._tokens = port, model, tokens
        self._gaps: list[float] = []
        self._is_over = False
        self._threads = [threading.Thread(target=self._run, args=(place,), daemon=True) for place in range(streams)]
        for one in self._threads:
            one.start()

    def gaps(self, seconds: float) -> list[float]:
        """Wait so many seconds, and return the gaps that came in them."""
        first = len(self._gaps)
        time.sleep(seconds)
        return self._gaps[first:]

    def end(self) -> None:
        self._is_over = True
        for one in self._threads:
            one.join()

    def _run(self, place: int) -> None:
        chance = random.Random(place)
        with httpx.Client(base_url=f"http://127.0.0.1:{self._port}", timeout=120) as client:
            while not self._is_over:
                prompt = [(place * 97 + one) % 1000 for one in range(32)]
                body = {"model": self._model, "prompt": prompt, "max_tokens": self._tokens, "ignore_eos": True}
                body["return_token_ids"] = True  # no tokenizer is there: without them events would be empty
                last = None
                with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
                    for line in response.iter_lines():
                        if not line.startswith("data: {"):
                            continue
                        now = time.perf_counter()
                        if last is not None:
                            self._gaps.append(now - last)
                        last = now
                time.sleep(chance.uniform(0, 2 * self._pause_seconds))


class Embedding:
    """Calls of some texts each that follow one another, and how many texts were answered. tier: "flex" is background
    work. Use it in `with`."""

    def __init__(self, port: int, model: str, callers: int, texts: int, tier: str = "default"):
        content = [[(place * 31 + one) % 30_000 for one in range(TEXT_TOKENS)] for place in range(texts)]
        self._body = json.dumps({"model": model, "input": content, "service_tier": tier}).encode()
        self._port, self._texts = port, texts
        self._is_over = False
        self.answered = 0
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(callers)]

    def __enter__(self) -> Embedding:
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *fault: object) -> None:
        self._is_over = True
        for one in self._threads:
            one.join()

    def _run(self) -> None:
        with httpx.Client(base_url=f"http://127.0.0.1:{self._port}", timeout=300) as client:
            while not self._is_over:
                client.post("/v1/embeddings", content=self._body).raise_for_status()
                self.answered += self._texts


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def in_turn(count: int, *works: Callable[[], float]) -> list[list[float]]:
    """Return what each gives, so many times, in turns that begin with another each time."""
    found: list[list[float]] = [[] for _ in works]
    for turn in range(count):
        order = list(enumerate(works))
        for place, work in order[turn % len(order) :] + order[: turn % len(order)]:
            found[place].append(work())
    return found
