"""SIGHUP: keys are read again, and nothing that runs is touched."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
import pytest

from inflight.server.call_counts import SPARE_TENANTS, SharedCallCounts, shared_memory
from inflight.server.reloading import reload_keys
from inflight.server.settings import ServerSettings
from inflight.server.tenants import KeysError, Tenants, load_tenants

from .conftest import Server

ENDLESS = {"prompt": "Once", "max_tokens": 900, "ignore_eos": True, "stream": True}
NEW = '[acme]\nkey = "sk-next"\n[newcomer]\nkey = "sk-new"\n'


@pytest.mark.parametrize("options", [(), ("--api-processes", "2")], ids=["one process", "two processes"])
def test_keys_change_and_streams_go_on(start: Callable[..., Server], keys_file: Path, options: Sequence[str]) -> None:
    server = start("--api-keys-file", str(keys_file), *options)

    def status(key: str) -> int:
        return server.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code

    def hang_up(said: str) -> None:
        server.process.send_signal(signal.SIGHUP)
        assert server.settled(lambda: said in "".join(server.log)), server.log

    asked = {"json": ENDLESS, "headers": {"Authorization": "Bearer sk-acme"}, "timeout": 60}
    with httpx.stream("POST", server.url + "/v1/completions", **asked) as response:
        lines = response.iter_lines()
        next(lines)
        keys_file.write_text(NEW, encoding="utf-8")
        hang_up("is reloaded; new: newcomer; gone: umbrella.")
        assert server.settled(lambda: [status(one) for one in ("sk-next", "sk-new", "sk-acme")] == [200, 200, 401])
        keys_file.write_text("[acme\n", encoding="utf-8")
        hang_up("The previous keys stay in force.")
        assert [line for line in lines if line][-1] == "data: [DONE]"
    answer = server.post("/v1/completions", {"prompt": "x"}, headers={"Authorization": "Bearer sk-new"})
    assert answer.status_code == 200, "calls of a tenant that is new are counted"
    assert server.stop() == 0 and "Traceback" not in "".join(server.log)


def test_a_reload_while_the_server_drains_ends_no_call(start: Callable[..., Server], keys_file: Path) -> None:
    server = start("--api-keys-file", str(keys_file), "--drain-timeout", "600")
    asked = {"json": ENDLESS, "headers": {"Authorization": "Bearer sk-acme"}, "timeout": 60}
    with httpx.stream("POST", server.url + "/v1/completions", **asked) as response:
        lines = response.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        assert server.settled(lambda: "taking no new work" in "".join(server.log)), server.log
        server.process.send_signal(signal.SIGHUP)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]" and "error" not in rest[-2]
    assert server.process.wait(30) == 0, server.log


def test_without_files_to_read_the_server_drains(start: Callable[..., Server]) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # where these tests run under nohup, too
    try:
        server = start()
    finally:
        signal.signal(signal.SIGHUP, before)
    with httpx.stream("POST", server.url + "/v1/completions", json=ENDLESS, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGHUP)
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert server.process.wait(30) == 0 and any("SIGHUP: taking no new work" in line for line in server.log)


def test_what_cannot_be_in_force_yet_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys.toml"
    file.write_text('[acme]\nkey = "a"\n', encoding="utf-8")
    tenants = load_tenants(keys_file=file)
    file.write_text('[acme]\nkey = "b"\nweight = 2\n[other]\nkey = "c"\n', encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert asyncio.run(reload_keys(tenants, ServerSettings(isolate_tenants=False)))
    assert tenants.of("Bearer b").name == "acme" and tenants.of("Bearer c").name == "other"
    assert ["Weights" in caplog.messages[0], "share cached prefixes" in caplog.messages[1]] == [True, True]


def test_the_file_is_read_once_at_a_time(keys_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what an earlier signal has read could replace what a later one has."""
    tenants, inside, seen = load_tenants(keys_file=keys_file), 0, []
    reread = tenants.reread

    def slow() -> Tenants:
        nonlocal inside
        inside += 1
        seen.append(inside)
        time.sleep(0.01)
        inside -= 1
        return reread()

    async def twice() -> None:
        await asyncio.gather(*(reload_keys(tenants, ServerSettings()) for _ in range(2)))

    monkeypatch.setattr(tenants, "reread", slow)
    asyncio.run(twice())
    assert seen == [1, 1]


def test_new_tenants_have_cells_of_their_own() -> None:
    table = shared_memory()
    watcher = SharedCallCounts(table, ["a", "b"], 2)
    first = SharedCallCounts(table, ["a", "b"], 2, 0)
    first.enter("b")
    watcher.add(["c"])
    successor = SharedCallCounts(table, watcher.names, 2, 1)
    successor.enter("c")
    assert (watcher.everywhere, watcher.of("b"), watcher.of("c"), watcher.names) == (2, 1, 1, ("a", "b", "c"))
    assert watcher.clear(1) == 1 and watcher.everywhere == 1
    with pytest.raises(KeysError, match=f"{SPARE_TENANTS} new tenants, .* {SPARE_TENANTS - 1} more can be added"):
        watcher.add([f"tenant {number}" for number in range(SPARE_TENANTS)])
