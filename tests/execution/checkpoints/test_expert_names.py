"""Experts under the names of other checkpoints, one by one and stacked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from inflight.execution.checkpoints.expert_names import ExpertNames
from inflight.models.errors import ModelError
from inflight.models.registry import read_spec

HIDDEN, WIDTH, EXPERTS = 6, 4, 3
CONFIG = {
    "vocab_size": 32,
    "hidden_size": HIDDEN,
    "intermediate_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "num_local_experts": EXPERTS,
    "num_experts_per_tok": 2,
}
LAYER = "model.layers.1."


class Tensors(dict[str, np.ndarray]):
    """A source over arrays."""

    def tensor(self, name: str, shape: Sequence[int]) -> np.ndarray:
        if name not in self:
            raise ModelError(f"lacks tensor {name!r}")
        assert self[name].shape == tuple(shape), name
        return self[name]

    def release(self, name: str) -> None:
        assert name in self


def numbers(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def source(model_type: str, tensors: dict[str, np.ndarray]) -> ExpertNames:
    """tensors: by their names in the second layer."""
    spec = read_spec({**CONFIG, "model_type": model_type})
    return ExpertNames(Tensors({LAYER + name: values for name, values in tensors.items()}), spec)


def test_mixtral_has_names_of_its_own() -> None:
    w1, w2, w3 = numbers(WIDTH, HIDDEN), numbers(HIDDEN, WIDTH), -numbers(WIDTH, HIDDEN)
    held = {f"block_sparse_moe.experts.2.{name}.weight": value for name, value in (("w1", w1), ("w2", w2), ("w3", w3))}
    names = source("mixtral", {**held, "block_sparse_moe.gate.weight": numbers(EXPERTS, HIDDEN)})
    assert names.tensor(LAYER + "mlp.experts.2.gate_proj.weight", (WIDTH, HIDDEN)) is w1
    assert names.tensor(LAYER + "mlp.experts.2.up_proj.weight", (WIDTH, HIDDEN)) is w3
    assert names.tensor(LAYER + "mlp.experts.2.down_proj.weight", (HIDDEN, WIDTH)) is w2
    assert LAYER + "mlp.gate.weight" in names and LAYER + "mlp.experts.1.up_proj.weight" not in names
    names.release(LAYER + "mlp.experts.2.gate_proj.weight")
    with pytest.raises(ModelError, match=r"lacks tensor .*mlp\.experts\.1\.gate_proj"):
        names.tensor(LAYER + "mlp.experts.1.gate_proj.weight", (WIDTH, HIDDEN))


def test_a_stack_is_given_out_by_expert() -> None:
    stack, down = numbers(EXPERTS, 2 * WIDTH, HIDDEN), numbers(EXPERTS, HIDDEN, WIDTH)
    names = source("mixtral", {"mlp.experts.gate_up_proj": stack, "mlp.experts.down_proj": down})
    for expert in range(EXPERTS):
        at = f"{LAYER}mlp.experts.{expert}."
        gate, up = (names.tensor(f"{at}{part}_proj.weight", (WIDTH, HIDDEN)) for part in ("gate", "up"))
        np.testing.assert_array_equal(np.concatenate([gate, up]), stack[expert])
        assert gate.base is not None and gate.flags.c_contiguous, "a view"
        np.testing.assert_array_equal(names.tensor(at + "down_proj.weight", (HIDDEN, WIDTH)), down[expert])
        names.release(at + "down_proj.weight")


def test_a_transposed_stack_has_gate_and_up_in_turns_and_biases() -> None:
    stack, down = numbers(EXPERTS, HIDDEN, 2 * WIDTH), numbers(EXPERTS, WIDTH, HIDDEN)
    held = {
        "mlp.experts.gate_up_proj": stack,
        "mlp.experts.gate_up_proj_bias": numbers(EXPERTS, 2 * WIDTH),
        "mlp.experts.down_proj": down,
        "mlp.experts.down_proj_bias": numbers(EXPERTS, HIDDEN),
        "mlp.router.weight": numbers(EXPERTS, HIDDEN),
        "mlp.router.bias": numbers(EXPERTS),
    }
    names, at = source("gpt_oss", held), LAYER + "mlp.experts.1."
    up = names.tensor(at + "up_proj.weight", (WIDTH, HIDDEN))
    np.testing.assert_array_equal(up, stack[1, :, 1::2].T)
    assert up.flags.c_contiguous
    np.testing.assert_array_equal(names.tensor(at + "gate_proj.weight", (WIDTH, HIDDEN)), stack[1, :, ::2].T)
    np.testing.assert_array_equal(names.tensor(at + "down_proj.weight", (HIDDEN, WIDTH)), down[1].T)
    assert names.tensor(at + "gate_proj.bias", (WIDTH,)).tolist() == [8, 10, 12, 14]
    assert names.tensor(at + "down_proj.bias", (HIDDEN,)).tolist() == [6, 7, 8, 9, 10, 11]
    assert LAYER + "mlp.gate.weight" in names and LAYER + "mlp.gate.bias" in names


def test_other_names_pass_through() -> None:
    values = numbers(3)
    names = source("mixtral", {"input_layernorm.weight": values})
    assert names.tensor(LAYER + "input_layernorm.weight", (3,)) is values
    assert "model.norm.weight" not in names
