"""`inflight compare --serve`: one engine beside replicas of Ray's, each started anew, with figures of both; and a
server on a cluster that is there."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from server.conftest import Server

from .environments import Environment
from .ray_replicas import READY_SECONDS, checkout_python, children

pytestmark = [pytest.mark.foreign, pytest.mark.timeout(1800)]
CLIENT = "ray"


@pytest.fixture(scope="module")
def python(environment: Environment) -> str:
    return checkout_python(environment)


@pytest.fixture
def cluster(python: str) -> Iterator[tuple[str, dict[str, str]]]:
    """A head that `ray start` has begun: its address, and the environment in which `auto` finds it."""
    ray, port, environment = str(Path(python).parent / "ray"), free_port(), {**os.environ}
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:  # a short path
        environment["RAY_TMPDIR"] = folder
        begin = [ray, "start", "--head", "--block", f"--port={port}", "--num-cpus=4", "--include-dashboard=false"]
        with subprocess.Popen(begin, stdout=subprocess.DEVNULL, env=environment, start_new_session=True) as head:
            wait_for(port, head)
            yield f"127.0.0.1:{port}", {"RAY_TMPDIR": folder}
            os.killpg(head.pid, signal.SIGTERM)
            try:
                head.wait(60)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(head.pid, signal.SIGKILL)


def wait_for(port: int, head: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        assert head.poll() is None and time.monotonic() < deadline, "the head did not begin"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.5)


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def test_one_engine_and_two_replicas_stand_side_by_side(python: str) -> None:
    two = ("--serve", "one=", "--serve", "two=--replicas 2 --router prefix-aware")
    load = ("--rate", "3", "--requests", "12", "--turns", "3", "--repeats", "1", "--json")
    command = [python, "-m", "inflight.cli", "compare", *two, *load]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=1500)
    assert ended.returncode in (0, 1), ended.stderr[-4000:]  # 1: a busy machine has sent some of them late
    assert ended.stdout, ended.stderr[-4000:]
    figures_of = {one["setting"]: one["figures"] for one in json.loads(ended.stdout)["columns"]}
    assert set(figures_of) == {"one", "two"}
    for figures in figures_of.values():
        assert figures["requests"]["value"] == figures["offered"]["value"] > 0, ended.stdout


def test_a_server_joins_a_cluster_and_leaves_it(python: str, cluster: tuple[str, dict[str, str]]) -> None:
    head, environment = cluster
    for address in (head, "auto"):
        asked = ("--replicas", "1", "--ray-address", address, "--max-num-seqs", "4")
        server = Server(*asked, python=python, env=environment).ready(READY_SECONDS)
        with server.client(timeout=60) as client:
            answer = client.completions.create(model="built-in", prompt="Once upon a time", max_tokens=8)
        assert answer.usage is not None and answer.usage.completion_tokens > 0
        assert server.stop() == 0, "".join(server.log)
        assert not [command for _, command in children(server.process.pid)]
