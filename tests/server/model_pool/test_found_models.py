"""`--models local`: the models in the caches are served, those that come and go while the server runs, too."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx

from inflight import build
from tests.server.conftest import Server, children


def names(server: Server) -> list[str]:
    return [one["name"] for one in server.get("/api/tags").json()["models"]]


def cached(root: Path, name: str = "tiny") -> Path:
    """Have the cache hold owner/NAME, as pulling does; return its folder."""
    revision, folder = "0" * 40, root / "hub" / f"models--owner--{name}"
    shutil.copytree(build.BUILT_IN, folder / "snapshots" / revision)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(revision)
    return folder


def test_models_come_by_a_pull_and_go_by_a_delete(start: Callable[..., Server], tmp_path: Path) -> None:
    environment = {"HF_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    server = start("--models", "local", "--api-processes", "2", env=environment)
    assert names(server) == ["built-in:latest"], "of empty caches"
    folder = cached(tmp_path)
    assert server.post("/api/pull", {"model": "owner/tiny", "stream": False}).json() == {"status": "success"}
    for _ in range(4):  # whichever process answers
        assert names(server) == ["owner/tiny:latest"]
    answer = server.post("/api/generate", {"model": "owner/tiny", "prompt": "What is a lane?", "stream": False})
    assert answer.status_code == 200 and answer.json()["response"], answer.text
    assert server.post("/v1/chat/completions", {"model": "built-in", "messages": [{"role": "user", "content": "x"}]})
    states = {one["id"]: one["state"] for one in server.get("/v1/models").json()["data"]}
    assert states["owner/tiny"] == "loaded"
    # By another spelling of the name, too, it is unloaded first.
    assert httpx.request("DELETE", f"{server.url}/api/delete", json={"model": "Owner/Tiny"}).status_code == 200
    assert not folder.exists() and names(server) == ["built-in:latest"]
    assert server.post("/api/generate", {"model": "owner/tiny", "prompt": "x"}).status_code == 404
    assert server.post("/api/generate", {"model": "built-in", "prompt": "x"}).status_code == 200


def test_another_folder_may_be_the_hubs_cache(start: Callable[..., Server], tmp_path: Path) -> None:
    environment = {"HF_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    folder = cached(tmp_path / "other")
    server = start("--models", "local", "--download-dir", str(folder.parent), env=environment)
    assert names(server) == ["owner/tiny:latest"]
    assert httpx.request("DELETE", f"{server.url}/api/delete", json={"model": "owner/tiny"}).status_code == 200
    assert not folder.exists() and names(server) == ["built-in:latest"]


def test_another_revision_is_served_once_the_first_is_deleted(start: Callable[..., Server], tmp_path: Path) -> None:
    environment = {"HF_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    folder = cached(tmp_path)
    server = start("--models", "local", env=environment)
    assert names(server) == ["owner/tiny:latest"]
    (folder / "snapshots" / ("0" * 40)).rename(folder / "snapshots" / ("1" * 40))
    deadline, status = time.monotonic() + 60, 0
    while status != 200 and time.monotonic() < deadline:
        assert names(server) == ["owner/tiny:latest"]
        status = server.post("/v1/completions", {"model": "owner/tiny", "prompt": "x", "max_tokens": 1}).status_code
    assert status == 200


def test_what_the_command_line_pulls_and_deletes_is_noticed(start: Callable[..., Server], tmp_path: Path) -> None:
    environment = {"HF_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}

    def inflight(*words: str) -> subprocess.CompletedProcess[str]:
        command = (sys.executable, "-m", "inflight.cli", *words)
        return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)

    def listed() -> list[str]:
        return [one["id"] for one in server.get("/v1/models").json()["data"]]

    server = start("--models", "local", env=environment)
    damaged = tmp_path / "hub" / "models--owner--damaged" / "snapshots" / ("0" * 40) / "config.json"
    damaged.parent.mkdir(parents=True)
    damaged.write_text("{}")
    folder = cached(tmp_path)
    deadline = time.monotonic() + 60

    def status() -> int:
        body = {"model": "owner/tiny", "prompt": "What is a lane?", "max_tokens": 4}
        return server.post("/v1/completions", body).status_code

    while (found := status()) != 200 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert found == 200
    (one,) = [one for one in json.loads(inflight("ps", "--json").stdout)["models"] if one["state"] == "loaded"]
    assert (one["model"], one["url"]) == ("owner/tiny", server.url)
    kept = inflight("rm", "--yes", "owner/tiny")
    assert kept.returncode == 1 and f"is in use by the server at {server.url}" in kept.stderr
    assert "unloaded by the server" in inflight("stop", "owner/tiny").stderr
    deadline = time.monotonic() + 60
    while (gone := inflight("rm", "--yes", "owner/tiny")).returncode and time.monotonic() < deadline:
        pass  # until the process has ended
    assert gone.returncode == 0 and not folder.exists(), gone.stderr
    while "owner/tiny" in listed() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert "owner/tiny" not in listed()
    refused = [line for line in server.log if "owner/damaged is not served" in line]
    assert len(refused) == 1, "once, however often models are looked at"


def test_an_api_process_that_comes_later_knows_a_loaded_model_whose_files_have_gone(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    environment = {"HF_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    folder = cached(tmp_path)
    server = start("--models", "local", env=environment)
    assert server.post("/api/generate", {"model": "owner/tiny", "keep_alive": -1}).status_code == 200
    shutil.rmtree(folder)
    cached(tmp_path, "other")
    assert server.post("/api/pull", {"model": "owner/other", "stream": False}).status_code == 200
    (api,) = children(server, "inflight.server.processes.child")
    os.kill(api, signal.SIGKILL)
    assert server.settled(lambda: children(server, "inflight.server.processes.child") not in ([], [api]))

    def answers() -> bool:
        with suppress(httpx.HTTPError):
            return server.get("/health").status_code == 200
        return False

    assert server.settled(answers)
    assert sorted(names(server)) == ["owner/other:latest", "owner/tiny:latest"]
