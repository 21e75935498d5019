"""Adapters over HTTP: called by their names, loaded and unloaded while the server runs, by those who may."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from adapters import write_adapter
from models import write_model

from .conftest import Server, children

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("adapters")
    write_model(path / "model")
    for seed, name in enumerate(("a", "b", "c")):
        write_adapter(path / "lora" / name, path / "model", seed)
    write_adapter(path / "lora" / "high", path / "model", 9, rank=40)
    write_adapter(path / "lora" / "other", write_model(path / "wide", hidden_size=96), 9)
    return path


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    one = Server(*options(folder), "--lora-dir", str(folder / "lora"), "--metrics-names", "vllm").ready()
    yield one
    one.process.terminate()
    one.process.wait(30)


def options(folder: Path) -> list[str]:
    named = [word for name in ("a", "b") for word in ("--lora", f"{name}={folder / 'lora' / name}")]
    return ["--model", str(folder / "model"), *named, "--served-model-name", "base", "--max-loras", "2"]


def said(client: openai.OpenAI, model: str, **given: Any) -> str:
    answer = client.completions.create(model=model, prompt="hello there", max_tokens=8, temperature=0, **given)
    assert answer.model == model
    return answer.choices[0].text


def test_an_adapter_is_called_by_its_name(server: Server) -> None:
    client = server.client()
    texts = {model: said(client, model) for model in ("base", "a", "b")}
    assert len(set(texts.values())) == 3
    with ThreadPoolExecutor(6) as pool:
        asked = ["a", "base", "b"] * 4
        assert list(pool.map(lambda model: said(client, model), asked)) == [texts[model] for model in asked]
    chat = client.chat.completions.create(model="a", messages=[{"role": "user", "content": "x"}], max_tokens=4)
    assert chat.model == "a"


def test_models_say_which_are_adapters(server: Server, folder: Path) -> None:
    found = {one["id"]: one for one in server.get("/v1/models").json()["data"]}
    assert found["base"]["parent"] is None and found["a"]["parent"] == "base"
    assert found["a"]["root"] == str(folder / "lora" / "a")
    assert server.get("/v1/models/a").json() == found["a"]


def test_one_comes_and_goes_while_the_server_runs(server: Server) -> None:
    client = server.client()
    answer = server.post(LOAD, {"lora_name": "c", "lora_path": "c"})
    assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'c' added successfully.")
    text = said(client, "c")
    assert text != said(client, "base")
    again = server.post(LOAD, {"lora_name": "c", "lora_path": "c"})
    assert again.status_code == 400 and "is already loaded" in again.json()["error"]["message"]
    assert server.post(UNLOAD, {"lora_name": "c"}).status_code == 200
    with pytest.raises(openai.NotFoundError, match=r"'c' does not exist; this server has base, a, b"):
        said(client, "c")
    # The name of another one: nothing of what the first has computed is found.
    assert server.post(LOAD, {"lora_name": "c", "lora_path": "b"}).status_code == 200
    assert said(client, "c") == said(client, "b") != text
    assert server.post(UNLOAD, {"lora_name": "c"}).status_code == 200


def test_unloading_ends_no_request(server: Server) -> None:
    assert server.post(LOAD, {"lora_name": "c", "lora_path": "c"}).status_code == 200
    stream = server.client().completions.create(
        model="c", prompt="on and on", max_tokens=120, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    assert server.post(UNLOAD, {"lora_name": "c"}).status_code == 200
    assert [*stream][-1].choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"lora_name": "x"}, None, "lora_path"),
        ({"lora_name": "x", "lora_path": 3}, "lora_path", "lora_path"),
        ({"lora_name": "", "lora_path": "c"}, "lora_name", "lora_name"),
        ({"lora_name": "x\n", "lora_path": "c"}, "lora_name", "printable"),
        ({"lora_name": "x", "lora_path": "../model"}, "lora_path", "outside --lora-dir"),
        ({"lora_name": "x", "lora_path": "/etc"}, "lora_path", "outside --lora-dir"),
        ({"lora_name": "x", "lora_path": "a\x00b"}, "lora_path", "outside --lora-dir"),
        ({"lora_name": "x", "lora_path": "nowhere"}, "lora_path", "is no folder"),
        ({"lora_name": "x", "lora_path": "high"}, "lora_path", "--max-lora-rank 40"),
        ({"lora_name": "x", "lora_path": "other"}, "lora_path", "of another model"),
        ({"lora_name": "a", "lora_path": "a"}, "lora_name", "is already loaded"),
    ],
)
def test_faults_of_loading_are_reported(server: Server, body: dict[str, Any], param: str | None, message: str) -> None:
    answer = server.post(LOAD, body)
    error = answer.json()["error"]
    assert answer.status_code == 400 and message in error["message"], error
    assert param is None or error["param"] == param


def test_unknown_names_are_reported(server: Server) -> None:
    answer = server.post(UNLOAD, {"lora_name": "unknown"})
    assert answer.status_code == 404 and "there are a, b" in answer.json()["error"]["message"]


def test_metrics_count_adapters(server: Server) -> None:
    said(server.client(), "a")
    assert server.metric("inflight_adapter_slots") == 2
    assert server.metric("inflight_adapter_loads_total") >= 1
    assert server.metric("inflight_adapter_requests", adapter="a") == 0
    assert server.metric("vllm:lora_requests_info", max_lora="2", waiting_lora_adapters="") > 1e9


def test_a_tenant_has_his_own_adapters(folder: Path, tmp_path: Path, start: Callable[..., Server]) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[boss]\nkey = "k-boss"\noperator = true\n[guest]\nkey = "k-guest"\nadapters = ["b"]\n')
    server = start(*options(folder), "--lora-dir", str(folder / "lora"), "--api-keys-file", str(keys))
    guest, boss = server.client("k-guest"), server.client("k-boss")
    assert {one.id for one in guest.models.list()} == {"base", "b"}
    assert {one.id for one in boss.models.list()} == {"base", "a", "b"}
    assert said(guest, "b") == said(boss, "b")
    with pytest.raises(openai.NotFoundError, match=r"'a' does not exist; this server has base, b"):
        said(guest, "a")
    headers = {"Authorization": "Bearer k-guest"}
    for path, body in ((LOAD, {"lora_name": "c", "lora_path": "c"}), (UNLOAD, {"lora_name": "b"})):
        answer = server.post(path, body, headers=headers)
        assert answer.status_code == 403 and "operator = true" in answer.json()["error"]["message"]
    assert server.post(LOAD, {"lora_name": "c", "lora_path": "c"}, headers={"x-api-key": "k-boss"}).status_code == 200


@pytest.mark.wide
def test_without_a_folder_none_is_loaded(folder: Path, start: Callable[..., Server]) -> None:
    server = start(*options(folder), "--api-processes", "2")
    answer = server.post(LOAD, {"lora_name": "c", "lora_path": "c"})
    assert answer.status_code == 403 and "--lora-dir" in answer.json()["error"]["message"]
    assert said(server.client(), "a") != said(server.client(), "b"), "processes know those of the start"


def test_lines_of_batches_name_adapters(folder: Path, tmp_path: Path, start: Callable[..., Server]) -> None:
    server = start(*options(folder), "--data-dir", str(tmp_path / "data"))
    client = server.client()
    bodies = [{"model": model, "prompt": "hello there", "max_tokens": 8, "temperature": 0} for model in ("a", "base")]
    lines = [
        json.dumps({"custom_id": body["model"], "method": "POST", "url": "/v1/completions", "body": body})
        for body in bodies
    ]
    file = client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")
    job = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    assert server.settled(lambda: client.batches.retrieve(job.id).status == "completed")
    output = client.files.content(str(client.batches.retrieve(job.id).output_file_id)).text
    found = {
        one["custom_id"]: one["response"]["body"]["choices"][0]["text"] for one in map(json.loads, output.splitlines())
    }
    assert found == {"a": said(client, "a"), "base": said(client, "base")}


def test_options_that_exclude_each_other(folder: Path, start: Callable[..., Server]) -> None:
    server = start(*options(folder), "--lora-dir", str(folder / "nowhere"), ready=False)
    server.process.wait(30)
    assert "is no folder" in "".join(server.log)


def test_all_processes_know_adapters_that_were_loaded_and_so_does_the_next_engine(
    folder: Path, start: Callable[..., Server]
) -> None:
    server = start(*options(folder), "--lora-dir", str(folder / "lora"), "--api-processes", "2")
    assert server.post(LOAD, {"lora_name": "d", "lora_path": "c"}).status_code == 200
    assert server.post(UNLOAD, {"lora_name": "b"}).status_code == 200
    assert server.post(LOAD, {"lora_name": "d", "lora_path": "c"}).status_code == 400, "it is there"
    assert server.post(UNLOAD, {"lora_name": "b"}).status_code == 404

    def listed() -> list[set[str]]:
        return [{one["id"] for one in server.get("/v1/models").json().get("data", ())} for _ in range(8)]

    def all_know() -> bool:
        return all(one >= {"a", "d"} and "b" not in one for one in listed())

    assert server.settled(all_know)
    before = said(server.client(), "d")
    [engine] = children(server, "inflight.launch.engine_process")
    os.kill(engine, signal.SIGKILL)
    module = "inflight.launch.engine_process"
    assert server.settled(lambda: children(server, module) not in ([], [engine]))
    assert server.settled(lambda: server.get("/health").status_code == 200)
    assert all_know()
    assert said(server.client(), "d") == before != said(server.client(), "a")
    module = "inflight.server.processes.child"
    for one in children(server, module):
        os.kill(one, signal.SIGKILL)
        assert server.settled(lambda gone=one: gone not in children(server, module))
    assert server.settled(lambda: len(children(server, module)) == 2 and all_know()), "so do the next API processes"
