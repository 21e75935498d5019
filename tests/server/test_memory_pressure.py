"""Memory for keys and values that is far too small ends no process and no request that fits alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from .conftest import Server


def test_memory_pressure_never_ends_the_process(start: Callable[..., Server]) -> None:
    """Four times as many tokens as fit, where cached blocks fill the rest, streamed or whole; some clients leave."""
    server = start("--num-blocks", "40", "--max-num-seqs", "16", "--max-model-len", "512")

    def ask(number: int) -> tuple[int, int]:
        body: dict[str, Any] = {"prompt": f"{number % 5} once upon a time " * 12, "max_tokens": 150, "ignore_eos": True}
        if number % 4 == 3:  # leaves after the first bytes
            with httpx.stream(
                "POST", f"{server.url}/v1/completions", json=body | {"stream": True}, timeout=120
            ) as answer:
                next(answer.iter_bytes())
                return answer.status_code, 150
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=120)
        return answer.status_code, answer.json()["usage"]["completion_tokens"]

    with ThreadPoolExecutor(16) as pool:
        assert {*pool.map(ask, range(48))} == {(200, 150)}
    page = server.get("/metrics").text
    preempted = [line for line in page.splitlines() if line.startswith("inflight_preemptions_total{")]
    assert sum(float(line.split()[-1]) for line in preempted) > 0
    assert server.get("/readyz").json()["status"] == "ready"
    assert not [line for line in server.log if json.loads(line)["level"] == "error"]
    assert server.stop() == 0
