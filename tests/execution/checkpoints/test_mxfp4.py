"""MXFP4 experts: one at a time against the format's definition, all of them against `transformers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inflight.execution.backends.matrices import Int4Matrix
from inflight.execution.checkpoints.checkpoint import Checkpoint
from inflight.models.errors import ModelError

from .formats import Tensors, write_folder

NAME = "model.layers.3.mlp.experts.gate_up_proj"
SHAPE = (3, 20, 64)  # experts, outputs, inputs
PLAIN = (3, 64, 20)  # as they lie unquantized
CONFIG = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
VALUES = (0, 0.5, 1, 1.5, 2, 3, 4, 6)


def drawn(exponents: tuple[int, int] = (110, 132)) -> Tensors:
    random = np.random.default_rng(5)
    blocks = random.integers(0, 256, (3, 20, 2, 16)).astype(np.uint8)
    return {
        f"{NAME}_blocks": ("U8", blocks),
        f"{NAME}_scales": ("U8", random.integers(*exponents, (3, 20, 2)).astype(np.uint8)),
        f"{NAME}_bias": ("BF16", np.zeros((3, 20))),
    }


def slow(tensors: Tensors, expert: int) -> np.ndarray:
    blocks, exponents = tensors[f"{NAME}_blocks"][1], tensors[f"{NAME}_scales"][1]
    found = np.empty(SHAPE[1:], np.float32)
    for n in range(SHAPE[1]):
        for k in range(SHAPE[2]):
            octet = int(blocks[expert, n, k // 32, k % 32 // 2])
            code = octet % 16 if k % 2 == 0 else octet // 16
            value = VALUES[code % 8] * (-1 if code >= 8 else 1)
            found[n, k] = value * 2.0 ** (int(exponents[expert, n, k // 32]) - 127)
    return found


EXPERTS = "model.layers.3.mlp.experts"
GATE, UP = slice(0, None, 2), slice(1, None, 2)  # of the outputs of the stack


def test_an_expert_is_what_the_layout_says(tmp_path: Path) -> None:
    tensors = drawn()
    checkpoint = Checkpoint(write_folder(tmp_path, CONFIG, tensors))
    assert NAME in checkpoint and f"{NAME}_bias" in checkpoint
    for index in range(SHAPE[0]):
        for part, outputs in (("gate", GATE), ("up", UP)):
            name = f"{EXPERTS}.{index}.{part}_proj.weight"
            assert name in checkpoint
            matrix, expected = checkpoint.matrix(name, (10, 64)), slow(tensors, index)[outputs]
            assert isinstance(matrix, Int4Matrix) and matrix.group == 32 and matrix.offsets is None
            assert np.array_equal(matrix.dequantized(), expected)
            assert np.array_equal(checkpoint.tensor(name, (10, 64)), expected)
            checkpoint.release(name)
    assert np.array_equal(checkpoint.tensor(NAME, PLAIN), np.stack([slow(tensors, one).T for one in range(SHAPE[0])]))
    checkpoint.release(NAME)


def test_the_projection_back_has_its_outputs_in_a_row(tmp_path: Path) -> None:
    tensors = drawn()
    down = {name.replace("gate_up", "down"): value for name, value in tensors.items()}
    checkpoint = Checkpoint(write_folder(tmp_path, CONFIG, down))
    matrix = checkpoint.matrix(f"{EXPERTS}.2.down_proj.weight", SHAPE[1:])
    assert isinstance(matrix, Int4Matrix) and np.array_equal(matrix.dequantized(), slow(tensors, 2))
    assert f"{EXPERTS}.2.gate_proj.weight" not in checkpoint and f"{EXPERTS}.2.down_proj.bias" not in checkpoint


def test_the_smallest_exponents_are_exact_too(tmp_path: Path) -> None:
    tensors = drawn((0, 3))
    found = Checkpoint(write_folder(tmp_path, CONFIG, tensors)).matrix(f"{EXPERTS}.1.up_proj.weight", (10, 64))
    assert isinstance(found, Int4Matrix) and np.array_equal(found.dequantized(), slow(tensors, 1)[UP])


def test_all_experts_are_those_of_transformers(tmp_path: Path) -> None:
    import torch
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    tensors = drawn()
    blocks, exponents = (torch.from_numpy(tensors[f"{NAME}_{part}"][1]) for part in ("blocks", "scales"))
    expected: Any = convert_moe_packed_tensors(blocks, exponents, dtype=torch.float32)
    found = Checkpoint(write_folder(tmp_path, CONFIG, tensors)).tensor(NAME, PLAIN)
    assert np.array_equal(found, expected.detach().numpy())


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ({f"{NAME}_scales": ("U8", np.zeros((3, 20, 3)))}, r"_scales' .* \[3, 20, 3\], but .* asks for \[3, 20, 2\]"),
        ({f"{NAME}_blocks": ("U8", np.zeros((3, 20, 2, 8)))}, r"_blocks' .* \[3, 20, 2, 8\], but .* asks for"),
        ({f"{NAME}_scales": ("F16", np.zeros((3, 20, 2)))}, "stored as F16, but the .* means U8 or F8_E8M0"),
        ({f"{NAME}_scales": ("U8", np.full((3, 20, 2), 255))}, "holds the exponent 255 for expert 0, at most 252 make"),
    ],
)
def test_what_does_not_fit_is_named(tensors: Tensors, sentence: str, tmp_path: Path) -> None:
    checkpoint = Checkpoint(write_folder(tmp_path, CONFIG, drawn() | tensors))
    for name, shape in ((f"{EXPERTS}.0.gate_proj.weight", (10, 64)), (NAME, PLAIN)):
        with pytest.raises(ModelError, match=sentence):
            checkpoint.tensor(name, shape)


def test_an_expert_that_is_not_there(tmp_path: Path) -> None:
    checkpoint = Checkpoint(write_folder(tmp_path, CONFIG, drawn()))
    with pytest.raises(ModelError, match="has 3 experts, numbered from 0, and none with the number 3"):
        checkpoint.matrix(f"{EXPERTS}.3.gate_proj.weight", (10, 64))
    with pytest.raises(ModelError, match="has 50 inputs, but words of packed weights hold 32"):
        checkpoint.matrix(f"{EXPERTS}.0.gate_proj.weight", (10, 50))
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "fp8"}}))
    with pytest.raises(ModelError, match=r"lies packed as experts in MXFP4, but config\.json says fp8"):
        Checkpoint(tmp_path).tensor(NAME, PLAIN)
