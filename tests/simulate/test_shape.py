"""Model shapes: published parameter counts and KV sizes come out of them; config.json files of all kinds are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inflight.simulate.shape import KNOWN, ShapeError, read_shape, shape_from_config

# billions of parameters as published, GB of weights in bf16, KiB of keys and values per token in bf16
PUBLISHED = {
    "llama-3-8b": (8.03, 16.1, 128),
    "llama-3-70b": (70.55, 141.1, 320),
    "llama-3.1-70b": (70.55, 141.1, 320),
    "llama-2-7b": (6.74, 13.5, 512),
    "llama-2-70b": (68.98, 138.0, 320),
    "qwen2.5-0.5b": (0.49, 1.0, 12),
    "qwen2.5-7b": (7.62, 15.2, 56),
    "qwen2.5-72b": (72.70, 145.4, 320),
    "qwen3-0.6b": (0.60, 1.2, 112),
    "qwen3-8b": (8.19, 16.4, 144),
    "qwen3-14b": (14.77, 29.5, 160),
    "qwen3-32b": (32.76, 65.5, 256),
    "mistral-7b": (7.24, 14.5, 128),
    "mixtral-8x7b": (46.7, 93.4, 128),
}

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 1000,
}


@pytest.mark.parametrize(("name", "figures"), PUBLISHED.items())
def test_published_sizes_come_out(name: str, figures: tuple[float, float, float]) -> None:
    shape = KNOWN[name]
    parameters, gigabytes, kib = figures
    assert shape.parameters / 1e9 == pytest.approx(parameters, abs=0.006, rel=2e-3)
    assert shape.weight_bytes() / 1e9 == pytest.approx(gigabytes, rel=0.02)
    assert shape.kv_bytes_per_token() / 1024 == kib


def test_of_experts_only_those_of_a_token_are_active() -> None:
    mixtral = KNOWN["mixtral-8x7b"]
    assert mixtral.active_parameters / 1e9 == pytest.approx(12.9, rel=0.01)
    assert mixtral.touched_experts(1) == pytest.approx(2)
    assert 7.9 < mixtral.touched_experts(16) < 8
    assert KNOWN["llama-3-8b"].touched_experts(100) == 0


def test_heads_are_not_taken_for_the_hidden_size() -> None:
    qwen = KNOWN["qwen3-0.6b"]
    assert qwen.heads * qwen.head_dim != qwen.hidden
    assert qwen.attention_parameters == 1024 * (16 + 2 * 8) * 128 + 16 * 128 * 1024


@pytest.mark.parametrize(
    "name", ["llama-3-70b", "Meta-Llama-3-70B", "meta-llama/Meta-Llama-3-70B-Instruct", "LLAMA-3-70B"]
)
def test_names_of_hubs_mean_the_same(name: str) -> None:
    assert read_shape(name).layers == 80


def test_an_unknown_model_lists_the_known_and_says_how_to_give_one() -> None:
    with pytest.raises(ShapeError) as caught:
        read_shape("llama-3-80b")
    assert "known are llama-3-8b, " in str(caught.value)
    assert "Did you mean llama-3-70b?" in str(caught.value) or "Did you mean llama-3-8b?" in str(caught.value)
    assert str(caught.value).endswith("give its folder, or its config.json.")


def test_a_folder_and_its_config_are_read_alike(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    shape = read_shape(str(tmp_path))
    assert shape == read_shape(str(tmp_path / "config.json"))
    assert (shape.head_dim, shape.kv_heads, shape.name) == (32, 2, tmp_path.name)


def test_experts_are_read_in_both_spellings() -> None:
    mixtral = shape_from_config({**CONFIG, "num_local_experts": 8, "num_experts_per_tok": 2})
    assert (mixtral.experts, mixtral.experts_per_token, mixtral.ffn) == (8, 2, 512)
    qwen = shape_from_config(
        {
            **CONFIG,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 128,
            "shared_expert_intermediate_size": 640,
        }
    )
    assert (qwen.experts, qwen.ffn, qwen.shared_ffn) == (60, 128, 640)
    assert qwen.parameters > qwen.active_parameters


def test_what_a_model_type_implies_counts() -> None:
    """Gemma's config.json does not say that the tables are one; a plain MLP has two matrices, not three."""
    gemma = shape_from_config({**CONFIG, "model_type": "gemma2"})
    assert gemma.tied and not shape_from_config({**CONFIG, "model_type": "gemma2", "tie_word_embeddings": False}).tied
    assert gemma.parameters == shape_from_config(CONFIG).parameters - 256 * 1000
    plain = shape_from_config({**CONFIG, "model_type": "phi"})
    assert plain.parameters == shape_from_config(CONFIG).parameters - 4 * 256 * 512


def test_of_a_model_that_sees_images_the_text_part_counts() -> None:
    assert shape_from_config({"model_type": "many", "text_config": CONFIG}).layers == 4


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"hidden_size": None}, "lacks hidden_size, without which the model's shape is unknown."),
        ({"num_hidden_layers": 0}, "num_hidden_layers in config.json is 0; it must be a whole number above 0."),
        ({"vocab_size": "many"}, "vocab_size in config.json is 'many'"),
        ({"num_key_value_heads": 3}, "num_attention_heads is 8, no multiple of num_key_value_heads, which is 3."),
        ({"is_encoder_decoder": True}, "is_encoder_decoder is set"),
        ({"kv_lora_rank": 512}, "multi-head latent attention"),
        ({"num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": [0]}, "only some of the layers have experts"),
        ({"num_experts": 8, "num_experts_per_tok": 9}, "num_experts_per_tok is 9, but there are 8 experts."),
    ],
)
def test_what_cannot_be_meant_is_told(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, **change}))
    with pytest.raises(ShapeError, match=r"config\.json") as caught:
        read_shape(str(path))
    assert sentence in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_broken_file_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ShapeError, match=r"config\.json"):
        read_shape(str(path))
