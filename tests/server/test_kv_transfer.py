"""Prefill and decode on servers of their own, as routers of the field drive them: answers are those of one server, and
whatever is wrong between the two costs computing alone."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import Server

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
STORY = "Once upon a time there was a little boy who lived in a house by the sea. "
ASKED = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None}
FIRST = {**ASKED, "remote_host": None, "remote_port": None}  # as vllm-router asks a prefill server
DRAWN = {"temperature": 0.8, "seed": 7, "max_tokens": 24}


def secret_file(folder: Path, name: str, secret: str) -> list[str]:
    (folder / name).write_text(secret)
    return ["--kv-peer-secret-file", str(folder / name)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secrets")


@pytest.fixture(scope="module")
def servers(folder: Path) -> Iterator[tuple[Server, Server, Server]]:
    """A prefill and a decode server, and one that knows another secret."""
    ours, others = (
        secret_file(folder, "ours", "a secret of many bytes"),
        secret_file(folder, "others", "another secret!!"),
    )
    few = ("--threads", "1", "--isolate-tenants")
    running = (
        Server("--role", "prefill", *few, *ours),
        Server("--role", "decode", "--kv-transfer-timeout", "5", *few, *ours),
        Server("--role", "decode", *few, *others),
    )
    for one in running:
        one.ready()
    yield running
    for one in running:
        assert one.stop() == 0, "".join(one.log)


def prompt(number: int) -> str:
    """One that no test has asked before."""
    return f"Story {number}. {STORY * 4}"


def prefilled(server: Server, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = server.post(path, {**body, "max_tokens": 1, "min_tokens": 1, "kv_transfer_params": FIRST})
    assert answer.status_code == 200, answer.text
    params: dict[str, Any] = answer.json()["kv_transfer_params"]
    return params


def asked(server: Server, path: str, body: dict[str, Any]) -> tuple[list[int], int]:
    """The answer's tokens, and those of the prompt that were not computed."""
    answer = server.post(path, {**body, "return_token_ids": True})
    assert answer.status_code == 200, answer.text
    whole = answer.json()
    return whole["choices"][0]["token_ids"], whole["usage"]["prompt_tokens_details"]["cached_tokens"]


def bodies(number: int) -> list[tuple[str, dict[str, Any]]]:
    messages = [{"role": "user", "content": prompt(number)}]
    return [(COMPLETIONS, {"prompt": prompt(number), **DRAWN}), (CHAT, {"messages": messages, **DRAWN})]


@pytest.mark.parametrize("which", [0, 1], ids=["completion", "chat"])
def test_answers_are_those_of_one_server(servers: tuple[Server, ...], which: int) -> None:
    prefill, decode, _ = servers
    path, body = bodies(1)[which]
    params = prefilled(prefill, path, body)
    assert set(params) == {
        *("do_remote_decode", "do_remote_prefill", "remote_engine_id", "remote_block_ids", "remote_host"),
        *("remote_port", "remote_request_id", "tp_size"),
    }
    tokens, cached = asked(decode, path, {**body, "kv_transfer_params": params})
    assert cached == 16 * len(params["remote_block_ids"]) > 0
    assert tokens == asked(prefill, path, body)[0]


