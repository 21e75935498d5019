"""A checkpoint's own names and row orders, under those that layers ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from inflight.execution.backends.matrices import LINEAR_CODES, Int4Matrix, Int8Matrix, Matrix, by_output
from inflight.execution.checkpoints.family_names import FamilyTensors, rows_of
from inflight.models.registry import read_spec

CONFIG = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
AT = "model.layers.1."


class Held:
    """Tensors whose rows are their number."""

    def __init__(self, names: dict[str, tuple[int, ...]]) -> None:
        self.tensors = {name: np.arange(np.prod(one)).reshape(one) for name, one in names.items()}
        self.released: list[str] = []
        self.decoded: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def tensor(self, name: str, shape: Sequence[int]) -> np.ndarray[Any, Any]:
        assert self.tensors[name].shape == tuple(shape)
        return self.tensors[name]

    def matrix(self, name: str, shape: tuple[int, int]) -> np.ndarray[Any, Any]:
        self.decoded.append(name)
        return self.tensor(name, shape)

    def release(self, name: str) -> None:
        self.released.append(name)


def of(model_type: str, names: dict[str, tuple[int, ...]]) -> tuple[FamilyTensors, Held]:
    held = Held(names)
    return FamilyTensors(read_spec({**CONFIG, "model_type": model_type}, to_run=True), held), held


def test_stacked_projections_are_rows_of_one_tensor() -> None:
    found, held = of("phi3", {AT + "self_attn.qkv_proj.weight": (64, 16), AT + "mlp.gate_up_proj.weight": (24, 16)})
    qkv = held.tensors[AT + "self_attn.qkv_proj.weight"]
    for part, rows in (("q_proj", slice(0, 32)), ("k_proj", slice(32, 48)), ("v_proj", slice(48, 64))):
        name = f"{AT}self_attn.{part}.weight"
        got = found.tensor(name, (rows.stop - rows.start, 16))
        np.testing.assert_array_equal(got, qkv[rows])
        assert name in found and np.shares_memory(got, qkv)
        found.release(name)
    np.testing.assert_array_equal(
        found.tensor(AT + "mlp.up_proj.weight", (12, 16)), held.tensors[AT + "mlp.gate_up_proj.weight"][12:]
    )
    assert held.released == [AT + "self_attn.qkv_proj.weight"] * 3
    assert AT + "mlp.down_proj.weight" not in found


def test_a_stack_is_decoded_once_for_all_of_its_parts() -> None:
    stack = AT + "self_attn.qkv_proj.weight"
    found, held = of("phi3", {stack: (64, 16)})
    names = [f"{AT}self_attn.{part}.weight" for part in ("q_proj", "k_proj", "v_proj")]
    for _ in range(2):
        parts = [found.matrix(name, (rows, 16)) for name, rows in zip(names, (32, 16, 16), strict=True)]
        np.testing.assert_array_equal(np.concatenate(parts), held.tensors[stack])
        for name in names:
            found.release(name)
    assert held.decoded == [stack, stack], "what is released is not kept"


def test_pairs_that_stand_side_by_side_become_halves() -> None:
    """Reorder the first half of each head of GLM-4's queries and keys and their biases; values stay."""
    names = {f"{AT}self_attn.{part}_proj.bias": (size,) for part, size in (("q", 32), ("k", 16), ("v", 16))}
    found, _ = of("glm4", names)
    head = [0, 2, 1, 3, 4, 5, 6, 7]
    for part, heads in (("q", 4), ("k", 2)):
        want = [8 * index + row for index in range(heads) for row in head]
        assert found.tensor(f"{AT}self_attn.{part}_proj.bias", (8 * heads,)).tolist() == want
    assert found.tensor(AT + "self_attn.v_proj.bias", (16,)).tolist() == list(range(16))


def test_norms_of_other_names() -> None:
    names = {AT + "post_self_attn_layernorm.weight": (16,), AT + "post_attention_layernorm.weight": (16,)}
    found, _ = of("glm4", names)
    assert AT + "post_attention_layernorm.weight" in found and AT + "pre_feedforward_layernorm.weight" in found
    assert AT + "post_feedforward_layernorm.weight" not in found


@pytest.mark.parametrize(
    ("root", "head"),
    [
        ("model.", "lm_head.weight"),
        ("model.language_model.", "lm_head.weight"),
        ("language_model.model.", "language_model.lm_head.weight"),
    ],
)
def test_a_text_part_has_a_prefix(root: str, head: str) -> None:
    names = {root + "embed_tokens.weight": (32, 16), root + "layers.1.mlp.up_proj.weight": (12, 16), head: (32, 16)}
    found, _ = of("llama", names)
    assert all(name in found for name in ("model.embed_tokens.weight", AT + "mlp.up_proj.weight", "lm_head.weight"))
    assert "model.norm.weight" not in found


def test_rows_of_a_matrix_as_it_is_held() -> None:
    random = np.random.default_rng(0)
    scales = random.uniform(0.5, 1.5, (6, 2)).astype(np.float32)
    codes = random.integers(0, 16, (6, 64)).astype(np.uint8)
    values = random.integers(-127, 128, (6, 64)).astype(np.int8)
    matrices: list[Matrix] = [
        random.standard_normal((6, 64)).astype(np.float32),
        by_output(values, scales[:, 0]),
        Int8Matrix(values, scales, scales + 1, 32),
        Int4Matrix(codes, scales, None, 32, LINEAR_CODES),
        Int4Matrix(codes, scales, scales + 1, 32, LINEAR_CODES),
    ]
    for matrix in matrices:
        for rows in (slice(2, 5), np.array([5, 0, 3])):
            np.testing.assert_array_equal(numbers(rows_of(matrix, rows)), numbers(matrix)[rows])


def numbers(matrix: Matrix) -> np.ndarray[Any, Any]:
    return matrix if isinstance(matrix, np.ndarray) else matrix.dequantized()
