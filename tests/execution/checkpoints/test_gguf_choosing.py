"""Which GGUF file is meant: by a path, by a folder, by the name of a quantization in a hub repository."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inflight.execution.checkpoints.hub import resolve_model
from inflight.models.errors import ModelError

FILES = [
    ".gitattributes",
    "README.md",
    "mmproj-F16.gguf",
    "Model-1B-Q4_K_M.gguf",
    "Model-1B-Q4_K_S.gguf",
    "Model-1B-UD-Q4_K_XL.gguf",
    "model-1b.q8_0.gguf",
    "BF16/Model-1B-BF16-00001-of-00002.gguf",
    "BF16/Model-1B-BF16-00002-of-00002.gguf",
]


def test_a_path_and_a_folder_are_the_file(tmp_path: Path) -> None:
    file = tmp_path / "Model-Q4_0.gguf"
    file.touch()
    (tmp_path / "mmproj-model.gguf").touch()
    assert resolve_model(str(file)) == resolve_model(str(tmp_path)) == file
    (tmp_path / "config.json").touch()  # as repositories of GGUF files have it
    assert resolve_model(str(tmp_path)) == file
    (tmp_path / "model.safetensors").touch()
    assert resolve_model(str(tmp_path)) == tmp_path
    with pytest.raises(ModelError, match="revision 'v2' has no meaning"):
        resolve_model(str(file), "v2")


def test_a_split_model_is_one(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"Model-0000{number}-of-00002.gguf").touch()
    assert resolve_model(str(tmp_path)).name == "Model-00001-of-00002.gguf"
    (tmp_path / "Other.gguf").touch()
    with pytest.raises(
        ModelError, match=r"holds 2 GGUF models \(Model-00001-of-00002.gguf, Other.gguf\); name the file"
    ):
        resolve_model(str(tmp_path))


# -- the hub -----------------------------------------------------------------------------------------------------------
@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A repository of FILES; what was asked of it."""
    asked: dict[str, Any] = {"files": FILES}

    def download(name: str, **settings: Any) -> str:
        asked.update(settings, name=name)
        return str(tmp_path)

    def listed(name: str, revision: str | None = None) -> list[str]:
        if isinstance(asked["files"], Exception):
            raise asked["files"]
        return list(asked["files"])

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.setattr("huggingface_hub.list_repo_files", listed)
    return asked


@pytest.mark.parametrize(
    ("tag", "files"),
    [
        ("Q4_K_M", FILES[3:4]),
        ("q4_k_m", FILES[3:4]),
        ("UD-Q4_K_XL", FILES[5:6]),
        ("Q4_K_XL", FILES[5:6]),
        ("Q8_0", FILES[6:7]),
        ("bf16", FILES[7:9]),
        ("Model-1B-Q4_K_S.gguf", FILES[4:5]),
        ("Model-1B-Q4_K_S", FILES[4:5]),
    ],
)
def test_a_quantization_picks_a_file(tag: str, files: list[str], hub: dict[str, Any], tmp_path: Path) -> None:
    assert resolve_model(f"owner/name:{tag}", "main") == tmp_path / files[0]
    assert (hub["name"], hub["revision"], hub["allow_patterns"]) == ("owner/name", "main", files)


@pytest.mark.parametrize(
    ("tag", "sentence"),
    [
        ("Q5_K_M", r"none can be meant by 'Q5_K_M'; there are BF16/Model-1B-BF16-00001-of-00002.gguf, Model-1B-Q4_K_M"),
        ("1B", r"5 \(.*\) can be meant by '1B'"),
        ("Q4_K", r"none can be meant by 'Q4_K'"),
        ("mmproj-F16.gguf", "none can be meant"),
    ],
)
def test_none_or_several_are_listed(tag: str, sentence: str, hub: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=sentence):
        resolve_model(f"owner/name:{tag}")


def test_a_repository_without_gguf_files(hub: dict[str, Any]) -> None:
    hub["files"] = ["config.json", "model.safetensors"]
    with pytest.raises(ModelError, match="the hub repository owner/name holds no GGUF files; leave :Q4_0 out"):
        resolve_model("owner/name:Q4_0")


def test_a_repository_of_nothing_but_gguf_files(hub: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds 5 GGUF models \(BF16/Model.*\); name one .* owner/name:Q4_K_M"):
        resolve_model("owner/name")
    hub["files"] = FILES[:4]
    assert resolve_model("owner/name") == tmp_path / FILES[3]


def test_without_a_network_the_cache_is_looked_through(hub: dict[str, Any], tmp_path: Path) -> None:
    hub["files"] = ConnectionError("no route")
    (tmp_path / FILES[3]).touch()
    assert resolve_model("owner/name:Q4_K_M") == tmp_path / FILES[3]
    with pytest.raises(ModelError, match=r"none can be meant by 'Q8_0'; there are Model-1B-Q4_K_M\.gguf:"):
        resolve_model("owner/name:Q8_0")


@pytest.mark.parametrize("name", ["owner/name:", "owner/name:..", "owner:a:b", "/nowhere/model.gguf", "no-such.gguf"])
def test_names_that_are_none(name: str, hub: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        resolve_model(name)
    assert "name" not in hub
