"""`inflight list`, `show`, `rm`, `ps` and `stop`: models in caches and folders, and the servers that use them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import FakeHub, fake_hub
from gguf_files import convert
from models import write_model

from inflight.cli import call
from inflight.cli.options import complete_local_model
from inflight.execution import memory
from inflight.execution.memory import MachineMemory
from inflight.launch import running_servers
from inflight.launch.running_servers import Registration, RunningServer

from .terminal import Caller, finished, spawn


@pytest.fixture
def hub(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with a GGUF model and a folder; caches that are empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "made").mkdir()
    file = convert(tiny, tmp_path / "made" / "Tiny-F32.gguf", "llama")
    folder = write_model(tmp_path / "folder", "qwen2")
    with fake_hub() as hub:
        hub.use(monkeypatch, tmp_path / "hub")
        for name, value in hub.environment(tmp_path / "hub").items():
            monkeypatch.setenv(name, value)
        hub.repositories["owner/tiny-GGUF"] = {"Tiny-F32.gguf": file.read_bytes()}
        hub.repositories["owner/tiny"] = {one.name: one.read_bytes() for one in folder.iterdir()}
        yield hub


def test_what_is_pulled_is_listed_shown_and_deleted(
    hub: FakeHub, inflight: Caller, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(["list"]) == 0
    assert "`inflight pull NAME` fetches others: smollm2 (93 MB)" in capfd.readouterr().out
    assert call(["pull", "owner/tiny-GGUF", "owner/tiny"]) == 0
    file, folder = map(Path, capfd.readouterr().out.split())
    assert call(["list", str(tmp_path / "made")]) == 0
    rows = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert [row[0] for row in rows[:4]] == [
        "NAME",
        "owner/tiny",
        "owner/tiny-GGUF:F32",
        str(tmp_path / "made" / file.name),
    ]
    assert rows[2][3] == "F32" and rows[2][-1] == "–"
    assert call(["list", "--json"]) == 0
    listed = json.loads(capfd.readouterr().out)["models"]
    assert [Path(one["path"]) for one in listed] == [folder, file] and listed[1]["digest"] in str(file.resolve())

    shown = inflight("show", "owner/tiny-GGUF", "owner/tiny", model=False).out
    assert re.search(r"^model +owner/tiny-GGUF:F32\nfamily +llama\n", shown)
    for line in (
        "context +256 tokens",
        "template +chat",
        "memory .* fits \\(",
        "digest +sha256:[0-9a-f]{64}",
        "files .*Tiny",
    ):
        assert re.search(f"^{line}", shown, re.MULTILINE), line

    assert call(["rm", "owner/tiny-GGUF", "owner/tiny"]) == 0
    assert re.findall(r"^(\S+): deleted, .* freed\.$", capfd.readouterr().err, re.MULTILINE) == [
        "owner/tiny-GGUF:F32",
        "owner/tiny",
    ]
    assert not file.exists() and not folder.exists()
    gone = call(["rm", "owner/tiny"])
    assert gone == 1 and "owner/tiny is not on this machine" in capfd.readouterr().err


def test_another_folder_may_be_the_hubs_cache(
    hub: FakeHub, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(["pull", "owner/tiny", "--download-dir", str(tmp_path / "other")]) == 0
    assert Path(capfd.readouterr().out.strip()).is_relative_to(tmp_path / "other")
    assert call(["list"]) == 0 and "owner/tiny" not in capfd.readouterr().out
    monkeypatch.setenv("INFLIGHT_DOWNLOAD_DIR", str(tmp_path / "other"))
    assert call(["list"]) == 0 and "owner/tiny" in capfd.readouterr().out
    assert call(["rm", "owner/tiny"]) == 0


def test_what_does_not_fit_or_has_no_weights_is_said(
    hub: FakeHub, inflight: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "machine_memory", lambda: MachineMemory(2**10, 2**10, "a test"))
    assert "does not fit (1.0 KiB of a test)" in inflight("show", str(tmp_path / "folder"), model=False).out
    (tmp_path / "folder" / "model.safetensors").unlink()
    assert "no weights here; they would take" in inflight("show", str(tmp_path / "folder"), model=False).out


def test_files_of_the_user_are_never_deleted(hub: FakeHub, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path / "folder", tmp_path / "made" / "Tiny-F32.gguf"):
        assert call(["rm", "--yes", str(path)]) == 1
        assert "of your own, which rm leaves alone" in capfd.readouterr().err and path.exists()


def test_half_a_pull_is_listed_and_deleted(hub: FakeHub, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    partial = tmp_path / "hub" / "models--owner--big" / "blobs" / "abc.partial"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(bytes(2_000_000))
    assert call(["list"]) == 0
    assert "owner/big: half pulled, 2 MB so far; `inflight pull owner/big` goes on." in capfd.readouterr().out
    assert call(["rm", "owner/big"]) == 0 and not partial.exists()


def test_a_terminal_is_asked_before_a_model_is_deleted(hub: FakeHub, tmp_path: Path) -> None:
    assert call(["pull", "owner/tiny-GGUF"]) == 0
    for answer, code in ((b"n\n", 1), (b"y\n", 0)):
        controller, terminal = os.openpty()
        process = spawn("rm", "owner/tiny-GGUF", stdin=terminal)
        os.close(terminal)
        os.write(controller, answer)
        result = finished(process)
        os.close(controller)
        assert (result.code, "Delete owner/tiny-GGUF:F32 (" in result.err) == (code, True), result.err
    assert "deleted" in result.err


def test_what_a_pull_left_of_another_revision_is_deleted(hub: FakeHub, tmp_path: Path) -> None:
    left, of_this = (tmp_path / "hub" / "models--owner--tiny-GGUF" / "blobs" / f"{64 * one}.partial" for one in "ab")
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    assert call(["pull", "owner/tiny-GGUF"]) == 0
    assert not left.exists() and call(["rm", "--yes", "owner/tiny-GGUF"]) == 0
    assert not of_this.exists()


def test_of_several_servers_of_all_models_the_one_that_has_it_in_memory_unloads_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    urls = ("http://127.0.0.1:1", "http://127.0.0.1:2")
    states, unloaded = dict.fromkeys(urls, "unloaded"), []

    def ask(url: str, path: str, key: str | None, body: dict[str, str] | None = None) -> object:
        if body is not None:
            unloaded.append((url, path, body))
        return {"data": [{"id": "owner/tiny", "state": states[url]}]}

    servers = [RunningServer(1, 1, url, 0.0, (), is_pool=True) for url in urls]
    monkeypatch.setattr(running_servers, "running_servers", lambda: servers)
    monkeypatch.setattr(running_servers, "ask", ask)
    assert call(["stop", "owner/tiny"]) == 0 and not unloaded
    assert f"owner/tiny is in no server's memory; {urls[0]}, {urls[1]} would load it" in capfd.readouterr().err
    states[urls[1]] = "loaded"
    assert call(["stop", "owner/tiny"]) == 0
    assert unloaded == [(urls[1], "/v1/models/unload", {"model": "owner/tiny"})]
    states[urls[0]] = "draining"
    assert call(["stop", "owner/tiny"]) == 1
    assert "`inflight stop owner/tiny --url ADDRESS` unloads it at one: " in capfd.readouterr().err


def test_a_shell_completes_models_that_are_here(hub: FakeHub) -> None:
    assert call(["pull", "owner/tiny"]) == 0
    import click

    context, option = click.Context(click.Command("any")), click.Option(["--model"])
    assert [one.value for one in complete_local_model(context, option, "ow")] == ["owner/tiny"]
    assert [one.type for one in complete_local_model(context, option, "./x")] == ["file"]


def test_a_running_server_is_seen_and_stopped(hub: FakeHub, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert call(["ps"]) == 0 and "No server of this user runs" in capfd.readouterr().out
    assert call(["pull", "owner/tiny-GGUF"]) == 0
    server = spawn("serve", "owner/tiny-GGUF", "--port", 0, "--threads", 1, stdout=subprocess.DEVNULL)
    assert server.stderr is not None
    try:
        address = next(
            found[1] for line in server.stderr if (found := re.search(rb"Ready at (http\S+)", line))
        ).decode()
        capfd.readouterr()
        assert call(["ps", "--json"]) == 0
        (one,) = json.loads(capfd.readouterr().out)["models"]
        assert (one["state"], one["url"], one["pid"]) == ("loaded", address, server.pid)
        assert one["memory_bytes"] > 0 and one["since"] > 0
        assert call(["ps", "--url", address]) == 0 and address in capfd.readouterr().out
        assert call(["rm", "--yes", "owner/tiny-GGUF:F32"]) == 1
        assert f"is in use by the server at {address} (process {server.pid})" in capfd.readouterr().err
        assert call(["list"]) == 0 and address in capfd.readouterr().out
        assert call(["stop", "other"]) == 1
        assert f"No server of this user has other. Running: {address} with owner/tiny-GGUF." in capfd.readouterr().err
        with Registration(["owner/tiny-GGUF"], is_pool=False) as other:
            other.write("http://127.0.0.1:1")
            assert call(["stop", "owner/tiny-GGUF"]) == 1
            err = capfd.readouterr().err
            assert "2 servers of this user have owner/tiny-GGUF; stop one by its address: " in err and address in err
        assert call(["stop", "owner/tiny-GGUF"]) == 0
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.communicate()
    assert call(["ps"]) == 0 and "No server of this user runs" in capfd.readouterr().out


def test_a_server_that_loads_is_seen_and_keeps_its_model(hub: FakeHub, capfd: pytest.CaptureFixture[str]) -> None:
    assert call(["pull", "owner/tiny-GGUF"]) == 0
    with Registration(["owner/tiny-GGUF"], is_pool=False) as loading:
        loading.write("http://127.0.0.1:1", is_ready=False)
        capfd.readouterr()
        assert call(["ps", "--json"]) == 0
        (one,) = json.loads(capfd.readouterr().out)["models"]
        assert (one["model"], one["state"], one["url"]) == ("owner/tiny-GGUF", "loading", "http://127.0.0.1:1")
        assert call(["rm", "--yes", "owner/tiny-GGUF:F32"]) == 1
        assert "is in use by the server at http://127.0.0.1:1" in capfd.readouterr().err


def test_a_server_that_listens_no_more_is_ending(hub: FakeHub, capfd: pytest.CaptureFixture[str]) -> None:
    with Registration(["owner/tiny-GGUF"], is_pool=False) as ending:
        ending.write("http://127.0.0.1:1")
        assert call(["ps", "--json"]) == 0
        printed = capfd.readouterr()
        (one,) = json.loads(printed.out)["models"]
        assert (one["model"], one["state"], printed.err) == ("owner/tiny-GGUF", "ending", "")


def test_a_server_with_keys_says_that_it_wants_one(hub: FakeHub, capfd: pytest.CaptureFixture[str]) -> None:
    assert call(["pull", "owner/tiny"]) == 0
    server = spawn("serve", "--models", "local", "--port", 0, "--api-key", "key", stdout=subprocess.DEVNULL)
    assert server.stderr is not None
    try:
        address = next(
            found[1] for line in server.stderr if (found := re.search(rb"Ready at (http\S+)", line))
        ).decode()
        capfd.readouterr()
        assert call(["ps"]) == 0
        asked = capfd.readouterr()
        assert address in asked.out and "It wants a key; give --api-key." in asked.err
        assert call(["stop", "other"]) == 1
        asked = capfd.readouterr()
        assert f"{address} with no model in memory." in asked.err and "give --api-key" in asked.err
        assert call(["stop", address.replace("127.0.0.1", "localhost")]) == 0
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.communicate()


def test_a_server_that_does_not_answer_is_one_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    assert call(["ps", "--url", "http://127.0.0.1:1"]) == 1
    assert "No server answers at http://127.0.0.1:1: Connection refused." in capfd.readouterr().err
    assert call(["stop", "any", "--url", "no address"]) == 1
    assert "(an address is such as http://127.0.0.1:8000)" in capfd.readouterr().err


def test_a_pull_that_is_stopped_says_how_it_goes_on(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("huggingface_hub.file_download.http_get", stop)
    assert call(["pull", "owner/tiny-GGUF"]) == 128 + signal.SIGINT
    assert "Stopped; `inflight pull owner/tiny-GGUF` goes on where it ended." in capfd.readouterr().err
