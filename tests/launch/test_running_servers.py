"""Files of running servers: written at the start and when ready, gone at the end, not believed of another process."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from inflight.execution.checkpoints.local_models import LocalModel
from inflight.launch.running_servers import Registration, process_memory, running_servers, servers_folder, servers_of


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_a_server_is_there_from_loading_to_its_end(tmp_path: Path) -> None:
    with Registration([None, str(tmp_path), "owner/name:Q4_K_M"], is_pool=True) as registration:
        assert running_servers() == []
        registration.write("http://0.0.0.0:8000", is_ready=False)
        assert [one.is_ready for one in running_servers()] == [False]
        registration.write("http://0.0.0.0:8000")
        (one,) = running_servers()
        assert one.is_ready
        assert (one.pid, one.url, one.is_pool) == (os.getpid(), "http://127.0.0.1:8000", True)
        assert one.models == (str(tmp_path), "owner/name:Q4_K_M")
        assert servers_folder().stat().st_mode & 0o777 == 0o700
        assert next(servers_folder().iterdir()).stat().st_mode & 0o777 == 0o600
    assert running_servers() == [] and not list(servers_folder().iterdir())


def test_files_of_servers_that_were_killed_are_deleted_by_the_next() -> None:
    with Registration([], is_pool=False) as registration:
        registration.write("http://127.0.0.1:8000")
        (file,) = servers_folder().iterdir()
        file.write_text(json.dumps(json.loads(file.read_text()) | {"began": 1}))
        (servers_folder() / "x.json").write_text("{")
        assert running_servers() == []
    with Registration([], is_pool=False) as registration:
        registration.write("http://127.0.0.1:8001")
        assert [one.url for one in running_servers()] == ["http://127.0.0.1:8001"]
        assert {one.name for one in servers_folder().iterdir()} == {file.name, "x.json"}


def test_servers_of_other_machines_that_share_the_home_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with Registration([], is_pool=False) as theirs, monkeypatch.context() as there:
        there.setattr("platform.node", lambda: "other")
        theirs.write("http://127.0.0.1:8000")
        (file,) = servers_folder().iterdir()
        file.write_text(json.dumps(json.loads(file.read_text()) | {"began": 1}))  # as this machine sees it
        there.undo()
        with Registration([], is_pool=False) as ours:
            ours.write("http://127.0.0.1:8001")
            assert [one.url for one in running_servers()] == ["http://127.0.0.1:8001"] and file.exists()
        there.setattr("platform.node", lambda: "other")


def test_models_that_come_into_memory_are_in_use_until_they_leave(tmp_path: Path) -> None:
    model = LocalModel("owner/name:Q4_0", tmp_path, (tmp_path,), 1, 0.0, "", "hub")
    with Registration([], is_pool=True) as registration:
        registration.add(model.name)
        registration.write("http://127.0.0.1:8000")
        assert [one.url for one in servers_of(model)] == ["http://127.0.0.1:8000"]
        registration.discard(model.name)
        assert servers_of(model) == []
        registration.add(model.name)
        assert servers_of(model) and servers_of(model)[0].since == running_servers()[0].since


def test_a_folder_that_others_may_write_to_is_not_believed() -> None:
    with Registration([], is_pool=False) as registration:
        registration.write("http://127.0.0.1:8000")
        servers_folder().chmod(0o777)
        assert running_servers() == []


@pytest.mark.parametrize(
    ("given", "is_used"),
    [
        ("owner/name", True),
        ("hf.co/owner/name:q4_k_m", True),
        ("owner/name:Tiny-Q4_K_M.gguf", True),
        ("owner/name:Q8_0", False),
        ("owner/other", False),
        ("smollm2", False),
    ],
)
def test_a_model_is_in_use_by_any_of_its_names(given: str, is_used: bool, tmp_path: Path) -> None:
    file = tmp_path / "Tiny-Q4_K_M.gguf"
    model = LocalModel("owner/name:Q4_K_M", file, (file,), 1, 0.0, "", "hub")
    for name, expected in ((given, is_used), (str(file), True)):
        with Registration([name], is_pool=False) as registration:
            registration.write("http://127.0.0.1:8000")
            assert [one.url for one in servers_of(model)] == ["http://127.0.0.1:8000"] * expected


def test_memory_is_that_of_a_process_with_its_children() -> None:
    assert process_memory(os.getpid()) > 1 << 20
    assert process_memory(2**22 + 1) == 0
