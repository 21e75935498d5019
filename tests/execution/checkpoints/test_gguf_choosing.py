"""Which GGUF file is meant: by a path, by a folder, by the name of a quantization in a hub repository."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import FakeHub, fake_hub

from inflight.execution.checkpoints.hub import resolve_model
from inflight.models.errors import ModelError
from inflight.models.gguf.choosing import models_among, quantization_of

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
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with FILES."""
    with fake_hub() as hub:
        hub.use(monkeypatch, tmp_path / "hub")
        hub.repositories["owner/name"] = {name: name.encode() for name in FILES}
        yield hub


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
def test_a_quantization_picks_a_file(tag: str, files: list[str], hub: FakeHub) -> None:
    path = resolve_model(f"owner/name:{tag}", "main")
    assert path.read_text() == files[0]
    assert {one.name for one in path.parent.iterdir()} == {Path(one).name for one in files}


@pytest.mark.parametrize(
    ("tag", "sentence"),
    [
        ("Q5_K_M", r"none can be meant by 'Q5_K_M'; there are BF16/Model-1B-BF16-00001-of-00002.gguf, Model-1B-Q4_K_M"),
        ("1B", r"5 \(.*\) can be meant by '1B'"),
        ("Q4_K", r"none can be meant by 'Q4_K'"),
        ("mmproj-F16.gguf", "none can be meant"),
    ],
)
def test_none_or_several_are_listed(tag: str, sentence: str, hub: FakeHub) -> None:
    with pytest.raises(ModelError, match=sentence):
        resolve_model(f"owner/name:{tag}")


def test_a_repository_without_gguf_files(hub: FakeHub) -> None:
    hub.repositories["owner/name"] = {"config.json": b"{}", "model.safetensors": b""}
    with pytest.raises(ModelError, match="the hub repository owner/name holds no GGUF files; leave :Q4_0 out"):
        resolve_model("owner/name:Q4_0")
    hub.repositories["owner/name"] = {"README.md": b""}
    with pytest.raises(ModelError, match="owner/name holds no model: neither safetensors nor GGUF files"):
        resolve_model("owner/name")


def test_without_a_network_the_cache_is_used(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    path = resolve_model("owner/name:Q4_K_M")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert resolve_model("owner/name:Q4_K_M") == resolve_model("owner/name") == path
    with pytest.raises(ModelError, match=r"none can be meant by 'Q8_0'; there are Model-1B-Q4_K_M\.gguf:"):
        resolve_model("owner/name:Q8_0")


@pytest.mark.parametrize("name", ["owner/name:", "owner/name:..", "owner:a:b", "/nowhere/model.gguf", "no-such.gguf"])
def test_names_that_are_none(name: str, hub: FakeHub) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        resolve_model(name)
    assert not hub.asked


def test_the_quantization_is_in_the_name_of_a_file() -> None:
    models = models_among([*FILES, "x.gguf", "gpt-mxfp4.gguf", "other-Q8_0.gguf"])
    assert [quantization_of(one[0], models) for one in models] == [
        "BF16",
        "Q4_K_M",
        "Q4_K_S",
        "UD-Q4_K_XL",
        "MXFP4",
        "model-1b.q8_0",
        "other-Q8_0",
        "x",
    ]
