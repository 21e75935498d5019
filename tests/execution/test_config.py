"""Configurations: what each family's config.json means, what is refused, and the arithmetic of sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inflight.execution.roofline import Machine, decode_ceiling
from inflight.execution.sizes import kv_bytes_per_token, step_weight_bytes, weight_bytes
from inflight.models.arithmetic import (
    attention_flops_per_token,
    layer_flops_per_token,
    layer_matrix_parameters,
    logit_flops_per_token,
    parameters,
    table_parameters,
)
from inflight.models.errors import ModelError
from inflight.models.mixers.attention import Attention
from inflight.models.mixers.mla import LatentAttention
from inflight.models.registry import read_folder, read_spec
from inflight.models.spec import ModelSpec

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


def config(**changes: Any) -> ModelSpec:
    return read_spec({**BASE, **changes}, to_run=True)


def windows_of(model: ModelSpec) -> tuple[int, ...]:
    mixers = (layer.mixer for layer in model.layers)
    found = (mixer for mixer in mixers if isinstance(mixer, Attention | LatentAttention))
    return tuple(mixer.window if isinstance(mixer, Attention) else 0 for mixer in found)


# -- families ---------------------------------------------------------------------------------------------------------
def test_llama_defaults_are_those_of_transformers() -> None:
    got = config()
    attention = got.layers[0].mixer
    assert (attention.kv_heads, attention.head_dim, got.max_position_embeddings, got.norm.eps) == (4, 16, 2048, 1e-6)
    assert windows_of(got) == (0, 0, 0, 0)
    assert (attention.qkv_bias, attention.output_bias, got.head.tied) == (False,) * 3
    assert attention.qk_norm == "none"
    assert got.rope is not None
    assert (got.rope.kind, got.rope.theta) == ("default", 10_000.0)
    assert (got.end_token_ids, got.bos_token_id, got.checkpoint_dtype) == ((), None, None)


def test_biases_by_family() -> None:
    def biases(architecture: str, **changes: Any) -> tuple[bool, bool]:
        attention = config(architectures=[architecture], num_key_value_heads=2, **changes).layers[0].mixer
        return attention.qkv_bias, attention.output_bias

    assert biases("LlamaForCausalLM", attention_bias=True) == (True, True)
    assert biases("MistralForCausalLM", attention_bias=True) == (False, False)
    assert biases("Qwen2ForCausalLM", attention_bias=False) == (True, False)
    assert biases("Qwen3ForCausalLM") == (False, False)
    assert biases("Qwen3ForCausalLM", attention_bias=True) == (True, True)


def test_model_type_speaks_where_architectures_are_silent() -> None:
    got = config(architectures=None, model_type="qwen3", num_key_value_heads=2)
    attention = got.layers[0].mixer
    assert (got.family, attention.qk_norm, attention.head_dim) == ("qwen3", "head", 128)
    narrow = config(architectures=None, model_type="qwen3", num_key_value_heads=2, head_dim=None)
    assert narrow.layers[0].mixer.head_dim == 16


def test_mistral_windows() -> None:
    mistral = {"architectures": ["MistralForCausalLM"], "num_key_value_heads": 2}
    assert windows_of(config(**mistral)) == (4096,) * 4
    assert windows_of(config(**mistral, sliding_window=None)) == (0,) * 4
    assert windows_of(config(**mistral, sliding_window=7, layer_types=["sliding_attention"] * 4)) == (7,) * 4
    with pytest.raises(ModelError, match="mixes kinds of attention"):
        config(**mistral, layer_types=["full_attention", "sliding_attention"] * 2)


def test_qwen_windows() -> None:
    def windows(**changes: Any) -> tuple[int, ...]:
        return windows_of(read_spec({**QWEN2, **changes}, to_run=True))

    assert windows() == (0,) * 4
    assert windows(use_sliding_window=True) == (0,) * 4, "the first 28 layers see all unless set otherwise"
    assert windows(use_sliding_window=True, max_window_layers=1) == (0, 8, 8, 8)
    alternating = ["sliding_attention", "full_attention"] * 2
    assert windows(use_sliding_window=True, layer_types=alternating) == (8, 0, 8, 0)
    assert windows(layer_types=["full_attention"] * 4) == (0,) * 4


@pytest.mark.parametrize("variant", VARIANTS)
def test_sizes_are_those_of_the_saved_model(oracle_of: OracleOf, variant: str) -> None:
    oracle = oracle_of(variant)
    got = read_folder(oracle.folder, to_run=True)
    ends = ("e_score_correction_bias", "expert_bias")
    corrections = [one for name, one in oracle.model.named_buffers() if name.endswith(ends)]
    assert parameters(got) == sum(one.numel() for one in (*oracle.model.parameters(), *corrections))
    of_all = got.family in (
        "mistral",
        "mixtral",
        "phi3",
        "phimoe",
        "starcoder2",
    )  # the layers there do not know their window
    windows = [
        (oracle.model.config.sliding_window if of_all else getattr(layer.self_attn, "sliding_window", None)) or 0
        if getattr(layer.self_attn, "is_sliding", True)  # EXAONE's know theirs where they do not have it, too
        else 0
        for layer in oracle.model.model.layers
        if hasattr(layer, "self_attn")
    ]
    assert list(windows_of(got)) == windows
    assert got.checkpoint_dtype == "float32"


def test_a_text_part_may_lie_flat_beside_what_sees() -> None:
    flat = config(
        architectures=["Qwen2VLForConditionalGeneration"],
        num_key_value_heads=2,
        vision_config={"depth": 1},
        rope_scaling={"type": "mrope", "mrope_section": [2, 3, 3]},
    )
    assert flat.runs and flat.family == "qwen2" and flat.rope is not None and flat.rope.kind == "default"


def test_rotations_of_layers_in_the_old_spelling() -> None:
    """Read fields that transformers 5 moved into `rope_parameters` by kind of layer."""
    gemma = config(
        architectures=["Gemma3ForCausalLM"],
        num_hidden_layers=6,
        rope_theta=1e6,
        rope_local_base_freq=1e4,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    )
    assert [(rope.kind, rope.theta, rope.factor) for rope in gemma.ropes] == [("linear", 1e6, 8), ("default", 1e4, 1)]
    yarn = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 256}
    olmo = config(architectures=["Olmo3ForCausalLM"], rope_theta=5e5, rope_scaling=yarn)
    assert [(rope.kind, rope.theta) for rope in olmo.ropes] == [("yarn", 5e5), ("default", 5e5)]
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    phi = config(architectures=["Phi3ForCausalLM"], rope_scaling={"type": "su", **factors})
    assert phi.rope is not None and phi.rope.kind == "longrope"


def test_gemma_says_gelu_and_means_it_by_tanh() -> None:
    for said in (None, "gelu", "gelu_pytorch_tanh"):
        model = config(architectures=["GemmaForCausalLM"], num_key_value_heads=2, hidden_act=said)
        assert model.layers[0].mlp.activation == "gelu_pytorch_tanh"
    with pytest.raises(ModelError, match="hidden_act 'relu' is not supported"):
        config(architectures=["GemmaForCausalLM"], num_key_value_heads=2, hidden_act="relu")


def test_layers_without_rotation_are_marked_one_by_one() -> None:
    def rotated(**changes: Any) -> list[bool]:
        spec = config(architectures=["SmolLM3ForCausalLM"], **changes)
        return [layer.mixer.rope is not None for layer in spec.layers]

    assert rotated() == [True, True, True, False]
    assert rotated(no_rope_layers=[0, 1, 1, 0]) == [False, True, True, False]
    for marks in ([1, 0], 7, [1, 1, 1, "no"]):
        with pytest.raises(ModelError, match=r"no_rope_layers in .* must hold a 1"):
            rotated(no_rope_layers=marks)


# -- tokens and lengths -----------------------------------------------------------------------------------------------
def test_end_tokens_come_from_the_generation_config_first() -> None:
    data = {**BASE, "eos_token_id": 2, "bos_token_id": 1}
    assert read_spec(data).end_token_ids == (2,)
    assert read_spec(data, {"eos_token_id": [5, 6, 5]}).end_token_ids == (5, 6)
    assert read_spec(data, {"temperature": 0.6}).end_token_ids == (2,)
    assert read_spec(BASE, {"bos_token_id": 9}).bos_token_id == 9
    with pytest.raises(ModelError, match="eos_token_id must be a token id or a list of them, not 'two'"):
        config(eos_token_id="two")


def test_lengths() -> None:
    assert (config().default_model_len, config().longest_model_len) == (2048, 2048)
    yarn = config(rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048})
    assert (yarn.default_model_len, yarn.longest_model_len) == (8192, 8192)
    dynamic = config(rope_scaling={"type": "dynamic", "factor": 2.0})
    assert (dynamic.default_model_len, dynamic.longest_model_len) == (2048, 4096)
    factors = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    longrope = config(rope_scaling=factors, original_max_position_embeddings=512)
    assert (longrope.default_model_len, longrope.longest_model_len) == (512, 2048)


def test_dtype_in_both_spellings() -> None:
    assert config(torch_dtype="bfloat16").checkpoint_dtype == "bfloat16"
    assert config(dtype="torch.float16").checkpoint_dtype == "float16"


# -- arithmetic -------------------------------------------------------------------------------------------------------
def test_arithmetic_of_a_known_model() -> None:
    """Qwen2.5-0.5B: 494,032,768 parameters by its model card; 12 KiB of KV per token in bf16."""
    got = read_spec(
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
    assert parameters(got) == 494_032_768
    assert kv_bytes_per_token(got, "bfloat16") == 12_288
    assert kv_bytes_per_token(got, "bfloat16", quantized=True) == 2 * 24 * 2 * (64 + 4)
    assert weight_bytes(got, "float32") == 4 * parameters(got)
    assert weight_bytes(got, "bfloat16") == step_weight_bytes(got, "bfloat16") < 2.001 * parameters(got)
    flops = layer_flops_per_token(got) + logit_flops_per_token(got)
    assert flops == pytest.approx(2 * parameters(got), rel=1e-3)
    assert logit_flops_per_token(got) == 2 * 151_936 * 896
    assert attention_flops_per_token(got, 1000) == 24 * 4 * 896 * 1000


def test_int8_halves_the_layers_and_then_the_output_projection() -> None:
    got = config(num_hidden_layers=7)
    layers, table = 7 * layer_matrix_parameters(got, got.layers[0]), table_parameters(got)
    attention, mlp = got.layers[0].mixer, got.layers[0].mlp
    outputs = attention.qkv_rows + 2 * mlp.width + 2 * got.hidden_size
    saved = step_weight_bytes(got, "bfloat16") - step_weight_bytes(got, "bfloat16", "int8")
    assert saved == layers * (1 - 2 / 32) - 7 * 4 * outputs
    more = step_weight_bytes(got, "bfloat16", "int8") - step_weight_bytes(got, "bfloat16", "int8-all")
    assert more == table * (1 - 2 / 32) - 4 * got.vocab_size


@pytest.mark.parametrize(
    ("given", "bytes_of_a_weight"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 0.5 + 4 / 32),  # a scale and an offset
        ({"quant_method": "gptq", "bits": 4, "group_size": -1, "sym": True}, 0.5 + 2 / 32),
        ({"quant_method": "gptq", "bits": 4, "group_size": 96, "sym": True}, 0.5 + 2 / 32),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1 + 2 / 32),
    ],
)
def test_layers_that_come_quantized_take_what_they_are_held_in(given: dict[str, Any], bytes_of_a_weight: float) -> None:
    plain, got = config(), config(quantization_config=given)
    layers = len(plain.layers) * layer_matrix_parameters(plain, plain.layers[0])
    attention, mlp = got.layers[0].mixer, got.layers[0].mlp
    scales = len(plain.layers) * 4 * (attention.qkv_rows + 2 * mlp.width + 2 * got.hidden_size)
    saved = weight_bytes(plain, "bfloat16") - weight_bytes(got, "bfloat16")
    assert saved == pytest.approx((2 - bytes_of_a_weight) * layers - scales, abs=1)


@pytest.mark.parametrize(("group_size", "scale"), [(16, 4 / 16), (32, 4 / 32), (64, 4 / 32), (128, 4 / 32)])
def test_int4_has_half_a_byte_and_its_share_of_a_scale_and_an_offset(group_size: int, scale: float) -> None:
    got = config(num_hidden_layers=7)
    layers, table = 7 * layer_matrix_parameters(got, got.layers[0]), table_parameters(got)
    int8 = [step_weight_bytes(got, "bfloat16", held) for held in ("int8", "int8-all")]
    int4 = [step_weight_bytes(got, "bfloat16", held, group_size) for held in ("int4", "int4-all")]
    values = 7 * got.layers[0].mixer.value_elements(got.hidden_size)  # in int8
    assert int8[0] - int4[0] == pytest.approx((layers - values) * (0.5 + 2 / 32 - scale), abs=1)
    assert int8[1] - int4[1] == pytest.approx((layers - values + table) * (0.5 + 2 / 32 - scale), abs=1)


def test_an_untied_model_has_two_tables_and_reads_one() -> None:
    got = config()
    assert weight_bytes(got, "bfloat16") - step_weight_bytes(got, "bfloat16") == 2 * 64_000


def test_a_window_bounds_attention() -> None:
    mistral = config(architectures=["MistralForCausalLM"], num_key_value_heads=4, sliding_window=10)
    assert attention_flops_per_token(mistral, 10) == attention_flops_per_token(mistral, 10_000)


def test_a_window_bounds_what_a_decode_reads() -> None:
    machine = Machine(1e9, {"bfloat16": 1e15, "float32": 1e15, "int8": 1e15})
    mistral = config(architectures=["MistralForCausalLM"], num_key_value_heads=4, sliding_window=10)
    near, far = (decode_ceiling(mistral, machine, 3, context) for context in (10, 10_000))
    assert near.seconds == far.seconds
    read = step_weight_bytes(mistral, "bfloat16") + 30 * kv_bytes_per_token(mistral, "bfloat16")
    assert near.seconds * 1e9 == pytest.approx(read)


# -- refusals ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel is an architecture that is not supported. Supported"),
        ({"architectures": ["MiniMaxM2ForCausalLM"], "num_local_experts": 8}, "a mixture of experts"),
        ({"architectures": ["JetMoeForCausalLM"]}, "a mixture of experts"),
        ({"architectures": None}, "names neither architectures nor model_type"),
        ({"architectures": "LlamaForCausalLM"}, "must be a list of names"),
        ({"quantization_config": {"quant_method": "gptq"}}, r"the checkpoint is quantized \(gptq\)"),
        ({"hidden_act": "quick_gelu"}, "hidden_act 'quick_gelu' is not supported"),
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
        read_spec({**QWEN2, **changes})


def test_folders_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config.json \(it is empty\)"):
        read_folder(tmp_path, to_run=True)
    with pytest.raises(ModelError, match="it does not exist"):
        read_folder(tmp_path / "absent", to_run=True)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ModelError, match=r"it holds notes.txt\)"):
        read_folder(tmp_path, to_run=True)
    with pytest.raises(ModelError, match="it is a file"):
        read_folder(tmp_path / "notes.txt", to_run=True)


def test_broken_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": ')
    with pytest.raises(ModelError, match=r"config\.json is not valid JSON: .* at line 1, column 16"):
        read_folder(tmp_path, to_run=True)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ModelError, match="holds a JSON list where an object is expected"):
        read_folder(tmp_path, to_run=True)
    (tmp_path / "config.json").write_text(json.dumps(BASE))
    (tmp_path / "generation_config.json").write_text("oops")
    with pytest.raises(ModelError, match=r"generation_config\.json is not valid JSON"):
        read_folder(tmp_path, to_run=True)
