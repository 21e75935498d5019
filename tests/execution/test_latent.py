"""Models with latent attention: what a token leaves in memory; the same bits in int8, int4 and over int8 vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from inflight.execution.backends import open_backend
from inflight.execution.backends.protocol import KVLayer, Quantization
from inflight.execution.kv.kv_groups import kv_groups
from inflight.execution.memory import kv_shape
from inflight.execution.sizes import kv_bytes_per_token
from inflight.models.errors import ModelError
from inflight.models.registry import read_spec
from inflight.models.spec import ModelSpec

from .conftest import OracleOf
from .driver import BLOCK, Driver, backends

BEST = backends()[:2][-1]
V2_LITE: dict[str, Any] = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "vocab_size": 102_400,
    "hidden_size": 2048,
    "intermediate_size": 10_944,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "moe_intermediate_size": 1408,
    "first_k_dense_replace": 1,
    "max_position_embeddings": 163_840,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
    },
}


def v2_lite(**changes: Any) -> ModelSpec:
    return read_spec({**V2_LITE, **changes}, to_run=True)


def test_a_token_takes_one_vector_a_layer() -> None:
    model, backend = v2_lite(), open_backend("bfloat16", 1, BEST)
    for quantized, nbytes in ((False, (512 + 64) * 2 * 27), (True, (512 + 64 + 4) * 27)):
        assert kv_bytes_per_token(model, "bfloat16", quantized) == nbytes
        assert backend.bytes_per_block(kv_shape(model, 32, quantized)) == 32 * nbytes
    assert kv_shape(model, 32).layers == (KVLayer(0, 1, 576, 0),) * 27
    assert kv_groups(model, 32, 4096).windows == (0,)


def test_yarn_stretches_positions_and_sharpens_scores() -> None:
    model = v2_lite()
    mixer = model.layers[0].mixer
    assert (model.longest_model_len, model.rope) == (163_840, mixer.rope)  # type: ignore[union-attr]
    factor = 0.1 * 0.707 * np.log(40) + 1
    assert mixer.scale == pytest.approx(192**-0.5 * factor**2)  # type: ignore[union-attr]
    assert mixer.rope.attention_factor == 1  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kv_lora_rank": 500}, "a kv_lora_rank of 500, which is no multiple of 16"),
        ({"mlp_bias": True}, "mlp_bias is true, but the gated MLP"),
        ({"kv_lora_rank": 1024}, "kv_lora_rank and qk_rope_head_dim of 1088 together"),
        ({"qk_rope_head_dim": 63}, "qk_rope_head_dim in config.json must be even"),
        ({"rope_scaling": {"type": "yarn", "factor": 40, "mscale_all_dim": -1}}, "mscale_all_dim of rope type 'yarn'"),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        v2_lite(**changes)


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
@pytest.mark.parametrize("quantized_kv", [False, True])
@pytest.mark.parametrize("isa", backends()[:2])
def test_quantized_errs_by_some_percent_in_the_same_bits(
    oracle_of: OracleOf, quantization: Quantization, quantized_kv: bool, isa: str
) -> None:
    """However the prompt is cut, and beside others."""
    oracle = oracle_of("deepseek_v2_lite")
    backend = open_backend("float32", 2, isa)
    driver = Driver(oracle.folder, backend, quantization=quantization, quantized_kv=quantized_kv)
    prompt = oracle.prompt[:90]
    alone = driver.prefill(driver.start(prompt), len(prompt))
    error = float(np.sqrt(np.mean((alone - oracle.logits[:90]) ** 2) / np.mean(oracle.logits[:90] ** 2)))
    bounds = {"none": (2e-3, 0.1) if quantized_kv else (0, 1e-4), "int8": (0.01, 0.15), "int4": (0.04, 0.8)}
    low, high = bounds[quantization]
    assert low < error + 1e-12 < high
    ours, other = driver.start(prompt), driver.start(oracle.prompt[5:])
    rows = []
    for count in (1, BLOCK + 1, 40, 32):
        rows.append(driver.step([(other, 3), (ours, count)])[3:])
    assert np.array_equal(np.concatenate(rows), alone)
