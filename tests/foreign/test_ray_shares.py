"""`inflight serve --replicas` under `fair`: shares hold over all replicas; and Ray's head is lost."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from server.conftest import Server

from .environments import Environment
from .ray_replicas import READY_SECONDS, checkout_python, children

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(900)]
CLIENT = "ray"
WORDS = ("a", "block", "of", "keys", "and", "values", "holds", "positions", "while", "its", "lane", "waits")
TOKENS = 30


@pytest.fixture(scope="module")
def python(environment: Environment) -> str:
    return checkout_python(environment)


@pytest.fixture(scope="module")
def fair(python: str) -> Iterator[Server]:
    """With a router that sends each beginning of prompts to one replica. The last test ends it."""
    asked = ("--policy", "fair", "--max-num-seqs", "4", "--router", "prefix-affinity", "--threads", "1")
    running = Server("--replicas", "2", *asked, python=python).ready(READY_SECONDS)
    yield running
    if running.process.poll() is None:
        running.stop()


class Client:
    """Asks again and again until it is to end, with a prompt that begins as those of its group."""

    def __init__(self, server: Server, tenant: str, group: int, end: threading.Event, got: Counter[str]):
        self._server, self._tenant, self._end, self._got = server, tenant, end, got
        self._beginning = " ".join(random.Random(group).choices(WORDS, k=80))

    def run(self) -> None:
        more = {"ignore_eos": True}
        with self._server.client(timeout=120) as client:
            while not self._end.is_set():
                prompt = f"{self._beginning} {random.random()}"
                client.completions.create(
                    model="built-in", prompt=prompt, max_tokens=TOKENS, user=self._tenant, extra_body=more
                )
                self._got[self._tenant] += 1  # one thread at a time


def test_who_has_a_replica_alone_goes_behind_at_the_other(fair: Server) -> None:
    """x asks 24 at a time of the one and 8 of the other; y 16 of the other alone. By themselves x would have three
    quarters."""
    end, got = threading.Event(), Counter[str]()
    clients = [("x", 1)] * 24 + [("x", 2)] * 8 + [("y", 2)] * 16
    with ThreadPoolExecutor(len(clients)) as pool:
        asking = [pool.submit(Client(fair, tenant, group, end, got).run) for tenant, group in clients]
        threading.Event().wait(10)  # both know their queues
        before = Counter(got)
        while (got - before).total() < 600 and not any(one.done() for one in asking):
            threading.Event().wait(0.5)
        served = got - before
        end.set()
        for one in asking:
            one.result()
    assert 0.38 < served["y"] / served.total() < 0.62, served


def test_after_a_lost_head_ray_and_the_replicas_are_started_again(fair: Server) -> None:
    def heads() -> list[int]:
        return [pid for pid, command in children(fair.process.pid) if "gcs_server" in command]

    [head] = heads()
    os.kill(head, signal.SIGKILL)
    assert fair.settled(lambda: fair.get("/readyz").status_code == 503)
    assert fair.settled(lambda: fair.get("/readyz").status_code == 200, READY_SECONDS)
    assert any("Ray's head at" in line and "has not answered for 5 s" in line for line in fair.log), fair.log
    assert len(heads()) == 1 and heads() != [head]
    with fair.client(timeout=120) as client:
        assert client.completions.create(model="built-in", prompt="Once", max_tokens=4).choices[0].text
    assert fair.stop() == 0
    assert not [command for pid, command in children(fair.process.pid) if Path(f"/proc/{pid}").exists()]
