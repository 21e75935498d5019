"""vLLM's routes for operators: probes, load, settings, prefix cache, sleep; llama-server's /props and /slots."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from .conftest import Server

KEYS = """
[boss]
key = "bosskey"
operator = true

[guest]
key = "guestkey"

[other]
key = "otherkey"
"""
MODELS = """
memory = 4
default = "a"

[models.a]
idle = 600

[models.b]
"""


def bearer(key: str) -> dict[str, Any]:
    return {"headers": {"Authorization": f"Bearer {key}"}}


def test_probes_ask_by_any_of_their_names(server: Server) -> None:
    for path in ("/health", "/healthz", "/v1/health", "/ping", "/readyz"):
        answer = server.get(path)
        assert (answer.status_code, answer.json()["status"]) == (200, "ready"), path
    assert server.post("/ping", {}).status_code == 200
    assert server.get("/load").json() == {"server_load": 0}
    assert server.get("/is_sleeping").json() == {"is_sleeping": False, "models": {}}


def test_what_is_documented_to_need_no_key_needs_none(keyed: Server) -> None:
    paths = keyed.get("/openapi.json").json()["paths"]
    open_paths = {path for path, methods in paths.items() if "get" in methods and "security" not in methods["get"]}
    assert {"/load", "/ping", "/v1/health"} < open_paths
    for path in open_paths:
        assert keyed.get(path).status_code == 200, path


def test_settings_are_shown_as_text_or_json(server: Server) -> None:
    shown = server.get("/server_info").json()
    assert "max_num_seqs" in shown["vllm_config"] and shown["system_env"]["python_version"]
    as_json = server.get("/server_info?config_format=json").json()["vllm_config"]
    assert int(as_json["max_num_seqs"]) > 0
    assert server.get("/server_info?config_format=xml").json()["error"]["param"] == "config_format"


def test_props_are_those_of_the_model(server: Server) -> None:
    shown = server.get("/props").json()
    settings = shown["default_generation_settings"]
    assert settings["n_ctx"] == server.get("/v1/models").json()["data"][0]["max_model_len"]
    assert settings["params"]["n_predict"] == -1 and shown["total_slots"] == len(server.get("/slots").json())
    assert "<|user|>" in shown["chat_template"] and shown["modalities"] == {"vision": False, "audio": False}
    assert (shown["model_alias"], shown["fill_in_middle"]) == ("built-in", False)
    assert len(server.get("/slots?model=built-in").json()) == shown["total_slots"]
    assert "this server has built-in" in server.get("/slots?model=other").json()["error"]["message"]


def test_the_prefix_cache_is_dropped_while_nothing_runs(start: Callable[..., Server]) -> None:
    server = start("--served-model-name", "m").ready()
    body = {"model": "m", "prompt": "A lane is a queue. " * 20, "max_tokens": 2, "temperature": 0}

    def cached() -> tuple[int, str]:
        answer = server.post("/v1/completions", body).json()
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer["choices"][0]["text"]

    cold, text = cached()
    assert cold == 0 and cached() == (pytest.approx(64, abs=200), text)
    assert cached()[0] > 0
    reset = server.post("/reset_prefix_cache", None)
    assert reset.status_code == 200 and reset.json()["success"] and reset.json()["blocks"] > 0
    assert server.post("/reset_prefix_cache", None).json() == {"success": True, "blocks": 0}
    assert cached() == (0, text)
    assert cached()[0] > 0
    for query in ("reset_running_requests=true", "reset_external=true"):
        assert server.post(f"/reset_prefix_cache?{query}", None).json()["error"]["param"] == query.partition("=")[0]
    with streaming(server, {**body, "max_tokens": 300, "ignore_eos": True, "n": 64}, {}):
        refused = server.post("/reset_prefix_cache", None)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "cache_in_use")


class streaming:
    """A request that is in flight while the block runs."""

    def __init__(self, server: Server, body: dict[str, Any], settings: dict[str, Any]):
        self._server, self._body, self._settings = server, {**body, "stream": True}, settings
        self._begun, self._end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        url = f"{self._server.url}/v1/completions"
        with httpx.stream("POST", url, json=self._body, timeout=60, **self._settings) as answer:
            for _ in answer.iter_lines():
                self._begun.set()
                if self._end.is_set():
                    return

    def __enter__(self) -> None:
        self._thread.start()
        assert self._begun.wait(30)

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def test_slots_are_the_batch_and_show_others_nothing(start: Callable[..., Server], tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(KEYS, encoding="utf-8")
    server = start("--api-keys-file", str(keys), "--max-num-seqs", "3").ready()
    body = {"prompt": "A lane is", "max_tokens": 900, "ignore_eos": True, "temperature": 0.5, "n": 24}
    with streaming(server, body, bearer("guestkey")):
        own, whole, others = (server.get("/slots", **bearer(key)).json() for key in ("guestkey", "bosskey", "otherkey"))
        assert len(own) == len(whole) == len(others) == 3
        for shown in (own, whole):
            busy = next(one for one in shown if one["is_processing"])
            assert busy["n_prompt_tokens"] == busy["n_prompt_tokens_processed"] > 0
            assert busy["params"] == {"n_predict": 900, "temperature": 0.5}
            assert busy["next_token"]["n_decoded"] + busy["next_token"]["n_remain"] == 900
            assert busy["tenant"] == "guest"
        busy = next(one for one in others if one["is_processing"])
        assert busy.keys() == {"id", "id_task", "n_ctx", "is_processing"} and busy["id_task"] == -1
        assert server.settled(lambda: server.get("/slots?fail_on_no_slot=1", **bearer("bosskey")).status_code == 503)
    for method, path in (("GET", "/slots"), ("GET", "/props"), ("GET", "/server_info"), ("POST", "/sleep")):
        assert httpx.request(method, server.url + path).status_code == 401, path
    for method, path in (
        ("GET", "/server_info"),
        ("POST", "/reset_prefix_cache"),
        ("POST", "/sleep"),
        ("POST", "/wake_up"),
    ):
        refused = httpx.request(method, server.url + path, **bearer("guestkey"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "not_an_operator"), path


def test_a_single_model_does_not_sleep(server: Server) -> None:
    refused = server.post("/sleep?level=1", None)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_task")
    assert "--models" in refused.json()["error"]["message"]
    assert server.post("/wake_up?tags=weights", None).json() == {"is_sleeping": False, "models": {}}
    unknown = server.post("/wake_up?model=unknown", None).json()["error"]
    assert unknown["code"] == "model_not_found" and "`inflight serve --models local` serves all" in unknown["message"]
    assert server.post("/sleep?mode=abort", None).json()["error"]["param"] == "mode"


def test_models_of_a_pool_sleep_until_they_are_called(start: Callable[..., Server], tmp_path: Path) -> None:
    models = tmp_path / "models.toml"
    models.write_text(MODELS, encoding="utf-8")
    server = start("--models", str(models)).ready()
    assert server.get("/is_sleeping").json()["is_sleeping"]
    assert "no model is in memory" in server.get("/slots").json()["error"]["message"]
    assert server.post("/wake_up", None).json()["error"]["param"] == "model"
    assert server.post("/wake_up?model=b", None).json() == {
        "is_sleeping": False,
        "models": {"a": "unloaded", "b": "loaded"},
    }
    assert server.get("/props?model=b").json()["model_alias"] == "b"
    assert server.get("/props?model=a").json()["error"]["param"] == "model"
    assert {one["engine"] for one in server.get("/slots").json()} == {"b"}
    body = {"model": "b", "prompt": "A lane is", "max_tokens": 2}
    server.post("/v1/completions", body)
    assert server.post("/reset_prefix_cache", None).json()["success"]
    server.post("/sleep", None)
    assert server.settled(lambda: server.get("/is_sleeping").json()["is_sleeping"])
    assert server.post("/v1/completions", body).status_code == 200
    assert not server.get("/is_sleeping").json()["is_sleeping"]
