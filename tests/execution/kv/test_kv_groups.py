"""How a model's layers are divided into KV groups."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from inflight.core.types.kv_blocks import max_blocks
from inflight.execution.kv.kv_groups import kv_groups, one_group
from inflight.execution.memory import MachineMemory, kv_shape, kv_size
from inflight.models.mixers.shortconv import ShortConvolution
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
    assert found.windows == groups
    assert max(found.of_layer.count(group) for group in range(len(groups))) == size
    if len(groups) > 1:
        assert all(groups[group or 0] == windows[layer] for layer, group in enumerate(found.of_layer))
    shape = kv_shape(model(windows), 16, groups=found)
    offsets, room = shape.offsets(lambda layer: layer.elements)
    assert room == size * shape.of(0).elements and shape.groups == len(groups)
    assert len(set(zip(found.of_layer, offsets, strict=True))) == len(windows) and max(offsets) < room


def test_short_sequences_have_one_group() -> None:
    assert kv_groups(model(five_to_one(24)), 16, 600).windows == (0,)
    assert kv_groups(model(five_to_one(24)), 16, 1024).windows == (0, *[512] * 5)


def gemma4(full: int, sliding: int, kv_heads: tuple[int, int]) -> ModelSpec:
    """So many layers that see all, with heads of 512, and that have a window of 1,024, with heads of 256."""
    spec = model([0, 1024])
    of_full, of_sliding = (
        type(layer)(replace(layer.mixer, heads=16, kv_heads=heads, head_dim=dim), layer.mlp)
        for layer, heads, dim in zip(spec.layers, kv_heads, (512, 256), strict=True)
    )
    period = sliding // full
    layers = [of_full if index % (period + 1) == period else of_sliding for index in range(full + sliding)]
    return replace(spec, layers=tuple(layers), max_position_embeddings=2**18)


@pytest.mark.parametrize(
    ("layers", "kv_heads", "windows", "of_group"),
    [
        ((10, 50), (4, 16), 1 + 10, [10, *[5] * 10]),  # 40,960 elements of a token each
        ((5, 25), (2, 8), 1 + 13, [5, *[2] * 12, 1]),
    ],
)
def test_layers_whose_heads_differ_share_blocks_of_the_same_bytes(
    layers: tuple[int, int], kv_heads: tuple[int, int], windows: int, of_group: list[int]
) -> None:
    spec = gemma4(*layers, kv_heads)
    groups = kv_groups(spec, 16, 2**18)
    assert groups.windows == (0, *[1024] * (windows - 1))
    assert [groups.of_layer.count(group) for group in range(windows)] == of_group
    _, room = kv_shape(spec, 16, groups=groups).offsets(lambda layer: layer.elements)
    assert room == of_group[0] * 2 * 512 * kv_heads[0]


def test_without_windows_layers_of_all_shapes_are_one_group() -> None:
    groups = kv_groups(gemma4(2, 4, (1, 2)), 16, 1000)
    assert groups.windows == (0,)
    shape = kv_shape(gemma4(2, 4, (1, 2)), 16, groups=groups)
    assert shape.offsets(lambda layer: layer.elements) == ([0, 1024, 2048, 3072, 4096, 5120], 6 * 1024)


def test_layers_that_keep_a_state_take_no_place() -> None:
    spec = model([0, 0, 0, 0])
    state = type(spec.layers[0])(ShortConvolution(kernel=3), spec.layers[0].mlp)
    spec = replace(spec, layers=(state, *spec.layers[1:3], state))
    groups = kv_groups(spec, 16, 8192)
    assert groups == one_group(spec) and groups.of_layer == (None, 0, 0, None)
    shape = kv_shape(spec, 16, groups=groups)
    assert [layer is None for layer in shape.layers] == [True, False, False, True]
    with pytest.raises(ValueError, match="layer 3 is not in the KV cache"):
        shape.of(3)


def test_memory_is_taken_for_what_windows_keep() -> None:
    groups = kv_groups(model(five_to_one(24)), 16, 8192)
    shape, memory = kv_shape(model(five_to_one(24)), 16, groups=groups), MachineMemory(2**40, 2**40, "the machine")
    limits: dict[str, Any] = {"max_num_seqs": 8, "max_model_len": 8192, "memory": memory, "longest_chunk": 256}
    size = kv_size(shape, 1024, windows=groups.windows, **limits)
    assert size.num_blocks == 8 * max_blocks(8192, 16, groups.windows, 256) == 8 * (512 + 5 * 49)
    assert "tokens of a sequence, in 6 groups), all that 8 sequences of 8,192 tokens can fill" in size.reason
    less = kv_size(shape, 1024, windows=groups.windows, num_blocks=700, **limits)
    assert "(7,280 tokens of a sequence, in 6 groups), as --num-blocks asks; longer requests are refused" in less.reason
    whole = kv_size(shape, 1024, windows=groups.windows, **{**limits, "longest_chunk": 2**31 - 1})
    assert whole.num_blocks == 8 * 6 * 512
