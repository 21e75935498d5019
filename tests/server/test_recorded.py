"""A record of a server that answered many at once runs again to the same plans."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import httpx

from inflight.records.schema import of_kind, read_records
from inflight.simulate.replay import replay

from .conftest import Server

REQUESTS = 120


async def ask(client: httpx.AsyncClient, number: int) -> None:
    """Every third goes away early in a long stream; some share prompts, some are batch work."""
    leaves = number % 3 == 0
    body = {
        "prompt": f"{'Once upon a time ' * (number % 5)}there were {number % 20}",
        "max_tokens": 200 if leaves else 5 + number % 40,
        "n": 1 + number % 2,
        "ignore_eos": True,
        "stream": True,
        "service_tier": "flex" if number % 4 == 0 else "auto",
    }
    await asyncio.sleep(number * 0.004)
    async with client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        lines = 0
        async for line in response.aiter_lines():
            lines += bool(line)
            if leaves and lines > number % 7:
                return


async def drive(url: str, numbers: Iterable[int] = range(REQUESTS)) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=httpx.Limits(max_connections=None)) as client:
        await asyncio.gather(*(ask(client, number) for number in numbers))


def test_a_record_of_concurrent_serving_replays_identically(start: Callable[..., Server], tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    server = start("--record", str(record), "--max-num-seqs", "16")
    asyncio.run(drive(server.url))
    while server.post("/reset_prefix_cache", None).status_code == 409:
        time.sleep(0.05)  # requests whose clients left are being aborted
    asyncio.run(drive(server.url, [4]))
    assert server.stop() == 0
    records = list(read_records(record))
    assert len(of_kind(records, "cache_reset")) == 1
    requests = of_kind(records, "request")
    during_a_step = [one for one in requests if one.before_step > one.before_commit]
    aborted = [one for one in requests if one.samples[0].finish.reason == "abort"]
    assert len(requests) == REQUESTS + 1 and during_a_step and aborted
    _, outcome = replay(records)
    assert outcome.difference is None and outcome.steps == outcome.recorded_steps > 50