def test_a_stream_has_it_in_its_last_frame_and_goes_on_elsewhere(servers: tuple[Server, ...]) -> None:
    prefill, decode, _ = servers
    body = {"prompt": prompt(2), **DRAWN, "stream": True}
    first = prefill.post(COMPLETIONS, {**body, "max_tokens": 1, "kv_transfer_params": FIRST})
    frames = [json.loads(line[6:]) for line in first.text.splitlines() if line.startswith("data: {")]
    shown = [frame["kv_transfer_params"] for frame in frames if "kv_transfer_params" in frame]
    assert len(shown) == 1 and "kv_transfer_params" in frames[-1]
    with_usage = {**body, "stream_options": {"include_usage": True}, "kv_transfer_params": shown[0]}
    second = decode.post(COMPLETIONS, with_usage)
    frames = [json.loads(line[6:]) for line in second.text.splitlines() if line.startswith("data: {")]
    assert frames[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    text = "".join(choice["text"] for frame in frames for choice in frame["choices"])
    whole = prefill.post(COMPLETIONS, {**body, "stream": False}).json()
    assert text == whole["choices"][0]["text"]


def test_another_tenant_cannot_take_what_the_id_names(servers: tuple[Server, ...]) -> None:
    """The same words under another salt are another prompt, whatever parameters are shown."""
    prefill, decode, _ = servers
    body = {"prompt": prompt(3), **DRAWN}
    params = prefilled(prefill, COMPLETIONS, {**body, "user": "one"})
    other = {**body, "user": "other", "kv_transfer_params": params}
    tokens, cached = asked(decode, COMPLETIONS, other)
    assert cached == 0 and tokens == asked(prefill, COMPLETIONS, body)[0]
    assert decode.settled(lambda: "salt, adapter or tokens are others" in "".join(decode.log))
    assert asked(decode, COMPLETIONS, {**body, "user": "one", "kv_transfer_params": params})[1] > 0


def test_addresses_are_only_called_that_a_peer_has_signed(servers: tuple[Server, ...]) -> None:
    prefill, decode, unknown = servers
    body = {"prompt": prompt(4), **DRAWN}
    params = prefilled(prefill, COMPLETIONS, body)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.2)
        port = listener.getsockname()[1]
        for number, changed in enumerate(
            (
                {"remote_port": port},
                {"remote_port": port, "remote_request_id": "made.up"},
                {"remote_port": port, "remote_engine_id": "x", "remote_request_id": None},
            )
        ):
            other = {"prompt": prompt(40 + number), **DRAWN, "kv_transfer_params": {**params, **changed}}
            assert asked(decode, COMPLETIONS, other)[1] == 0
        with pytest.raises(TimeoutError):
            listener.accept()
    assert asked(unknown, COMPLETIONS, {**body, "kv_transfer_params": params})[1] == 0


def test_parameters_that_name_nothing_change_nothing(servers: tuple[Server, ...]) -> None:
    _, decode, _ = servers
    body = {"prompt": prompt(5), **DRAWN}
    first = asked(decode, COMPLETIONS, {**body, "kv_transfer_params": FIRST})
    assert asked(decode, COMPLETIONS, {**body, "kv_transfer_params": {}})[0] == first[0]
    assert decode.post(COMPLETIONS, {**body, "kv_transfer_params": {"remote_port": "x"}}).status_code == 400


def test_a_prefill_server_that_is_killed_costs_computing_alone(servers: tuple[Server, ...], folder: Path) -> None:
    _, decode, _ = servers
    doomed = Server(
        "--role",
        "prefill",
        "--threads",
        "1",
        "--isolate-tenants",
        *secret_file(folder, "ours", "a secret of many bytes"),
    )
    doomed.ready()
    body = {"prompt": prompt(6), **DRAWN}
    taken = prefilled(doomed, COMPLETIONS, body)
    expected = asked(doomed, COMPLETIONS, body)[0]
    doomed.stop(signal.SIGKILL)
    tokens, cached = asked(decode, COMPLETIONS, {**body, "kv_transfer_params": taken})
    assert cached == 0 and tokens == expected


def test_roles_say_what_they_need(folder: Path) -> None:
    for arguments, says in (
        (("--role", "prefill"), "--kv-peer-secret-file"),
        (("--role", "decode", "--kv-transfer-port", "1"), "no effect with --role decode"),
        (("--role", "prefill", "--kv-transfer-host", "0.0.0.0"), "which is no address of one machine"),
        (
            ("--role", "both", "--no-prefix-caching", *secret_file(folder, "ours", "a secret of many bytes")),
            "prefix cache",
        ),
    ):
        server = Server(*arguments, env={"INFLIGHT_KV_PEER_SECRET": ""} if "--kv-peer" in says else None)
        assert server.process.wait(60) != 0
        assert server.settled(lambda server=server, says=says: says in "".join(server.log)), "".join(server.log)  # type: ignore[misc]
