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


def test_continue_talks_and_calls(scripted: Server) -> None:
    """Results of tools have neither name nor id, and undefined settings are left out."""
    body = {"model": MODEL, "options": {"num_predict": 64, "num_ctx": 1024}, "keep_alive": 1800, "stream": True}
    asked = [{"role": "user", "content": "call the tool"}]
    function = {key: TOOLS[0]["function"][key] for key in ("name", "parameters")}
    tools = [{"type": "function", "function": function}]
    parts = lines(scripted.post("/api/chat", {**body, "messages": asked, "tools": tools}).text)
    (call,) = [call for part in parts for call in part["message"].get("tool_calls", ())]
    called = {"function": {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}}
    history = [
        *asked,
        {"role": "assistant", "content": "Let me see.", "tool_calls": [called]},
        {"role": "tool", "content": "count"},
    ]
    parts = lines(scripted.post("/api/chat", {**body, "messages": history}).text)
    assert "".join(part["message"]["content"] for part in parts) == ANSWERS["count"]


def test_zed_lists_models(scripted: Server) -> None:
    """crates/ollama: fields without which its types cannot be read; a key that is not needed is sent along."""
    for one in scripted.get("/api/tags", headers={"Authorization": "Bearer"}).json()["models"]:
        strings = [one[name] for name in ("name", "modified_at", "digest")]
        strings += [one["details"][name] for name in ("format", "family", "parameter_size", "quantization_level")]
        assert all(isinstance(text, str) for text in strings) and one["size"] >= 0
        assert isinstance(one["details"]["families"], list | None)
        shown = scripted.post("/api/show", {"model": one["name"]}).json()
        assert "tools" in shown["capabilities"] and isinstance(shown["model_info"], dict)


def test_zed_talks_and_calls(scripted: Server) -> None:
    """Absent values are null, calls of an answer without any an empty list; of a line it reads the first call alone."""
    options = {"num_ctx": 16384, "num_predict": None, "stop": None, "temperature": 1.0, "top_p": None}
    tools = [{"type": "function", "function": {"description": None, **one["function"]}} for one in TOOLS]
    body = {"model": MODEL, "stream": True, "keep_alive": -1, "options": options, "tools": tools, "think": True}
    history: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]
    history += [{"role": "user", "content": "count"}]
    parts = lines(scripted.post("/api/chat", {**body, "messages": history}).text)
    assert all({"model", "created_at", "done"} <= set(part) for part in parts)
    assert all(part["message"]["role"] == "assistant" for part in parts)
    said = "".join(part["message"]["content"] for part in parts)
    assert said == ANSWERS["count"] and parts[-1]["done"] and parts[-1]["eval_count"] > 0
    history += [{"role": "assistant", "content": said, "tool_calls": [], "thinking": None}]
    history += [{"role": "user", "content": "call the tool"}]
    parts = lines(scripted.post("/api/chat", {**body, "messages": history}).text)
    calls = [part["message"]["tool_calls"] for part in parts if part["message"].get("tool_calls")]
    assert [len(one) for one in calls] == [1]
    called = {"id": calls[0][0]["id"], "function": {**calls[0][0]["function"]}}
    history += [{"role": "assistant", "content": "", "tool_calls": [called], "thinking": None}]
    history += [{"role": "tool", "tool_name": called["function"]["name"], "content": "count"}]
    parts = lines(scripted.post("/api/chat", {**body, "messages": history}).text)
    assert "".join(part["message"]["content"] for part in parts) == ANSWERS["count"]


def test_zed_fills_gaps(filler: Server) -> None:
    """crates/edit_prediction: it writes the tokens of the model's family, and the stops of every family."""
    stops = ["<|endoftext|>", "<|file_separator|>", "<|fim_pad|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"]
    stops += ["<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<PRE>", "<SUF>", "<MID>", "[PREFIX]", "[SUFFIX]"]
    prompt = "<|fim_prefix|>import gap<|fim_suffix|>\nreturn<|fim_middle|>"
    options = {"num_predict": 64, "temperature": 0.2, "stop": stops}
    body = {"model": "filler", "prompt": prompt, "raw": True, "stream": False, "options": options}
    shown = filler.post("/api/generate", body).json()
    assert shown["response"].startswith("first\nsecond") and isinstance(shown["created_at"], str)
    body = {"model": "filler", "prompt": prompt, "max_tokens": 64, "stop": stops}
    shown = filler.post("/v1/completions", body).json()
    assert shown["choices"][0]["text"].startswith("first\nsecond") and shown["id"]


def test_copilot_chat_reads_what_a_model_can(scripted: Server) -> None:
    """Its minimum version is compared number by number, its context is that of the architecture."""
    version = [int(one) for one in scripted.get("/api/version").json()["version"].split(".")]
    assert version >= [0, 6, 4]
    for one in scripted.get("/api/tags").json()["models"]:
        shown = scripted.post("/api/show", {"model": one["model"]}).json()
        info = shown["model_info"]
        assert info[f"{info['general.architecture']}.context_length"] == 1024 and info["general.basename"]
        assert {"tools", "thinking"} <= set(shown["capabilities"])


def test_copilot_chat_talks_and_calls(scripted: Server) -> None:
    """Over OpenAI's route, with an empty key, parts as contents and a mark of its own for caches."""
    body = {"model": MODEL, "temperature": 0.1, "top_p": 1, "n": 1, "stream": True, "tools": TOOLS}
    body |= {"stream_options": {"include_usage": True}, "tool_choice": "auto"}
    history: list[dict[str, Any]] = [
        {"role": "system", "content": "You are brief.", "copilot_cache_control": {"type": "ephemeral"}},
        {"role": "user", "content": [{"type": "text", "text": "call the tool"}], "name": "context"},
    ]
    headers = {"Authorization": "Bearer", "X-Request-Id": "a"}
    answer = scripted.post("/v1/chat/completions", {**body, "messages": history}, headers=headers)
    assert answer.status_code == 200, answer.text
    frames = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line.startswith("data: {")]
    deltas = [frame["choices"][0]["delta"] for frame in frames if frame["choices"]]
    calls = [call for delta in deltas for call in delta.get("tool_calls") or ()]
    assert calls[0]["id"] and calls[0]["function"]["name"] == "weather" and frames[-1]["usage"]["total_tokens"] > 0
    arguments = "".join(call["function"].get("arguments", "") for call in calls)
    function = {"name": "weather", "arguments": arguments}
    history += [
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [{"id": calls[0]["id"], "type": "function", "function": function}],
            "copilot_references": [],
        },
        {"role": "tool", "content": "count", "tool_call_id": calls[0]["id"]},
    ]
    answer = scripted.post("/v1/chat/completions", {**body, "messages": history, "stream": False}, headers=headers)
    assert answer.json()["choices"][0]["message"]["content"] == ANSWERS["count"]
