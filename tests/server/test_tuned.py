"""`inflight tune --url` and `--record`: the built-in model serves, and is tuned for by what it recorded."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from .conftest import Server


def tune(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "inflight.cli", "tune", *arguments, "--slo", "ttft=5000(p90)", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == code, result.stderr
    return result


async def drive(url: str) -> None:
    async def one(number: int) -> None:
        await asyncio.sleep(0.05 * number)
        body = {"prompt": "Once upon a time " * (1 + number % 4), "max_tokens": 4 + number % 8, "ignore_eos": True}
        assert (await client.post("/v1/completions", json=body)).status_code == 200

    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        await asyncio.gather(*map(one, range(40)))


@pytest.mark.wide
def test_a_running_server_is_tuned_for_and_keeps_serving(start: Callable[..., Server], tmp_path: Path) -> None:
    record, output = tmp_path / "run.jsonl", tmp_path / "engine.toml"
    server = start("--record", str(record), "--max-num-seqs", "2")
    asyncio.run(drive(server.url))
    result = tune("--url", server.url, "--output", str(output))
    found, settings = json.loads(result.stdout), tomllib.loads(output.read_text())
    assert found["requests"] >= 30 and found["settings"] == settings
    assert found["better"] or settings["max-num-seqs"] == 2
    assert "measured" in result.stderr and "simulated" in result.stderr
    assert server.get("/health").status_code == 200
    assert server.stop() == 0
    result = tune("--record", str(record), "--verify", "1", "--verify-seconds", "1", "--verify-repeats", "1")
    shadow = json.loads(result.stdout)["shadow"]
    assert shadow["present"]["measured"][0] > 0 and "Shadow replay" in result.stderr


@pytest.mark.wide
def test_a_server_without_a_record_says_how_to_write_one(start: Callable[..., Server]) -> None:
    result = tune("--url", start().url, code=1)
    assert "start it with --record FILE" in result.stderr and "Traceback" not in result.stderr
