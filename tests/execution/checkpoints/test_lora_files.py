"""An adapter's files: what is read of them, and what is wrong with those that are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from adapters import save

from inflight.execution.checkpoints.lora_files import LoraFiles, ModuleShape
from inflight.models.errors import ModelError

Q = "base_model.model.model.layers.0.self_attn.q_proj"


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def test_matrices_by_module_with_their_factor(tmp_path: Path) -> None:
    down, up = numbers(4, 12), numbers(20, 4)
    tensors = {f"{Q}.lora_A.weight": down, f"{Q}.lora_B.weight": up.astype(np.float16)}
    files = LoraFiles(save(tmp_path, tensors, {"lora_alpha": 2}))
    assert files.modules == {"model.layers.0.self_attn.q_proj": ModuleShape(20, 12, 4)}
    assert (files.rank, files.elements) == (4, 4 * 32)
    np.testing.assert_array_equal(files.down("model.layers.0.self_attn.q_proj"), down)
    half = up.astype(np.float16).astype(np.float32) / 2
    np.testing.assert_array_equal(files.up("model.layers.0.self_attn.q_proj"), half)


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ({}, "holds 0 tensors"),
        ({f"{Q}.lora_A.weight": numbers(4, 12)}, "lacks lora_B"),
        ({f"{Q}.lora_B.weight": numbers(4, 12)}, "lacks lora_A"),
        ({f"{Q}.lora_A.weight": numbers(4, 12), f"{Q}.lora_B.weight": numbers(20, 3)}, "do not make a product"),
        ({f"{Q}.lora_A.weight": numbers(4), f"{Q}.lora_B.weight": numbers(20, 4)}, "do not make a product"),
        ({f"{Q}.lora_A.weight": numbers(257, 2), f"{Q}.lora_B.weight": numbers(2, 257)}, "rank 257, above 256"),
        ({"base_model.model.lm_head.weight": numbers(4, 12)}, "merge_and_unload"),
        ({"base_model.model.model.embed_tokens.lora_embedding_A": numbers(4, 12)}, "merge_and_unload"),
        ({f"{Q}.lora_magnitude_vector.weight": numbers(4)}, "merge_and_unload"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, tensors: dict[str, np.ndarray], sentence: str) -> None:
    with pytest.raises(ModelError) as refusal:
        LoraFiles(save(tmp_path, tensors, {}))
    assert sentence in str(refusal.value) and str(tmp_path) in str(refusal.value)


def test_a_pickle_is_refused(tmp_path: Path) -> None:
    save(tmp_path, {f"{Q}.lora_A.weight": numbers(4, 12)}, {})
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(ModelError, match="is a pickle"):
        LoraFiles(tmp_path)


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    tensors = {f"{Q}.lora_A.weight": numbers(4, 12), f"{Q}.lora_B.weight": numbers(20, 4)}
    path = save(tmp_path, tensors, {}) / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelError):
        LoraFiles(tmp_path)
