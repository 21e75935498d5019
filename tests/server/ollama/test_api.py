"""ollama's API over HTTP: conversations with tools and reasoning, models that are listed, loaded and left, refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from starlette.requests import Request

from inflight.build import BUILT_IN
from inflight.server.errors import ApiError
from inflight.server.ollama import caches
from inflight.server.ollama.details import Described, describe
from inflight.server.ollama.models import ollama_routes
from inflight.server.routes import check_manages
from inflight.server.service import Service
from inflight.server.settings import ServerSettings
from inflight.server.tenants import ANYONE
from tests.server.conftest import Server
from tests.server.scripted import ANSWERS
from tests.server.test_tools import TOOLS

ASK = {"model": "built-in", "messages": [{"role": "user", "content": "What is a lane?"}]}
OPTIONS = {"temperature": 0, "num_predict": 8}


def lines(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def talk(server: Server, text: str, **more: Any) -> dict[str, Any]:
    body = {"model": "qwenlike:latest", "messages": [{"role": "user", "content": text}], "stream": False, **more}
    answer: dict[str, Any] = server.post("/api/chat", body).json()
    return answer


def test_answers_are_those_of_chat(server: Server) -> None:
    expected = server.post("/v1/chat/completions", {**ASK, "temperature": 0, "max_tokens": 8}).json()
    text = expected["choices"][0]["message"]["content"]
    streamed = lines(server.post("/api/chat", {**ASK, "options": OPTIONS}))
    assert "".join(line["message"]["content"] for line in streamed) == text
    whole = server.post("/api/chat", {**ASK, "options": OPTIONS, "stream": False}).json()
    assert whole["message"] == {"role": "assistant", "content": text}
    for last in (whole, streamed[-1]):
        assert (last["eval_count"], last["done_reason"], last["done"]) == (8, "length", True)
        assert last["total_duration"] >= last["eval_duration"] > 0
    generated = lines(
        server.post("/api/generate", {"model": "built-in", "prompt": "What is a lane?", "options": OPTIONS})
    )
    assert "".join(line["response"] for line in generated) == text
    again = server.post(
        "/api/generate",
        {"model": "built-in", "prompt": "And more?", "context": generated[-1]["context"], "stream": False},
    ).json()
    assert again["prompt_eval_count"] > len(generated[-1]["context"])


def test_a_single_message_that_is_too_long_is_refused_or_computed_whole(server: Server) -> None:
    for body in ({"messages": [{"role": "user", "content": "word " * 3000}]}, {"prompt": "word " * 3000}):
        path = "/api/chat" if "messages" in body else "/api/generate"
        answer = server.post(path, {"model": "built-in", **body})
        assert answer.status_code == 400 and "maximum context length" in answer.json()["error"], answer.text
    few = {"num_ctx": 1, "num_predict": 2}
    for more in ({}, {"raw": True}):
        asked = {"model": "built-in", "prompt": "What is a lane?", "options": few, "stream": False, **more}
        assert server.post("/api/generate", asked).json()["eval_count"] == 2


def test_a_tool_is_called_and_its_result_comes_back(scripted: Server) -> None:
    first = talk(scripted, "call the tool", tools=TOOLS)["message"]
    assert first["content"] == "Let me see."
    (call,) = first["tool_calls"]
    assert call["function"] == {"index": 0, "name": "weather", "arguments": {"city": "Zürich"}}
    history = [{"role": "user", "content": "call the tool"}, first, {"role": "tool", "content": "count"}]
    assert talk(scripted, "", messages=history, tools=TOOLS)["message"]["content"] == ANSWERS["count"]


def test_reasoning_is_shown_by_itself(scripted: Server) -> None:
    message = talk(scripted, "think", think=True)["message"]
    assert (message["thinking"], message["content"]) == ("Hm.", "42")
    shown = scripted.post("/api/show", {"model": "qwenlike"}).json()["capabilities"]
    assert shown == ["completion", "tools", "thinking"]


def test_models_are_listed_and_shown_with_a_tag(server: Server) -> None:
    (listed,) = server.get("/api/tags").json()["models"]
    assert listed["name"] == listed["model"] == "built-in:latest" and len(listed["digest"]) == 64
    assert (listed["details"]["family"], listed["details"]["format"]) == ("llama", "safetensors")
    (loaded,) = server.get("/api/ps").json()["models"]
    assert (loaded["name"], loaded["context_length"], loaded["size_vram"]) == ("built-in:latest", 1024, 0)
    for asked in ({"model": "built-in"}, {"name": "built-in:latest"}):
        shown = server.post("/api/show", asked).json()
        assert shown["model_info"]["llama.context_length"] == 1024 and "num_ctx" in shown["parameters"]
        assert "<|assistant|>" in shown["template"] and "completion" in shown["capabilities"]
    version = server.get("/api/version").json()["version"]
    assert all(part.isdigit() for part in version.split("."))
    assert server.get("/v1/models/built-in:latest").json()["id"] == "built-in"


def test_errors_are_in_its_form(server: Server) -> None:
    for answer, status, said in (
        (server.post("/api/chat", {**ASK, "model": "other"}), 404, "does not exist"),
        (server.post("/api/show", {"model": "other"}), 404, "does not exist"),
        (server.post("/api/show", {}), 400, "'model' is missing"),
        (server.post("/api/pull", {"model": "a\0b"}), 400, "NUL"),
        (server.post("/api/chat", {"messages": []}), 400, "'model' is missing"),
        (server.post("/api/generate", {"model": "built-in", "prompt": "a", "suffix": "b"}), 400, "suffix"),
        (server.post("/api/embed", {"model": "built-in", "input": "x"}), 400, "no pooling head"),
        (server.post("/api/create", {"model": "x"}), 501, "is not supported"),
        (server.post("/api/copy", {}), 501, "is not supported"),
        (server.get("/api/nothing"), 404, "No endpoint"),
        (server.get("/api/chat"), 405, "use POST"),
        (httpx.request("DELETE", f"{server.url}/api/delete", json={"model": "built-in"}), 409, "in use"),
        (httpx.request("DELETE", f"{server.url}/api/delete", json={"model": "owner/none"}), 404, "not on this machine"),
    ):
        assert answer.status_code == status and list(answer.json()) == ["error"]
        assert said in answer.json()["error"], answer.text


def test_probes_that_read_no_page_are_answered(server: Server) -> None:
    for headers in ({"Accept": "application/json"}, {"Accept": ""}):
        answer = server.get("/", headers=headers)
        assert (answer.status_code, answer.text) == (200, "Ollama is running")
        assert httpx.head(server.url, headers=headers).status_code == 200
    for accepted in ("text/html,application/xhtml+xml", "*/*"):
        assert server.get("/", headers={"Accept": accepted}).headers["content-type"].startswith("text/html")


def test_pulls_are_reported_and_end_in_success_or_an_error(server: Server) -> None:
    asked = server.post("/api/pull", {"model": "llama3.2"})
    assert "is a name of ollama's library" in lines(asked)[-1]["error"]
    assert server.post("/api/pull", {"model": "llama3.2", "stream": False}).status_code == 500
    assert server.post("/api/pull", {"model": ""}).status_code == 400


def test_only_operators_pull_and_delete(start: Callable[..., Server], tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[ops]\nkey = "sk-ops"\noperator = true\n[app]\nkey = "sk-app"\n')
    asking = start("--api-keys-file", str(keys))
    for key, status in (("sk-app", 403), ("sk-ops", 404)):
        headers = {"Authorization": f"Bearer {key}"}
        answer = httpx.request("DELETE", f"{asking.url}/api/delete", json={"model": "owner/none"}, headers=headers)
        assert answer.status_code == status, answer.text
    assert asking.get("/api/tags").status_code == 401 and list(asking.get("/api/tags").json()) == ["error"]


def test_a_server_that_others_reach_without_a_key_is_not_changed_by_them(start: Callable[..., Server]) -> None:
    url = start("--host", "0.0.0.0").url.replace("0.0.0.0", "127.0.0.1")
    for method, path in (("POST", "/api/pull"), ("DELETE", "/api/delete")):
        answer = httpx.request(method, url + path, json={"model": "owner/none"})
        assert answer.status_code == 403 and "--api-key" in answer.json()["error"]
    for path in ("/sleep", "/wake_up", "/reset_prefix_cache"):
        answer = httpx.post(url + path)
        assert answer.status_code == 403 and "--host 127.0.0.1" in answer.json()["error"]["message"]
    assert httpx.get(f"{url}/api/tags").status_code == httpx.get(f"{url}/is_sleeping").status_code == 200


def test_clients_behind_a_proxy_neither_pull_nor_delete_without_a_key(server: Server) -> None:
    for name in ("X-Forwarded-For", "Forwarded"):
        headers = {name: "203.0.113.7"}
        answer = httpx.request("DELETE", f"{server.url}/api/delete", json={"model": "owner/none"}, headers=headers)
        assert answer.status_code == 403 and "through a proxy" in answer.json()["error"]
    request = Request({"type": "http", "headers": [], "state": {"tenant": ANYONE}})
    check_manages(request, ServerSettings(), "pull models")
    for settings in (ServerSettings(root_path="/llm"), ServerSettings(trusted_proxies=("10.0.0.7",))):
        with pytest.raises(ApiError, match="through a proxy"):
            check_manages(request, settings, "pull models")


def test_keep_alive_says_how_long_a_model_stays(start: Callable[..., Server], tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text("memory = 4\n[models.a]\n[models.b]\n")
    pool = start("--models", str(file))

    def loaded() -> dict[str, Any]:
        return {one["name"]: one for one in pool.get("/api/ps").json()["models"]}

    assert loaded() == {} and len(pool.get("/api/tags").json()["models"]) == 2
    assert pool.post("/api/generate", {"model": "a", "keep_alive": "10m"}).json()["done_reason"] == "load"
    assert list(loaded()) == ["a:latest"] and loaded()["a:latest"]["expires_at"] < "2100"
    assert pool.post("/api/chat", {"model": "a:latest", "keep_alive": -1}).status_code == 200
    assert loaded()["a:latest"]["expires_at"] > "2100"
    assert pool.post("/api/chat", {"model": "a", "keep_alive": 1e15}).status_code == 200, "longer than dates count"
    assert loaded()["a:latest"]["expires_at"] > "2100"
    answer = pool.post("/api/chat", {**ASK, "model": "b", "options": OPTIONS, "keep_alive": 0, "stream": False}).json()
    assert answer["eval_count"] == 8 and answer["load_duration"] > 0
    assert pool.settled(lambda: "b:latest" not in loaded())
    assert pool.post("/api/generate", {"model": "a", "keep_alive": 0}).json()["done_reason"] == "unload"
    assert pool.settled(lambda: loaded() == {})
    assert pool.post("/api/generate", {"model": "c", "keep_alive": 0}).status_code == 404


def test_a_model_that_is_not_here_is_not_the_current_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(BUILT_IN)
    assert describe(str(BUILT_IN)).template and describe("") == Described(digest=describe("").digest)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_pull_whose_client_has_left_ends(monkeypatch: pytest.MonkeyPatch, streamed: bool) -> None:
    ended = asyncio.Event()

    async def endless(verb: str, name: str) -> AsyncGenerator[Any, None]:
        try:
            yield caches._Step(status="asking")
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(caches, "_ask_caches", endless)
    service = cast(Service, SimpleNamespace(settings=ServerSettings()))
    (pull,) = (one.route.endpoint for one in ollama_routes(service, "1").operations if one.route.path == "/api/pull")
    body = json.dumps({"model": "owner/name", "stream": streamed}).encode()
    came = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return came.pop() if came else {"type": "http.disconnect"}

    async def send(_: Any) -> None: ...

    async def ask() -> None:
        scope = {"type": "http", "method": "POST", "path": "/api/pull", "headers": [], "state": {"tenant": ANYONE}}
        request = Request(scope, receive)
        await (await pull(request))(scope, receive, send)

    asyncio.run(asyncio.wait_for(ask(), 20))
    assert ended.is_set()


def test_statuses_of_pulls_have_what_progress_bars_read() -> None:
    bar = caches._progress(caches._step_of(b'{"status":"downloading","model":"owner/name","completed":3,"total":9}'))
    assert (bar.completed, bar.total) == (3, 9)
    assert isinstance(bar.digest, str) and bar.digest.startswith("sha256:") and len(bar.digest) == 71
    assert bar.status == f"pulling {bar.digest[7:19]}"
    one = caches._progress(caches._step_of(b'{"status":"verifying","model":"smollm2","digest":"ab"}'))
    assert one.status == "verifying sha256 digest"
