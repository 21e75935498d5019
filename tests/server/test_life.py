"""Starting, being ready, draining, ending: the server as its operator sees it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from inflight.config.scheduling import SchedulingSettings
from inflight.launch.one_model import with_weights
from inflight.server.tenants import Tenant, Tenants

from .conftest import Server

ENDLESS = {"prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "inflight.cli", "serve", *arguments], capture_output=True, text=True, timeout=60
    )


def test_ready_shows_where(server: Server) -> None:
    assert server.get("/health").json()["status"] == "ready"
    assert server.get("/version").json()["version"]
    assert [model["id"] for model in server.get("/v1/models").json()["data"]] == ["built-in"]


def test_drains_on_sigterm_and_refuses_new_work(start: Callable[..., Server]) -> None:
    server = start("--drain-timeout", "20")
    seen: list[str] = []
    begun = threading.Event()

    def read() -> None:
        with httpx.stream("POST", server.url + "/v1/completions", json=ENDLESS, timeout=60) as response:
            for line in response.iter_lines():
                seen.append(line)
                begun.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(20)
    server.process.send_signal(signal.SIGTERM)
    refused: list[httpx.Response] = []

    def is_refused() -> bool:
        try:
            answer = server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
        except httpx.TransportError:
            return True  # it has ended already
        refused.extend([answer] if answer.status_code == 503 else [])
        return bool(refused)

    assert server.settled(is_refused)
    for answer in refused:
        assert answer.json()["error"]["code"] == "draining" and int(answer.headers["retry-after"]) >= 1
    reader.join(30)
    assert [line for line in seen if line][-1] == "data: [DONE]", "what ran was finished"
    assert server.process.wait(20) == 0


def test_a_second_signal_ends_at_once(start: Callable[..., Server]) -> None:
    server = start("--drain-timeout", "600", "--max-num-seqs", "1")
    with httpx.stream("POST", server.url + "/v1/completions", json={**ENDLESS, "n": 64}, timeout=60) as response:
        lines = response.iter_lines()  # kept: the stream is closed with it
        next(lines)
        server.process.send_signal(signal.SIGINT)
        server.settled(lambda: any("taking no new work" in line for line in server.log))
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(20) == 0


def test_what_is_not_done_in_time_is_reported_and_ended(start: Callable[..., Server]) -> None:
    server = start("--drain-timeout", "0.1", "--max-num-seqs", "1")
    whole: list[httpx.Response] = []

    def ask() -> None:
        whole.append(server.post("/v1/completions", {**ENDLESS, "n": 64, "stream": False}))

    waiting = threading.Thread(target=ask)
    with httpx.stream("POST", server.url + "/v1/completions", json={**ENDLESS, "n": 64}, timeout=60) as response:
        lines = response.iter_lines()  # kept: the stream is closed with it
        next(lines)
        waiting.start()  # now: were it the first, this one would have no token before it is through
        assert server.settled(lambda: "2 calls" in server.get("/health").json()["detail"])
        server.process.send_signal(signal.SIGTERM)
        sent = [line for line in lines if line]
    waiting.join(30)
    assert json.loads(sent[-2].removeprefix("data: "))["error"]["code"] == "draining" and sent[-1] == "data: [DONE]"
    assert whole[0].status_code == 503 and whole[0].json()["error"]["code"] == "draining"
    assert server.process.wait(20) == 0
    log = "".join(server.log)
    assert "2 calls were aborted after --drain-timeout" in log and "Traceback" not in log


def test_it_stops_while_it_loads(start: Callable[..., Server], large: Path) -> None:
    server = loading(start, large)
    assert server.settled(lambda: state_of(server) == (503, "loading"), 60)
    answer = server.post("/v1/completions", {"prompt": "x"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "loading")
    assert server.stop() == 0
    assert not any("Traceback" in line or "never awaited" in line for line in server.log)


def test_a_taken_port_is_reported_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = run("--port", str(port))
    assert result.returncode == 1 and f"127.0.0.1:{port} cannot be used" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_model_that_is_not_there_ends_with_a_sentence(tmp_path: Path) -> None:
    result = run("--port", "0", str(tmp_path / "nowhere"))
    assert result.returncode == 1 and "nowhere" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.wide
def test_settings_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for arguments, said in (
        (("--port", "70000"), "--port is 70000"),
        (("--max-streams", "0"), "--max-streams is 0"),
        (("--batch-concurrency", "4"), "no effect without --data-dir"),
        (("--metrics-names", "other"), "known are inflight, vllm."),
        (("model", "--model", "other"), "give one"),
        (("--api-keys-file", str(tmp_path / "none.toml")), "cannot be read"),
    ):
        result = run(*arguments)
        assert result.returncode in (1, 2) and said in result.stderr, (arguments, result.stderr)
        assert "Traceback" not in result.stderr


@pytest.mark.parametrize("wrong", ["--max-streams=0", "--no-such-option", "--api-keys-file=missing.toml"])
def test_every_line_of_a_start_that_fails_is_json_where_the_log_is(wrong: str) -> None:
    result = run("--port", "0", "--log-format", "json", "--preset", "mixed", wrong)
    lines = [json.loads(line) for line in result.stderr.splitlines()]
    assert result.returncode in (1, 2) and lines[-1]["level"] == "error"
    assert wrong.partition("=")[2] in lines[-1]["message"]


def test_weights_that_the_policy_does_not_read_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    tenants = Tenants([(b"digest", Tenant(name="acme", weight=2.0))])
    scheduling = SchedulingSettings(policy="fcfs")
    assert with_weights(scheduling, tenants) == scheduling
    assert "no effect with --policy fcfs" in caplog.text
    assert with_weights(SchedulingSettings(policy="fair"), tenants).tenant_weights == {"acme": 2.0}


def loading(start: Callable[..., Server], model: Path) -> Server:
    """Its port is open before it is ready."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = start("--port", str(port), str(model), "--load-format", "dummy", "--kv-memory", "0.1", ready=False)
    server.url = f"http://127.0.0.1:{port}"
    return server


def state_of(server: Server) -> tuple[int, str]:
    try:
        answer = server.get("/health")
    except httpx.TransportError:
        return 0, ""
    return answer.status_code, answer.json()["status"]


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A model whose random weights take a while."""
    shape = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 12,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "vocab_size": 60000,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(shape), encoding="utf-8")
    return tmp_path


def test_says_that_it_is_loading(start: Callable[..., Server], large: Path) -> None:
    server = loading(start, large)
    states: list[tuple[int, str]] = []
    early: list[httpx.Response] = []

    def look() -> bool:
        states.append(state_of(server))
        if states[-1][0] == 503 and not early:
            early.append(server.post("/v1/completions", {"prompt": [1, 2], "max_tokens": 1}))
        return states[-1][0] == 200

    assert server.settled(look, 60)
    assert {(503, "loading"), (200, "ready")} <= set(states) <= {(0, ""), (503, "loading"), (200, "ready")}
    assert early[0].status_code == 503 and early[0].json()["error"]["code"] == "loading"
