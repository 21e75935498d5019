"""The arithmetic of specs: touched experts, latent attention, windows, bytes by packing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inflight.models import arithmetic
from inflight.models.arithmetic import Packing
from inflight.models.known import known_model, known_names, read_model
from inflight.models.mixers.attention import Attention
from inflight.models.mixers.mla import LatentAttention
from inflight.models.mlps.moe import MoE
from inflight.models.spec import ModelSpec, WeightFormat
from inflight.models.weight_format import weight_format

PUBLISHED = Path(__file__).parent / "published"
BF16 = Packing(matrix=2, head=2, table=2, other=2)


def published(name: str) -> ModelSpec:
    return read_model(name if name in known_names() else str(PUBLISHED / f"{name}.json"))


# -- experts -----------------------------------------------------------------------------------------------------------
def test_of_experts_only_those_of_a_token_are_active() -> None:
    mixtral = known_model("mixtral-8x7b")
    mlp = mixtral.layers[0].mlp
    assert isinstance(mlp, MoE)
    assert arithmetic.active_parameters(mixtral) / 1e9 == pytest.approx(12.9, rel=0.01)
    assert mlp.touched_experts(1) == pytest.approx(2)
    assert 7.9 < mlp.touched_experts(16) < 8


def test_a_step_reads_the_experts_that_it_touches_and_computes_with_those_of_each_token() -> None:
    mixtral = known_model("mixtral-8x7b")
    one, all_of_them = (arithmetic.step_weight_bytes(mixtral, BF16, tokens) for tokens in (1, 10_000))
    experts = 32 * 3 * 4096 * 14336 * 2
    assert all_of_them - one == pytest.approx(6 * experts)
    assert arithmetic.step_weight_bytes(mixtral, BF16) == pytest.approx(all_of_them)
    flops = arithmetic.layer_flops_per_token(mixtral) + arithmetic.logit_flops_per_token(mixtral)
    assert flops == pytest.approx(2 * arithmetic.active_parameters(mixtral), rel=0.02)


# -- attention ---------------------------------------------------------------------------------------------------------
def test_heads_are_not_taken_for_the_hidden_size() -> None:
    qwen = known_model("qwen3-0.6b")
    mixer = qwen.layers[0].mixer
    assert isinstance(mixer, Attention)
    assert mixer.heads * mixer.head_dim != qwen.hidden_size
    elements = mixer.weights(qwen.hidden_size).elements
    assert elements == 1024 * (16 + 2 * 8) * 128 + 16 * 128 * 1024


def test_latent_attention_is_wider_where_it_stays_compressed() -> None:
    mixer = published("deepseek-v3").layers[0].mixer
    assert isinstance(mixer, LatentAttention)
    assert mixer.cached is not None and mixer.cached.elements == 512 + 64
    assert mixer.pair_flops() == 2 * 128 * (128 + 64 + 128)
    assert mixer.pair_flops(compressed=True) == 2 * 128 * (2 * 512 + 64)


def test_a_window_bounds_attention() -> None:
    gemma = published("gemma-3-27b")
    short, long = (arithmetic.attention_flops_per_token(gemma, context) for context in (2048, 4096))
    assert long - short == 10 * 4 * 32 * 128 * 2048


# -- bytes -------------------------------------------------------------------------------------------------------------
def test_every_kind_of_weight_has_its_bytes() -> None:
    model = known_model("llama-3-8b")
    table = 128_256 * 4096
    assert arithmetic.weight_bytes(model, BF16) == 2 * arithmetic.parameters(model)
    assert arithmetic.weight_bytes(model, BF16) - arithmetic.step_weight_bytes(model, BF16) == 2 * table
    wide_head = Packing(matrix=2, head=4, table=2, other=2, head_scale=4)
    assert arithmetic.weight_bytes(model, wide_head) - arithmetic.weight_bytes(model, BF16) == 2 * table + 4 * 128_256


@pytest.mark.parametrize(
    ("given", "format"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, WeightFormat("fp8", 8, block=(128, 128))),
        ({"quant_method": "fp8", "weight_block_size": [128]}, WeightFormat("fp8", 8)),
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, WeightFormat("mxfp4", 4, 32)),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, WeightFormat("awq", 4, 128)),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, WeightFormat("gptq", 8)),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, WeightFormat("bitsandbytes", 4)),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}},
            },
            WeightFormat("compressed-tensors", 4, 32),
        ),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": 3}}, WeightFormat("compressed-tensors", None)),
    ],
)
def test_formats_of_checkpoints_are_described(given: dict[str, Any], format: WeightFormat) -> None:
    assert weight_format({"quantization_config": given}) == format


def test_a_plain_checkpoint_has_no_format() -> None:
    assert weight_format({"quantization_config": None}) is None
    assert published("deepseek-v3").weight_format == WeightFormat("fp8", 8, block=(128, 128))
