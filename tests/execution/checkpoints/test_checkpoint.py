"""Checkpoints: layouts that load to the same bits, folders and ids that do not, each with its sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_hub import fake_hub

from inflight.execution.checkpoints.checkpoint import Checkpoint
from inflight.execution.checkpoints.hub import resolve_model
from inflight.models.errors import ModelError

from ..conftest import OracleOf

TABLE = "model.embed_tokens.weight"


@pytest.fixture
def sharded(oracle_of: OracleOf, tmp_path: Path) -> Path:
    oracle_of("llama2").model.save_pretrained(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    return tmp_path


def test_shards_hold_what_one_file_holds(oracle_of: OracleOf, sharded: Path) -> None:
    oracle = oracle_of("llama2")
    one, many = Checkpoint(oracle.folder), Checkpoint(sharded)
    for name, parameter in oracle.model.named_parameters():
        expected = parameter.detach().numpy()
        assert np.array_equal(one.tensor(name, expected.shape), expected)
        assert np.array_equal(many.tensor(name, expected.shape), expected)
        many.release(name)
    assert TABLE in many and "model.nothing" not in many


def test_a_missing_tensor_is_named(oracle_of: OracleOf) -> None:
    with pytest.raises(ModelError, match=r"lacks tensor 'model\.layers.9.mlp.up_proj.weight'"):
        Checkpoint(oracle_of("llama2").folder).tensor("model.layers.9.mlp.up_proj.weight", (96, 64))


def test_a_wrong_shape_names_both(oracle_of: OracleOf) -> None:
    with pytest.raises(ModelError, match=rf"'{TABLE}' .* has shape \[320, 64\], but config.json asks for \[320, 65\]"):
        Checkpoint(oracle_of("llama2").folder).tensor(TABLE, (320, 65))


def test_a_missing_shard_is_named(sharded: Path) -> None:
    victim = sorted(sharded.glob("*.safetensors"))[1]
    victim.unlink()
    with pytest.raises(ModelError, match=f"lacks 1 of its . weight files: {victim.name}"):
        Checkpoint(sharded)


def test_a_truncated_shard_is_named(sharded: Path) -> None:
    victim = sorted(sharded.glob("*.safetensors"))[-1]
    victim.write_bytes(victim.read_bytes()[:-10])
    with pytest.raises(ModelError, match=f"{victim.name} is truncated"):
        Checkpoint(sharded)


@pytest.mark.parametrize(
    ("index", "sentence"),
    [
        ({}, "has no weight_map"),
        ({"weight_map": {"a": 1}}, "has no weight_map"),
        ({"weight_map": {"a": "../secret.safetensors"}}, "which is not a file of this folder"),
        ({"weight_map": {"a": "model.safetensors"}}, "places tensor 'a' in model.safetensors, which lacks it"),
    ],
)
def test_an_index_that_lies(oracle_of: OracleOf, tmp_path: Path, index: Any, sentence: str) -> None:
    (tmp_path / "model.safetensors").symlink_to(oracle_of("llama2").folder / "model.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=sentence):
        Checkpoint(tmp_path)


def test_folders_without_weights(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no weights: expected is model\.safetensors"):
        Checkpoint(tmp_path)
    (tmp_path / "model.gguf").touch()
    with pytest.raises(ModelError, match=r"has no weights \(it holds model.gguf\)"):
        Checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ModelError, match=r"only as pytorch_model.bin, a pickle.*safe_serialization=True"):
        Checkpoint(tmp_path)
    with pytest.raises(ModelError, match="is no folder"):
        Checkpoint(tmp_path / "absent")


# -- hub ids ----------------------------------------------------------------------------------------------------------
def test_a_folder_is_itself(tmp_path: Path) -> None:
    assert resolve_model(str(tmp_path)) == tmp_path
    with pytest.raises(ModelError, match="revision 'v2' has no meaning"):
        resolve_model(str(tmp_path), "v2")
    file = tmp_path / "config.json"
    file.touch()
    with pytest.raises(ModelError, match="is a file, not a model folder"):
        resolve_model(str(file))


@pytest.mark.parametrize("name", ["/nowhere/model", "./model", "../model", "~/no-such-model", "a/b/c", "model/", ""])
def test_a_path_that_does_not_exist_never_reaches_the_hub(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: pytest.fail("asked the hub"))
    if name:
        with pytest.raises(ModelError, match="does not exist"):
            resolve_model(name)


def test_a_hub_id_is_fetched_without_pickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = {"config.json", "model-00001-of-00002.safetensors", "tokenizer.model", "chat_template.jinja"}
    left = {"pytorch_model.bin", "original/params.json", "consolidated.safetensors", "model.gguf", "tokenizer.bin"}
    with fake_hub() as hub:
        hub.use(monkeypatch, tmp_path)
        hub.repositories["Owner/model-1.5B"] = {name: name.encode() for name in taken | left}
        folder = resolve_model("Owner/model-1.5B", "main")
        assert {one.name for one in folder.iterdir()} == taken
        hub.repositories["o/e"] = {"config.json": b"", "modules.json": b"[]", "1_Pooling/config.json": b"{}"}
        folder = resolve_model("hf.co/o/e")
        assert (folder / "1_Pooling" / "config.json").read_text() == "{}"


def test_each_refusal_of_the_hub_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import errors as hub

    def refusing(fault: Exception) -> None:
        def download(*_: Any, **__: Any) -> str:
            raise fault

        monkeypatch.setattr("huggingface_hub.HfApi.model_info", download)

    def made(kind: type[Exception]) -> Exception:
        return kind.__new__(kind)  # the hub's errors want HTTP responses, which do not matter here

    cases = [
        (made(hub.RepositoryNotFoundError), "there is no such public model"),
        (made(hub.GatedRepoError), "its owner asks for consent"),
        (made(hub.RevisionNotFoundError), "no revision 'v9'"),
        (
            hub.OfflineModeIsEnabled("offline"),
            "the hub cannot be reached; .* or smollm2, a small model that comes from",
        ),
        (hub.HFValidationError("bad name"), "it cannot be a hub id"),
        (ConnectionError("no route\nto host"), r"could not deliver it \(ConnectionError: no route\); .* or smollm2,"),
    ]
    for fault, sentence in cases:
        refusing(fault)
        with pytest.raises(ModelError, match=f"'owner/model' is no local folder, .*{sentence}"):
            resolve_model("owner/model", "v9")
