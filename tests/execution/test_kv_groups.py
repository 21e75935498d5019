"""How a model's layers are divided into KV groups."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from inflight.core.types.kv_groups import most_blocks
from inflight.execution.kv_groups import kv_groups
from inflight.execution.memory import MachineMemory, kv_shape, kv_size
from inflight.models.registry import read_spec
from inflight.models.spec import ModelSpec

BASE: dict[str, Any] = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "max_position_embeddings": 8192,
}


def model(windows: list[int]) -> ModelSpec:
    """Layers with these windows."""
    spec = read_spec({**BASE, "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1})
    (layer,) = spec.layers
    kinds = {window: type(layer)(replace(layer.mixer, window=window), layer.mlp) for window in set(windows)}
    return replace(spec, layers=tuple(kinds[window] for window in windows))


def five_to_one(layers: int) -> list[int]:
    return [0 if layer % 6 == 5 else 512 for layer in range(layers)]


@pytest.mark.parametrize(
    ("windows", "groups", "size"),
    [
        ([0] * 4, (0,), 4),
        (five_to_one(6), (0, *[512] * 5), 1),
        (five_to_one(24), (0, *[512] * 5), 4),
        (five_to_one(26), (0, *[512] * 6), 4),  # as 26 do not divide, two places stay empty
        (five_to_one(34), (0, *[512] * 6), 5),
        ([128, 0] * 12, (0, 128), 12),
        ([512] * 4, (512,), 4),
        ([8192] * 2 + [0] * 2, (0,), 4),  # as wide as the longest sequence
        ([0] * 9 + [512], (0,), 10),  # not worth it
        ([0, 64, 128, 128], (0, 64, 128, 128), 1),
    ],
)
def test_groups_are_of_equal_size_and_look_equally_far_back(
    windows: list[int], groups: tuple[int, ...], size: int
) -> None:
    found = kv_groups(model(windows), 16, 8192)
    assert (found.windows, found.size) == (groups, size)
    if len(groups) > 1:
        assert all(groups[group] == windows[layer] for layer, group in enumerate(found.of_layer))
        assert all(found.of_layer.count(group) <= size for group in range(len(groups)))
        shape = kv_shape(model(windows), 16, groups=found)
        places = [shape.place(layer) for layer in range(len(windows))]
        assert len(set(places)) == len(windows) and all(place < size for _, place in places)


def test_short_sequences_have_one_group() -> None:
    assert kv_groups(model(five_to_one(24)), 16, 600).windows == (0,)
    assert kv_groups(model(five_to_one(24)), 16, 1024).windows == (0, *[512] * 5)


def test_layers_whose_heads_differ_have_one_group() -> None:
    spec = model([0, 512, 512, 512])
    first = spec.layers[0]
    wide = type(first)(replace(first.mixer, head_dim=32), first.mlp)
    assert kv_groups(replace(spec, layers=(wide, *spec.layers[1:])), 16, 8192).windows == (0,)


def test_memory_is_taken_for_what_windows_keep() -> None:
    groups = kv_groups(model(five_to_one(24)), 16, 8192)
    shape, memory = kv_shape(model(five_to_one(24)), 16, groups=groups), MachineMemory(2**40, 2**40, "the machine")
    limits: dict[str, Any] = {"max_num_seqs": 8, "max_model_len": 8192, "memory": memory, "longest_chunk": 256}
    size = kv_size(shape, 1024, windows=groups.windows, **limits)
    assert size.num_blocks == 8 * most_blocks(8192, 16, groups.windows, 256) == 8 * (512 + 5 * 49)
    assert "tokens of a sequence, in 6 groups), all that 8 sequences of 8,192 tokens can fill" in size.reason
    less = kv_size(shape, 1024, windows=groups.windows, num_blocks=700, **limits)
    assert "(7,280 tokens of a sequence, in 6 groups), as --num-blocks asks; longer requests are refused" in less.reason
    whole = kv_size(shape, 1024, windows=groups.windows, **{**limits, "longest_chunk": 2**31 - 1})
    assert whole.num_blocks == 8 * 6 * 512
