"""`--models local`: the models in the caches are served, those that come and go while the server runs, too."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import httpx

from inflight import build
from tests.server.conftest import Server


def names(server: Server) -> list[str]:
    return [one["name"] for one in server.get("/api/tags").json()["models"]]


def test_models_come_by_a_pull_and_go_by_a_delete(start: Callable[..., Server], tmp_path: Path) -> None:
    environment = {"HF_HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    server = start("--models", "local", "--api-processes", "2", env=environment)
    assert names(server) == ["built-in:latest"], "of empty caches"
    revision = "0" * 40
    folder = tmp_path / "hub" / "models--owner--tiny"
    shutil.copytree(build.BUILT_IN, folder / "snapshots" / revision)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(revision)
    assert server.post("/api/pull", {"model": "owner/tiny", "stream": False}).json() == {"status": "success"}
    for _ in range(4):  # whichever process answers
        assert names(server) == ["owner/tiny:latest"]
    answer = server.post("/api/generate", {"model": "owner/tiny", "prompt": "What is a lane?", "stream": False})
    assert answer.status_code == 200 and answer.json()["response"], answer.text
    assert server.post("/v1/chat/completions", {"model": "built-in", "messages": [{"role": "user", "content": "x"}]})
    assert httpx.request("DELETE", f"{server.url}/api/delete", json={"model": "owner/tiny"}).status_code == 200
    assert not folder.exists() and names(server) == ["built-in:latest"]
    assert server.post("/api/generate", {"model": "owner/tiny", "prompt": "x"}).status_code == 404
    assert server.post("/api/generate", {"model": "built-in", "prompt": "x"}).status_code == 200
