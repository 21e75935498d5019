"""Models that ranks compute together, each in a thread: logits are one device's, for every way to cut a layer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import SIZES, asked_for, write_model
from safetensors.numpy import save_file

from inflight.execution.backends.protocol import Quantization
from inflight.execution.parallel.shards import Shard
from inflight.models.registry import read_folder

from ..driver import Driver
from .together import Together

TOKENS = np.random.default_rng(8).integers(0, 300, 40)
GPT_OSS: dict[str, Any] = {
    **SIZES,
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 40,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "attention_bias": True,
}
OLMO2: dict[str, Any] = {**SIZES, "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2"}
QWEN3_NEXT: dict[str, Any] = {
    **SIZES,
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "num_hidden_layers": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "partial_rotary_factor": 0.5,
}


def written(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(asked_for(config), folder / "model.safetensors")
    return folder


def logits(folder: Path, ranks: int, quantization: Quantization = "none") -> list[np.ndarray]:
    """Return each rank's logits after every token; a prompt in two chunks, then tokens one by one."""
    together = Together(ranks)
    spec = read_folder(folder, to_run=True)

    def run(rank: int) -> np.ndarray:
        shard = None if ranks == 1 else Shard(spec, rank, ranks)
        driver = Driver(folder, together.backend(rank), quantization=quantization, shard=shard)
        sequence = driver.start(TOKENS)
        return np.concatenate([driver.step([(sequence, count)]) for count in (17, 18, *[1] * (len(TOKENS) - 35))])

    found = together.each(run)
    assert (together.sums > 0) == (ranks > 1)
    return found


def close(found: np.ndarray, wanted: np.ndarray, most: float) -> bool:
    return bool(np.abs(found - wanted).max() <= most * np.abs(wanted).max())


# What of each is cut otherwise than of the others: tied tables; biases; norms around, soft caps; stacked projections;
# a factor of what is added; latent attention, which is whole, and experts beside a shared one; keys that layers share,
# experts beside an MLP; layers side by side; linear attention and convolutions, which are whole; and gates.
FAMILIES = ["llama", "qwen2", "gemma2", "phi3", "granite", "deepseek_v3", "gemma4", "cohere2", "qwen3_5", "lfm2"]


@pytest.mark.parametrize("family", FAMILIES)
def test_two_ranks_have_the_logits_of_one(family: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path, family)
    (alone,) = logits(folder, 1)
    first, second = logits(folder, 2)
    np.testing.assert_array_equal(first, second)
    assert close(first, alone, 1e-4)


@pytest.mark.parametrize("config", [GPT_OSS, OLMO2, QWEN3_NEXT], ids=["sinks, biases", "whole norms", "shared gate"])
def test_experts_and_what_comes_with_them(config: dict[str, Any], tmp_path: Path) -> None:
    folder = written(tmp_path, config)
    (alone,) = logits(folder, 1)
    first, second = logits(folder, 2)
    np.testing.assert_array_equal(first, second)
    assert close(first, alone, 1e-4)


def test_ranks_that_are_more_than_kv_heads_hold_some_several_times(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "qwen3")
    (alone,) = logits(folder, 1)
    of_ranks = logits(folder, 4)
    for one in of_ranks:
        np.testing.assert_array_equal(one, of_ranks[0])
        assert close(one, alone, 1e-4)


def test_groups_that_no_cut_divides_have_the_scales_of_one_device(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "llama", intermediate_size=128)
    (alone,) = logits(folder, 1, "int4")
    first, second = logits(folder, 2, "int4")
    np.testing.assert_array_equal(first, second)
    assert close(first, alone, 1e-4)


def test_rows_that_are_cut_have_scales_of_their_own(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "llama")
    (alone,) = logits(folder, 1, "int8")
    first, second = logits(folder, 2, "int8")
    np.testing.assert_array_equal(first, second)
    assert close(first, alone, 0.05)
    assert not close(first, alone, 1e-4)
