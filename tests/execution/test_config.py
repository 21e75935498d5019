"""Configurations: what each family's config.json means, what is refused, and the arithmetic of sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inflight.execution.config import ModelConfig
from inflight.execution.errors import ModelError

from .conftest import OracleOf
from .variants import VARIANTS

BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
}
QWEN2 = {**BASE, "architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 2, "sliding_window": 8}


def config(**changes: Any) -> ModelConfig:
    return ModelConfig.from_dict({**BASE, **changes})


# -- families ---------------------------------------------------------------------------------------------------------
def test_llama_defaults_are_those_of_transformers() -> None:
    got = config()
    assert (got.num_kv_heads, got.head_dim, got.max_position_embeddings, got.rms_norm_eps) == (4, 16, 2048, 1e-6)
    assert got.windows == (0, 0, 0, 0)
    assert (got.qkv_bias, got.output_bias, got.qk_norm, got.tie_word_embeddings) == (False,) * 4
    assert (got.rope.kind, got.rope.theta) == ("default", 10_000.0)
    assert (got.end_token_ids, got.bos_token_id, got.checkpoint_dtype) == ((), None, None)


def test_biases_by_family() -> None:
    def biases(architecture: str, **changes: Any) -> tuple[bool, bool]:
        got = config(architectures=[architecture], num_key_value_heads=2, **changes)
        return got.qkv_bias, got.output_bias

    assert biases("LlamaForCausalLM", attention_bias=True) == (True, True)
    assert biases("MistralForCausalLM", attention_bias=True) == (False, False)
    assert biases("Qwen2ForCausalLM", attention_bias=False) == (True, False)
    assert biases("Qwen3ForCausalLM") == (False, False)
    assert biases("Qwen3ForCausalLM", attention_bias=True) == (True, True)


def test_model_type_speaks_where_architectures_are_silent() -> None:
    got = config(architectures=None, model_type="qwen3", num_key_value_heads=2)
    assert (got.family, got.qk_norm, got.head_dim) == ("qwen3", True, 128)
    assert config(architectures=None, model_type="qwen3", num_key_value_heads=2, head_dim=None).head_dim == 16


def test_mistral_windows() -> None:
    mistral = {"architectures": ["MistralForCausalLM"], "num_key_value_heads": 2}
    assert config(**mistral).windows == (4096,) * 4
    assert config(**mistral, sliding_window=None).windows == (0,) * 4
    assert config(**mistral, sliding_window=7, layer_types=["sliding_attention"] * 4).windows == (7,) * 4
    with pytest.raises(ModelError, match="mixes kinds of attention"):
        config(**mistral, layer_types=["full_attention", "sliding_attention"] * 2)


def test_qwen_windows() -> None:
    def windows(**changes: Any) -> tuple[int, ...]:
        return ModelConfig.from_dict({**QWEN2, **changes}).windows

    assert windows() == (0,) * 4
    assert windows(use_sliding_window=True) == (0,) * 4, "the first 28 layers see all unless told otherwise"
    assert windows(use_sliding_window=True, max_window_layers=1) == (0, 8, 8, 8)
    alternating = ["sliding_attention", "full_attention"] * 2
    assert windows(use_sliding_window=True, layer_types=alternating) == (8, 0, 8, 0)
    assert windows(layer_types=["full_attention"] * 4) == (0,) * 4


@pytest.mark.parametrize("variant", VARIANTS)
def test_sizes_are_those_of_the_saved_model(oracle_of: OracleOf, variant: str) -> None:
    oracle = oracle_of(variant)
    got = ModelConfig.from_folder(oracle.folder)
    assert got.parameters == sum(parameter.numel() for parameter in oracle.model.parameters())
    windows = [
        getattr(layer.self_attn, "sliding_window", None) or 0 if got.family != "mistral" else got.windows[0]
        for layer in oracle.model.model.layers
    ]
    assert list(got.windows) == windows
    assert got.checkpoint_dtype == "float32"


# -- tokens and lengths -----------------------------------------------------------------------------------------------
def test_end_tokens_come_from_the_generation_config_first() -> None:
    data = {**BASE, "eos_token_id": 2, "bos_token_id": 1}
    assert ModelConfig.from_dict(data).end_token_ids == (2,)
    assert ModelConfig.from_dict(data, {"eos_token_id": [5, 6, 5]}).end_token_ids == (5, 6)
    assert ModelConfig.from_dict(data, {"temperature": 0.6}).end_token_ids == (2,)
    assert ModelConfig.from_dict(BASE, {"bos_token_id": 9}).bos_token_id == 9
    with pytest.raises(ModelError, match="eos_token_id must be a token id or a list of them, not 'two'"):
        config(eos_token_id="two")


def test_lengths() -> None:
    assert (config().default_model_len, config().longest_model_len) == (2048, 2048)
    yarn = config(rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048})
    assert (yarn.default_model_len, yarn.longest_model_len) == (8192, 8192)
    dynamic = config(rope_scaling={"type": "dynamic", "factor": 2.0})
    assert (dynamic.default_model_len, dynamic.longest_model_len) == (2048, 4096)


def test_dtype_in_both_spellings() -> None:
    assert config(torch_dtype="bfloat16").checkpoint_dtype == "bfloat16"
    assert config(dtype="torch.float16").checkpoint_dtype == "float16"


# -- arithmetic -------------------------------------------------------------------------------------------------------
def test_arithmetic_of_a_known_model() -> None:
    """Qwen2.5-0.5B: 494,032,768 parameters by its model card; 12 KiB of KV per token in bf16."""
    got = ModelConfig.from_dict(
        {
            "architectures": ["Qwen2ForCausalLM"],
            "vocab_size": 151_936,
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
        }
    )
    assert got.parameters == 494_032_768
    assert got.kv_bytes_per_token("bfloat16") == 12_288
    assert got.kv_bytes_per_token("bfloat16", quantized=True) == 2 * 24 * 2 * (64 + 4)
    assert got.weight_bytes("float32") == 4 * got.parameters
    assert got.weight_bytes("bfloat16") == got.step_weight_bytes("bfloat16") < 2.001 * got.parameters
    flops = got.layer_flops_per_token + got.logit_flops_per_token
    assert flops == pytest.approx(2 * got.parameters, rel=1e-3)
    assert got.logit_flops_per_token == 2 * 151_936 * 896
    assert got.attention_flops_per_token(1000) == 24 * 4 * 896 * 1000


def test_int8_halves_the_layers_and_then_the_output_projection() -> None:
    got = config(num_hidden_layers=7)
    layers, table = 7 * got.layer_matrix_parameters, got.table_parameters
    outputs = got.qkv_rows + 2 * got.intermediate_size + 2 * got.hidden_size
    saved = got.step_weight_bytes("bfloat16") - got.step_weight_bytes("bfloat16", "int8")
    assert saved == layers - 7 * 4 * outputs
    more = got.step_weight_bytes("bfloat16", "int8") - got.step_weight_bytes("bfloat16", "int8-all")
    assert more == table - 4 * got.vocab_size


def test_an_untied_model_has_two_tables_and_reads_one() -> None:
    got = config()
    assert got.weight_bytes("bfloat16") - got.step_weight_bytes("bfloat16") == 2 * 64_000


def test_a_window_bounds_attention() -> None:
    mistral = config(architectures=["MistralForCausalLM"], num_key_value_heads=4, sliding_window=10)
    assert mistral.attention_flops_per_token(10) == mistral.attention_flops_per_token(10_000)


# -- refusals ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel is an architecture that is not supported. Supported"),
        ({"architectures": ["MixtralForCausalLM"], "num_local_experts": 8}, "a mixture of experts"),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, "a mixture of experts"),
        ({"architectures": None}, "names neither architectures nor model_type"),
        ({"architectures": "LlamaForCausalLM"}, "must be a list of names"),
        ({"quantization_config": {"quant_method": "gptq"}}, r"the checkpoint is quantized \(gptq\)"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"mlp_bias": True}, "mlp_bias is true"),
        ({"hidden_size": None}, "config.json lacks hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers in config.json must be a whole number above 0, not 0"),
        ({"vocab_size": True}, "not True"),
        ({"num_key_value_heads": 3}, r"num_attention_heads \(4\) must be a multiple of num_key_value_heads \(3\)"),
        ({"head_dim": 15}, "must be even"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
        ({"rope_scaling": {"type": "mrope"}}, "rope type 'mrope' is not supported"),
        (
            {"num_hidden_layers": 2**31},
            r"is 2147483648, more than any model has \(at most 4,096",
        ),
        ({"vocab_size": 10**4000}, r"vocab_size in config.json is 1000000\d+…, more than any model has"),
        ({"max_position_embeddings": 2**40}, "max_position_embeddings .* more than any model has"),
        ({"hidden_size": list(range(10**6))}, "whole number above 0, not a list of 1,000,000 entries"),
        ({"architectures": None, "model_type": ["llama"]}, "names \\['llama'\\] as its architecture"),
        ({"eos_token_id": 2**40}, "eos_token_id holds 1099511627776: that many, or such large"),
    ],
)
def test_what_cannot_be_served_is_named(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        config(**changes)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"layer_types": 4}, "layer_types in config.json must be a list of names, not 4"),
        ({"layer_types": [["full_attention"]] * 4}, "must be a list of names"),
        (
            {"use_sliding_window": True, "max_window_layers": None},
            "max_window_layers .* a whole number, not None",
        ),
        ({"layer_types": ["full_attention"]}, "layer_types names 1 layers, but num_hidden_layers is 4"),
        ({"layer_types": ["linear_attention"] * 4}, "asks for linear_attention"),
        ({"layer_types": ["sliding_attention"] * 4}, "use_sliding_window or sliding_window is not set"),
    ],
)
def test_layer_types_that_cannot_be(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        ModelConfig.from_dict({**QWEN2, **changes})


def test_folders_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config.json \(it is empty\)"):
        ModelConfig.from_folder(tmp_path)
    with pytest.raises(ModelError, match="it does not exist"):
        ModelConfig.from_folder(tmp_path / "absent")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ModelError, match=r"it holds notes.txt\)"):
        ModelConfig.from_folder(tmp_path)
    with pytest.raises(ModelError, match="it is a file"):
        ModelConfig.from_folder(tmp_path / "notes.txt")


def test_broken_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": ')
    with pytest.raises(ModelError, match=r"config\.json is not valid JSON: .* at line 1, column 16"):
        ModelConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ModelError, match="holds a JSON list where an object is expected"):
        ModelConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(BASE))
    (tmp_path / "generation_config.json").write_text("oops")
    with pytest.raises(ModelError, match=r"generation_config\.json is not valid JSON"):
        ModelConfig.from_folder(tmp_path)
