"""`inflight serve --prefill-replicas`: prompts are computed by other replicas than go on with them; the tokens are
those of one engine, whatever is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from server.conftest import Server

from .environments import Environment
from .ray_replicas import READY_SECONDS, checkout_python, children

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(900)]
CLIENT = "ray"
BROUGHT, FAILED = (
    re.compile(rf'^inflight_tier_fetched_blocks_total\{{[^}}]*outcome="{outcome}"[^}}]*\}} (\S+)$', re.MULTILINE)
    for outcome in ("brought", "failed")
)


@pytest.fixture(scope="module")
def python(environment: Environment) -> str:
    return checkout_python(environment)


@pytest.fixture(scope="module")
def split(python: str) -> Iterator[Server]:
    options = ("--max-num-seqs", "8", "--max-num-batched-tokens", "64")  # several chunks a prompt
    running = Server("--replicas", "1", "--prefill-replicas", "1", *options, python=python).ready(READY_SECONDS)
    yield running
    assert running.stop() == 0, "".join(running.log)


@pytest.fixture(scope="module")
def single() -> Iterator[Server]:
    running = Server("--max-num-seqs", "8").ready()
    yield running
    assert running.stop() == 0


def answer(server: Server, number: int, **more: Any) -> dict[str, Any]:
    """Text, log-probabilities and usage."""
    prompt = f"Request {number}. " + " ".join(f"Row {row} waits for block {row * number}." for row in range(20))
    body = {"prompt": prompt, "max_tokens": 30, "ignore_eos": True, "temperature": 0.8, "seed": number, "logprobs": 2}
    got = httpx.post(f"{server.url}/v1/completions", json={**body, **more}, timeout=120)
    assert got.status_code == 200, got.text
    found = got.json()
    return {"choices": found["choices"], "usage": {**found["usage"], "prompt_tokens_details": None}}


def brought(server: Server) -> float:
    """Return the number of blocks that were transferred."""
    return sum(float(number) for number in BROUGHT.findall(server.get("/metrics").text))


def answers_alike(split: Server, single: Server, numbers: range, **more: Any) -> None:
    with ThreadPoolExecutor(8) as pool:
        there = list(pool.map(lambda number: answer(split, number, **more), numbers))
        here = list(pool.map(lambda number: answer(single, number, **more), numbers))
    assert there == here


def test_answers_are_those_of_one_engine_and_prompts_come_from_the_other(split: Server, single: Server) -> None:
    answers_alike(split, single, range(300, 308))  # of which the first come before each has reported its address
    time.sleep(2)
    before = brought(split)
    answers_alike(split, single, range(16))
    assert brought(split) - before >= 16 * 10, "most of the prompts' blocks"
    answers_alike(split, single, range(4), cache_salt="another", n=2)
    answers_alike(split, single, range(4), echo=True)
    page = split.get("/metrics").text
    assert not sum(float(number) for number in FAILED.findall(page)), "no request waited for blocks that did not come"
    assert sorted(re.findall(r'^inflight_replica_pool\{pool="(\w+)"', page, re.MULTILINE)) == ["engine", "prefill"]


def test_a_prompt_of_another_salt_is_computed_anew(split: Server) -> None:
    for salt in ("one", "other"):
        before = brought(split)
        answer(split, 500, cache_salt=salt)
        assert brought(split) - before >= 10, "its cached blocks have another salt"


def test_a_lost_prefill_replica_costs_computing_and_no_answer(split: Server, single: Server) -> None:
    [(pid, _)] = [one for one in children(split.process.pid) if "ServeReplica:inflight:prefill" in one[1]]
    with ThreadPoolExecutor(8) as pool:
        there = [pool.submit(answer, split, number) for number in range(100, 124)]
        time.sleep(0.3)
        os.kill(pid, signal.SIGKILL)
        here = [answer(single, number) for number in range(100, 124)]
        assert [one.result() for one in there] == here
    deadline, number = time.monotonic() + 120, 200
    before = brought(split)
    while brought(split) == before:
        assert time.monotonic() < deadline, "the lost one was not replaced"
        answers_alike(split, single, range(number, number + 1))
        number += 1
        time.sleep(1)


def test_what_cannot_be_served_so_is_refused_in_words(python: str) -> None:
    for arguments, said in (
        (("--prefill-replicas", "1"), "--prefill-replicas has no effect without --replicas"),
        (("--replicas", "1", "--prefill-replicas", "0"), "--prefill-replicas is 0; give a number from 1"),
        (("--replicas", "1", "--prefill-replicas", "2", "--max-prefill-replicas", "1"), "--max-prefill-replicas is 1"),
        (("--replicas", "1", "--max-prefill-replicas", "1"), "has no effect without --prefill-replicas"),
        (("--replicas", "1", "--prefill-replicas", "1", "--role", "both"), "--role is for one engine"),
        (("--replicas", "1", "--prefill-replicas", "1", "--kv-transfer-port", "5"), "each of --prefill-replicas has"),
        (
            ("--replicas", "1", "--prefill-replicas", "1", "--kv-peer-secret-file", "/nowhere"),
            "/nowhere cannot be read",
        ),
        (
            ("--replicas", "1", "--prefill-replicas", "1", "--kv-transport", "pigeon"),
            "known are auto, tcp, shm, nixl",
        ),
        (("--replicas", "1", "--prefill-replicas", "1", "--no-prefix-caching"), "needs the prefix cache"),
    ):
        command = [python, "-m", "inflight.cli", "serve", "--port", "0", *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert ended.returncode != 0 and said in ended.stderr and "Traceback" not in ended.stderr, ended.stderr
