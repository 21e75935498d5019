"""Requests of programs that know ollama, as their sources have them, and what these read of the answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from tests.server.conftest import SCRIPTED, Server
from tests.server.scripted import ANSWERS, write_filler
from tests.server.test_tools import TOOLS

MODEL = "qwenlike:latest"


@pytest.fixture(scope="module")
def filler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = write_filler(tmp_path_factory.mktemp("model") / "filler")
    running = Server(str(folder), "--served-model-name", "filler", program=[SCRIPTED]).ready()
    yield running
    assert running.stop() == 0, "".join(running.log)


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_open_webui_lists_models_and_their_ends(scripted: Server) -> None:
    """0.12.4, routers/ollama.py: versions are compared as numbers, and ends of stays as times."""
    version = scripted.get("/api/version").json()["version"]
    assert len(tuple(map(int, re.sub(r"^v|-.*", "", version).split(".")))) == 3
    models = {one["model"]: one for one in scripted.get("/api/tags").json()["models"]}
    ends = {one["model"]: one["expires_at"] for one in scripted.get("/api/ps").json()["models"]}
    assert set(models) == set(ends) == {MODEL}
    assert int(datetime.fromisoformat(ends[MODEL]).timestamp()) > 0


def test_open_webui_talks(scripted: Server) -> None:
    """utils/payload.py: settings of a chat as options, tools as OpenAI has them, calls with `index` and an id."""
    options = {"temperature": 0.7, "top_k": 40, "num_ctx": 1024, "num_batch": 512, "use_mmap": True, "stop": ["~"]}
    body = {"model": MODEL, "stream": True, "options": options, "tools": TOOLS, "keep_alive": "5m"}
    asked = {"role": "user", "content": "call the tool"}
    parts = lines(scripted.post("/api/chat", {**body, "messages": [asked]}).text)
    (call,) = [call for part in parts for call in part["message"].get("tool_calls", ())]
    function = {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
    called = {"index": call["function"].get("index", 0), "id": call["id"], "function": function}
    history = [
        asked,
        {"role": "assistant", "tool_calls": [called], "content": ""},
        {"role": "tool", "content": "count", "tool_call_id": call["id"]},
    ]
    parts = lines(scripted.post("/api/chat", {**body, "messages": history}).text)
    assert "".join(part["message"]["content"] for part in parts) == ANSWERS["count"]
    usage = parts[-1]  # utils/response.py: rates are computed of these
    assert usage["eval_count"] / usage["eval_duration"] > 0 and usage["prompt_eval_count"] > 0
    title = {"model": MODEL, "messages": [{"role": "user", "content": "count"}], "stream": False, "options": {}}
    assert scripted.post("/api/chat", title).json()["message"]["content"] == ANSWERS["count"]


def test_open_webui_unloads_and_deletes(scripted: Server) -> None:
    unloaded = scripted.post("/api/generate", {"model": MODEL, "keep_alive": 0, "prompt": ""})
    assert unloaded.json()["done_reason"] == "unload"
    pulled = lines(scripted.post("/api/pull", {"model": "llama3.2", "insecure": True}).text)
    assert "error" in pulled[-1]


def test_continue_reads_the_context_and_fills_gaps(filler: Server) -> None:
    """core/llm/llms/Ollama.ts: `parameters` line by line, `.Suffix` in the template; undefined fields are left out."""
    shown = filler.post("/api/show", {"name": "filler"}).json()
    lines_of = [re.fullmatch(r'(\S+)\s+((?:".*")|\S+)', line) for line in shown["parameters"].split("\n")]
    assert all(lines_of) and {one[1]: one[2] for one in lines_of if one is not None}["num_ctx"] == "1024"
    assert ".Suffix" in shown["template"] and "insert" in shown["capabilities"]
    body = {"model": "filler", "prompt": "def gap", "suffix": "\nreturn\n", "raw": False, "keep_alive": 1800}
    options = {"temperature": 0.01, "num_predict": 64, "stop": ["<|endoftext|>"], "num_ctx": 1024}
    parts = lines(filler.post("/api/generate", {**body, "options": options, "stream": True}).text)
    assert "".join(part["response"] for part in parts) == "first\nsecond"


def test_copilot_chat_reads_what_a_model_can(scripted: Server) -> None:
    """Its minimum version is compared number by number, its context is that of the architecture."""
    version = [int(one) for one in scripted.get("/api/version").json()["version"].split(".")]
    assert version >= [0, 6, 4]
    shown = scripted.post("/api/show", {"model": MODEL}).json()
    info = shown["model_info"]
    assert info[f"{info['general.architecture']}.context_length"] == 1024 and info["general.basename"]
    assert {"tools", "thinking"} <= set(shown["capabilities"])
