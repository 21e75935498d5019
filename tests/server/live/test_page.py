"""The live page of a real server: the page, its feed, and who may see what."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.conftest import Server

KEYS = '[acme]\nkey = "sk-acme"\n[umbrella]\nkey = "sk-umbrella"\n[boss]\nkey = "sk-boss"\noperator = true\n'


@contextmanager
def feed(server: Server, **headers: str) -> Iterator[Iterator[tuple[str, dict[str, Any]]]]:
    """(event id, message), as they come."""
    with httpx.stream("GET", server.url + "/live/events", headers=headers, timeout=30) as answer:
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")

        def messages() -> Iterator[tuple[str, dict[str, Any]]]:
            event_id = ""
            for line in answer.iter_lines():
                if line.startswith("id: "):
                    event_id = line[4:]
                elif line.startswith("data: "):
                    yield event_id, json.loads(line[6:])

        yield messages()


def ask(server: Server, key: str = "none", tokens: int = 40, **more: Any) -> None:
    answer = server.post(
        "/v1/completions",
        {"prompt": "one two three", "max_tokens": tokens, "ignore_eos": True, **more},
        headers={"Authorization": f"Bearer {key}"},
    )
    assert answer.status_code == 200, answer.text


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "keys.toml").write_text(KEYS, encoding="utf-8")
    arguments = ("--api-keys-file", str(folder / "keys.toml"), "--record", str(folder / "record.jsonl"))
    running = Server(*arguments, "--cors-origin", "https://friend.example").ready()
    yield running
    assert running.stop() == 0, "".join(running.log)


def test_the_front_page_is_the_live_page(server: Server) -> None:
    answer = server.get("/")
    assert answer.status_code == 200 and "<title>inflight</title>" in answer.text
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    for part in (piece.split('"')[0] for piece in answer.text.split('="ui/')[1:]):
        file = server.get(f"/ui/{part}")
        assert file.status_code == 200 and file.headers["x-content-type-options"] == "nosniff", part
        assert server.get(f"/ui/{part}", headers={"If-None-Match": file.headers["etag"]}).status_code == 304
    assert server.get("/ui/nothing.js").status_code == 404
    assert server.get("/ui/..%2fframes.py").status_code == 404


def test_frames_show_a_request(server: Server) -> None:
    with feed(server) as messages:
        _, hello = next(messages)
        assert hello["type"] == "hello" and hello["sees_all"] and hello["max_rows"] > 0
        assert any(one["name"] == "strategy" for one in hello["settings"])
        threading.Thread(target=ask, args=(server,)).start()
        runs: list[list[float]] = []
        ended: list[dict[str, Any]] = []
        for _, frame in messages:
            runs += frame.get("runs", [])
            ended += frame.get("ended", [])
            if ended:
                break
        assert {run[2] for run in runs} >= {0, 1}, "a prompt, and single tokens"
        assert ended[0]["output_tokens"] == 40 and ended[0]["account"]["total"] > 0
        assert ended[0]["reason"] == "length"


def test_who_comes_back_gets_what_he_missed_and_a_new_page_the_latest(server: Server) -> None:
    with feed(server) as messages:
        seen = [next(messages) for _ in range(5)]
    last = seen[2][0]
    with feed(server, **{"Last-Event-ID": last}) as messages:
        next(messages)
        assert [next(messages)[1]["number"] for _ in range(2)] == [seen[3][1]["number"], seen[4][1]["number"]]
    for wrong in ("other-3", "nonsense", last + "9" * 40):
        with feed(server, **{"Last-Event-ID": wrong}) as messages:
            next(messages)
            assert next(messages)[1]["number"] >= seen[4][1]["number"]


def test_no_client_without_a_key_sees_anything(guarded: Server) -> None:
    assert guarded.get("/").status_code == 200, "the page itself shows nothing"
    for path in ("/live/events", "/live/record"):
        assert guarded.get(path).status_code == 401
        assert guarded.get(path, headers=bearer("wrong")).status_code == 401
        assert guarded.get(path + "?key=sk-boss&api_key=sk-boss").status_code == 401, "no keys in addresses"


def test_a_tenant_sees_his_own_and_others_without_names(guarded: Server) -> None:
    asked = [
        threading.Thread(target=ask, args=(guarded, f"sk-{who}", 400), kwargs={"user": f"user-of-{who}"})
        for who in ("acme", "umbrella")
    ]

    def seen_by(key: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        with feed(guarded, **bearer(key)) as messages:
            _, hello = next(messages)
            if key == "sk-acme":
                for one in asked:
                    one.start()
            infos = list(hello.get("requests", []))
            for _, frame in messages:
                infos += frame.get("requests", []) + [one["info"] for one in frame.get("ended", [])]
                if len({info["number"] for info in infos}) >= 2:
                    return hello, infos
        raise AssertionError("the feed ended")

    hello, infos = seen_by("sk-acme")
    assert not hello.get("sees_all") and hello["tenant"] == "acme" and "settings" not in hello
    mine = [info for info in infos if info.get("mine", True)]
    others = [info for info in infos if not info.get("mine", True)]
    assert mine and others and all(info["request_id"] for info in mine)
    assert not any(key in info for info in others for key in ("request_id", "tenant", "prompt_tokens"))
    hello, infos = seen_by("sk-boss")
    assert hello["sees_all"] and {info["tenant"] for info in infos} >= {"acme", "umbrella"}
    for one in asked:
        one.join()


def test_a_living_requests_account_is_its_tenants_and_the_operators(guarded: Server) -> None:
    seen = threading.Event()

    def keep_asking() -> None:
        while not seen.is_set():
            ask(guarded, "sk-umbrella", 1000, n=48)

    asking = threading.Thread(target=keep_asking)
    keys = ("sk-boss", "sk-umbrella", "sk-acme", "none", "sk-boss")
    with feed(guarded, **bearer("sk-boss")) as messages:
        next(messages)
        asking.start()
        try:
            for _, frame in messages:  # until one is still alive when all have asked for it, on a busy machine too
                living = {one["request_id"] for one in frame.get("requests", []) if one["tenant"] == "umbrella"}
                for name in living:
                    answers = [guarded.get(f"/live/account?id={name}", headers=bearer(key)) for key in keys]
                if living and answers[-1].status_code == 200:
                    break
        finally:
            seen.set()
            asking.join()
    *allowed, refused, unauthorized, _ = answers
    for answer in allowed:
        assert answer.status_code == 200 and answer.json()["total"] > 0, answer.text
        assert answer.json()["total"] == pytest.approx(
            sum(answer.json()[part] for part in ("queue", "prefill", "decode", "preempted", "other")), abs=0.1
        )
    unknown = guarded.get("/live/account?id=none", headers=bearer("sk-acme"))
    assert refused.status_code == unknown.status_code == 404 and refused.json() == unknown.json(), "nothing is learnt"
    assert unauthorized.status_code == 401
    assert guarded.get(f"/live/account?id={name}", headers=bearer("sk-boss")).status_code == 404, "it has ended"


def test_records_are_the_operators(guarded: Server) -> None:
    ask(guarded, "sk-acme")
    refused = guarded.get("/live/record", headers=bearer("sk-acme"))
    assert refused.status_code == 403 and refused.json()["error"]["code"] == "not_an_operator"
    record = guarded.get("/live/record", headers=bearer("sk-boss"))
    assert record.status_code == 200 and json.loads(record.text.splitlines()[0])["kind"] == "header"
    assert "attachment" in record.headers["content-disposition"]
    header, *lines = record.text.splitlines()
    end = guarded.get("/live/record?last=0", headers=bearer("sk-boss")).text.splitlines()
    assert end[0] == header and len(end) < len(lines) and end[1] in lines, "its last line, behind the header"
    assert guarded.get("/live/record?last=x", headers=bearer("sk-boss")).status_code == 400


def test_a_server_without_a_record_says_how_to_get_one(server: Server) -> None:
    answer = server.get("/live/record")
    assert answer.status_code == 404 and "--record" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "headers", [{"Origin": "https://friend.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}]
)
def test_pages_of_other_origins_read_nothing(guarded: Server, headers: dict[str, str]) -> None:
    """Whatever --cors-origin allows the API."""
    for path in ("/live/events", "/live/record", "/live/account?id=x"):
        answer = guarded.get(path, headers={**headers, **bearer("sk-boss")})
        assert answer.status_code == 403 and answer.json()["error"]["code"] == "cross_origin"


def test_without_the_page_there_is_neither_page_nor_feed(start: Callable[..., Server]) -> None:
    server = start("--no-ui")
    assert server.get("/").status_code == 307
    assert server.get("/live/events").status_code == 404 and server.get("/ui/page.js").status_code == 404


def test_the_server_ends_while_a_viewer_looks(start: Callable[..., Server]) -> None:
    server = start()
    with feed(server) as messages:
        next(messages)
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 10
        for _ in messages:
            pass  # its stream ends whole
    assert not [line for line in server.log if "Traceback" in line or "exceeded" in line]


def engines(messages: Iterator[tuple[str, dict[str, Any]]]) -> tuple[set[str], dict[str, set[int]], dict[str, Any]]:
    """Read a stream until a request was computed: engines that were greeted, works of runs of each, and the last
    counts."""
    greeted: set[str] = set()
    works: dict[str, set[int]] = {}
    members: dict[str, Any] = {}
    end = time.monotonic() + 60
    while time.monotonic() < end and not (members and any({0, 1} <= one for one in works.values())):
        _, message = next(messages)
        if message["type"] == "hello":
            greeted.add(message["engine"])
        elif "engine" in message:
            assert message["engine"] in greeted, "it is greeted before"
            works.setdefault(message["engine"], set()).update(run[2] for run in message.get("runs", []))
        else:
            members.update({one["name"]: one for one in message.get("members", [])})
    return greeted, works, members


@pytest.mark.wide
def test_every_api_process_shows_the_engine(start: Callable[..., Server]) -> None:
    server = start("--api-processes", "2")
    with feed(server) as messages:
        _, hello = next(messages)
        assert hello["source"] == "live" and hello["max_rows"] > 0
        asked = threading.Thread(target=ask, args=(server,), kwargs={"tokens": 600})
        asked.start()
        assert next(frame for _, frame in messages if frame.get("ended"))["ended"][0]["output_tokens"] == 600
    asked.join()


@pytest.mark.wide
def test_of_several_models_each_is_seen(start: Callable[..., Server], tmp_path: Path) -> None:
    models = tmp_path / "models.toml"
    models.write_text("memory = 4\n[models.a]\npin = true\nkv-memory = 0.05\n[models.b]\nkv-memory = 0.05\n")
    server = start("--models", str(models))
    with feed(server) as messages:
        _, hello = next(messages)
        assert hello["members_only"] and hello["title"] == "models"
        asked = threading.Thread(target=ask, args=(server,), kwargs={"tokens": 600, "model": "a"})
        asked.start()
        greeted, works, members = engines(messages)
        assert greeted == {"a"} and {0, 1} <= works["a"], "what is in memory is drawn"
        assert {name: one["state"] for name, one in members.items()} == {"a": "in memory", "b": "not loaded"}
    asked.join()
