"""Rotary frequencies and tables against `transformers`, at the sizes of real models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inflight.execution.rope import RopeSettings, inverse_frequencies, rope_table
from inflight.models.errors import ModelError

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
REAL: dict[str, tuple[int, int, dict[str, Any]]] = {
    "llama2": (128, 4096, {"rope_theta": 10_000.0}),
    "llama31": (128, 131_072, {**LLAMA3, "rope_theta": 500_000.0}),
    "llama32": (64, 131_072, {**LLAMA3, "factor": 32.0, "rope_theta": 500_000.0}),
    "qwen25": (64, 32_768, {"rope_theta": 1_000_000.0}),
    "qwen25_yarn": (128, 32_768, {**YARN, "rope_theta": 1_000_000.0}),
    "yarn_untruncated": (128, 32_768, {**YARN, "truncate": False, "mscale": 0.7, "mscale_all_dim": 1.2}),
    "linear": (128, 16_384, {"rope_type": "linear", "factor": 4.0, "rope_theta": 100_000.0}),
    "dynamic": (128, 4096, {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}),
}


def oracle(head_dim: int, length: int, parameters: dict[str, Any]) -> Any:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=head_dim, num_attention_heads=1, max_position_embeddings=length, rope_parameters=dict(parameters)
    )
    return LlamaRotaryEmbedding(config)


@pytest.mark.parametrize("name", REAL)
def test_frequencies_and_table_agree(name: str) -> None:
    import torch

    head_dim, length, parameters = REAL[name]
    settings = RopeSettings.from_dict({"rope_parameters": parameters}, head_dim, length)
    rotary = oracle(head_dim, length, parameters)
    theirs = rotary.inv_freq.numpy()
    # One unit in the last place of float32 is 1.2e-7 of a value; the powers may differ by that.
    np.testing.assert_allclose(inverse_frequencies(settings, length), theirs, rtol=2.5e-7)
    table = rope_table(settings, min(length, 6000)).whole()
    positions = torch.arange(len(table.cos))[None]
    cos, sin = (part[0, :, : head_dim // 2].numpy() for part in rotary(torch.zeros(1), positions))
    # At position p an error of one unit in a frequency turns the angle by p · 1.2e-7.
    assert np.abs(table.cos - cos).max() < 6000 * 1.3e-7
    assert np.abs(table.sin - sin).max() < 6000 * 1.3e-7
    assert table.cos.dtype == np.float32 and table.cos.shape == (min(length, 6000), head_dim // 2)


def test_dynamic_frequencies_are_those_of_the_longest_position() -> None:
    import torch

    head_dim, length, parameters = REAL["dynamic"]
    settings = RopeSettings.from_dict({"rope_parameters": parameters}, head_dim, length)
    assert settings.longest == 8192
    for longest in (4097, 8192):
        rotary = oracle(head_dim, length, parameters)
        rotary(torch.zeros(1), torch.arange(longest)[None])
        np.testing.assert_allclose(inverse_frequencies(settings, longest), rotary.inv_freq.numpy(), rtol=1e-6)
    trained = inverse_frequencies(settings, 100)
    assert np.array_equal(trained, inverse_frequencies(settings, length)), "a shorter limit changes nothing"


LONGROPE = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 4096,
    "short_factor": [1 + index / 48 for index in range(48)],
    "long_factor": [1 + index for index in range(48)],
    "partial_rotary_factor": 0.75,
    "rope_theta": 10_000.0,
}


def test_longrope_takes_the_factors_of_the_configured_length() -> None:
    import torch
    from transformers import Phi3Config
    from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

    settings = RopeSettings.from_dict({"rope_parameters": LONGROPE}, 128, 131_072, partial=True)
    config = Phi3Config(
        hidden_size=128,
        num_attention_heads=1,
        max_position_embeddings=131_072,
        original_max_position_embeddings=4096,
        rope_parameters=dict(LONGROPE),
    )
    for longest in (4096, 4097):
        rotary = Phi3RotaryEmbedding(config)
        rotary(torch.zeros(1), torch.arange(longest)[None])
        np.testing.assert_allclose(inverse_frequencies(settings, longest), rotary.inv_freq.numpy(), rtol=2.5e-7)
        assert settings.attention_factor == pytest.approx(rotary.attention_scaling, rel=1e-6)
    assert settings.head_dim == 96


def test_a_part_of_a_head_that_cannot_be_rotated_is_named() -> None:
    for partial in (0.01, 1.5, "half"):
        with pytest.raises(ModelError, match="leaves no even number of at least 2 values"):
            RopeSettings.from_dict({"rope_parameters": {"partial_rotary_factor": partial}}, 64, 512, partial=True)


def test_a_table_does_not_depend_on_its_length() -> None:
    settings = RopeSettings.from_dict({"rope_parameters": REAL["llama31"][2]}, 128, 131_072)
    long, short = rope_table(settings, 10_000).whole(), rope_table(settings, 17).whole()
    assert np.array_equal(long.cos[:17], short.cos) and np.array_equal(long.sin[:17], short.sin)


def test_a_table_that_grows_is_the_whole_one_as_far_as_it_is_reached() -> None:
    """Also a table whose values are scaled (yarn)."""
    scaled = RopeSettings.from_dict({"rope_parameters": REAL["qwen25_yarn"][2]}, *REAL["qwen25_yarn"][:2])
    for settings in (RopeSettings.from_dict({"rope_parameters": REAL["llama31"][2]}, 128, 131_072), scaled):
        whole, growing = rope_table(settings, 3_000).whole(), rope_table(settings, 3_000)
        for reached in (0, 1, 600, 2_000, 1_999, 10**6):
            growing.reach(reached)
            there = slice(0, reached)
            assert np.array_equal(whole.cos[there], growing.cos[there])
            assert np.array_equal(whole.sin[there], growing.sin[there])


def test_old_and_new_style_mean_the_same() -> None:
    old = {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2}}
    new = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}}
    assert RopeSettings.from_dict(old, 64, 512) == RopeSettings.from_dict(new, 64, 512)
    plain = {"rope_theta": 5e5, "rope_scaling": None}
    assert RopeSettings.from_dict(plain, 64, 512) == RopeSettings("default", 64, 5e5, 512, 512)


@pytest.mark.parametrize(
    ("rope", "sentence"),
    [
        ({"rope_type": "axial"}, "rope type 'axial' is not supported; these are: default, linear"),
        ({"rope_type": "proportional", "partial_rotary_factor": 0.01}, "turns no pair of a head of"),
        ({"rope_type": "proportional", "partial_rotary_factor": 1.5}, "or more than there are"),
        ({"rope_type": "yarn", "original_max_position_embeddings": 128}, "rope type 'yarn' needs 'factor'"),
        ({"rope_type": "longrope"}, "rope type 'longrope' needs 'short_factor' as a list of 32 numbers"),
        ({"rope_type": "longrope", "short_factor": [1.0] * 32, "long_factor": [0.0] * 32}, "must be a number above 0"),
        (
            {"rope_type": "longrope", "original_max_position_embeddings": 1},
            "original_max_position_embeddings of rope type 'longrope' must be at least 2, not 1",
        ),
        ({"rope_type": ["yarn"]}, "is not supported"),
        ({"rope_type": "linear"}, "rope type 'linear' needs 'factor'"),
        ({"rope_type": "linear", "factor": "two"}, "factor of rope type 'linear' must be a number above 0, not 'two'"),
        ({"rope_type": "dynamic", "factor": -1.0}, "must be a number above 0, not -1.0"),
        ({**LLAMA3, "low_freq_factor": None}, "needs 'low_freq_factor'"),
        ({**LLAMA3, "high_freq_factor": 1.0}, "high_freq_factor above low_freq_factor, not 1.0 and 1.0"),
        ({"full_attention": {"rope_type": "default"}}, "per layer type"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        ({"rope_type": "default", "rope_theta": 0.5}, "rope_theta must be larger than 1"),
        (7, "must be an object or null, not 7"),
        ({"rope_type": "yarn", "factor": 1e300}, r"factor of rope type 'yarn' is 1e\+300, which makes no sense"),
        ({"rope_type": "yarn", "factor": 10**400}, "factor of rope type 'yarn' is 1000000"),
        ({"rope_type": "yarn", "factor": 1e9}, "stretches the model to 512,000,000,000 positions; at most 67,108,864"),
        ({"rope_type": "yarn", "factor": 2.0, "beta_fast": 5e-324}, "beta_fast .* makes no sense"),
        ({"rope_type": "yarn", "original_max_position_embeddings": 0.5}, "must be at least 1, not 0.5"),
    ],
)
def test_bad_settings_are_named(rope: Any, sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        RopeSettings.from_dict({"rope_scaling": rope}, 64, 512)
