"""Families in GGUF: what the metadata say is what config.json says, and every tensor is found and is what it was.

The models are those that `transformers` builds; what llama.cpp's converter does to each is written down in
`gguf_files`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from execution.driver import Driver, backends
from gguf import GGMLQuantizationType as Type
from gguf_files import add, convert, finish, put
from msgspec.structs import replace
from safetensors.numpy import load_file

from inflight.execution.backends import int8, open_backend
from inflight.execution.checkpoints.checkpoint import open_checkpoint
from inflight.execution.checkpoints.gguf.gguf_checkpoint import GGUFCheckpoint
from inflight.execution.weights import load_weights
from inflight.models.errors import ModelError
from inflight.models.gguf.architectures import ARCHITECTURES
from inflight.models.gguf.config import config_of, generation_of
from inflight.models.gguf.gguf_model import GGUFModel
from inflight.models.registry import families_naming, read_folder
from inflight.models.spec import ModelSpec

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256,
}
HEADS = {"head_dim": 24}
EXPERTS = {"moe_intermediate_size": 24, "num_experts": 6, "num_experts_per_tok": 2}
ROUTED = {"moe_intermediate_size": 24, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 2}
LATENT = {**ROUTED, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16}
LATENT |= {"v_head_dim": 12, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}
STRETCHED = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 1e4}
STRETCHED |= {"mscale": 1.25, "mscale_all_dim": 1.25}
LINEAR = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8}
LINEAR |= {"linear_value_head_dim": 12, "head_dim": 24}
WHOLE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}


def moe(c: dict[str, Any]) -> dict[str, Any]:
    """Keys of mixtures."""
    names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    count = next(c[one] for one in names if one in c)
    picked = next(c[one] for one in ("num_experts_per_tok", "moe_k", "moe_topk") if one in c)
    width = c.get("moe_intermediate_size") or c["intermediate_size"]
    return {"expert_count": count, "expert_used_count": picked, "expert_feed_forward_length": width}


def routed(c: dict[str, Any]) -> dict[str, Any]:
    return {
        **moe(c),
        "expert_shared_count": c["n_shared_experts"],
        "leading_dense_block_count": c["first_k_dense_replace"],
        "expert_weights_scale": float(c["routed_scaling_factor"]),
        "expert_weights_norm": bool(c["norm_topk_prob"]),
        "expert_gating_func": 2 if c["model_type"] != "deepseek_v2" else 1,
    }


def latent(c: dict[str, Any]) -> dict[str, Any]:
    head = c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
    return {
        **routed(c),
        "expert_group_count": c["n_group"],
        "expert_group_used_count": c["topk_group"],
        **({"attention__q_lora_rank": c["q_lora_rank"]} if c["q_lora_rank"] else {}),
        "attention__kv_lora_rank": c["kv_lora_rank"],
        "attention__key_length_mla": head,
        "attention__value_length_mla": c["v_head_dim"],
        "attention__head_count_kv": 1,
        "attention__key_length": c["kv_lora_rank"] + c["qk_rope_head_dim"],
        "rope__dimension_count": c["qk_rope_head_dim"],
    }


def latent_stretched(c: dict[str, Any]) -> dict[str, Any]:
    rope = c["rope_parameters"]
    return {
        **latent(c),
        "rope__scaling__type": "yarn",
        "rope__scaling__factor": float(rope["factor"]),
        "rope__scaling__original_context_length": rope["original_max_position_embeddings"],
        "rope__scaling__yarn_log_multiplier": 0.1 * rope["mscale_all_dim"],
    }


def latent_older(c: dict[str, Any]) -> dict[str, Any]:
    """Before keys and values were stored separately."""
    head = {"attention__key_length": c["qk_nope_head_dim"] + c["qk_rope_head_dim"]}
    kept = {key: value for key, value in latent(c).items() if not key.endswith(("_mla", "head_count_kv"))}
    return {**kept, **head, "attention__value_length": c["v_head_dim"], "attention__head_count_kv": 4}


def window(c: dict[str, Any]) -> dict[str, Any]:
    return {"attention__sliding_window": c["sliding_window"]}


def phi3(c: dict[str, Any]) -> dict[str, Any]:
    return {**window(c), "rope__scaling__original_context_length": c["original_max_position_embeddings"]}


def caps(c: dict[str, Any]) -> dict[str, Any]:
    names = ("attn_logit_softcapping", "final_logit_softcapping")
    return {**window(c), **{name: float(c[name]) for name in names if c.get(name)}}


def linear(c: dict[str, Any]) -> dict[str, Any]:
    return {
        "ssm__conv_kernel": c["linear_conv_kernel_dim"],
        "ssm__state_size": c["linear_key_head_dim"],
        "ssm__group_count": c["linear_num_key_heads"],
        "ssm__time_step_rank": c["linear_num_value_heads"],
        "ssm__inner_size": c["linear_num_value_heads"] * c["linear_value_head_dim"],
        "full_attention_interval": 4,
    }


def granite(c: dict[str, Any]) -> dict[str, Any]:
    names = {"embedding_multiplier": "embedding_scale", "residual_multiplier": "residual_scale"}
    names |= {"attention_multiplier": "attention__scale", "logits_scaling": "logit_scale"}
    return {new: float(c[old]) for old, new in names.items()}


def granitemoe(c: dict[str, Any]) -> dict[str, Any]:
    """The width of experts is that of dense MLPs."""
    found = {key: value for key, value in moe(c).items() if key != "expert_feed_forward_length"} | granite(c)
    shared = c.get("shared_intermediate_size")
    return {**found, "expert_shared_feed_forward_length": shared} if shared else found


def ernie_moe(c: dict[str, Any]) -> dict[str, Any]:
    return {
        **moe(c),
        "interleave_moe_layer_step": c["moe_layer_interval"],
        "leading_dense_block_count": c["moe_layer_start_index"],
        "expert_shared_count": c["moe_num_shared_experts"],
    }


def phimoe(c: dict[str, Any]) -> dict[str, Any]:
    return {**granitemoe({**c, **FACTORS}), "rope__scaling__original_context_length": 64}


def lfm2moe(c: dict[str, Any]) -> dict[str, Any]:
    own = {"leading_dense_block_count": c["num_dense_layers"], "expert_gating_func": 2}
    return {**moe(c), **own, "shortconv__l_cache": c["conv_L_cache"]}


def windows(c: dict[str, Any]) -> dict[str, Any]:
    """With a list of which layers have one."""
    return {**window(c), "attention__sliding_window_pattern": [one == "sliding_attention" for one in c["layer_types"]]}


def yarn(c: dict[str, Any]) -> dict[str, Any]:
    rope = c["rope_parameters"]
    return {
        "rope__scaling__type": "yarn",
        "rope__scaling__factor": float(rope["factor"]),
        "rope__scaling__original_context_length": rope["original_max_position_embeddings"],
    }


def mistral3(c: dict[str, Any]) -> dict[str, Any]:
    rope = c["rope_parameters"]
    grown = {"attention__temperature_scale": rope["llama_4_scaling_beta"]}
    return {**yarn(c), **grown, "rope__scaling__yarn_log_multiplier": rope["mscale_all_dim"]}


def scaled(c: dict[str, Any]) -> dict[str, Any]:
    return {"logit_scale": float(c["logit_scale"])}


def partly(c: dict[str, Any]) -> dict[str, Any]:
    """Rotated; heads are not said to be of another width than they would be anyway."""
    head = c["hidden_size"] // c["num_attention_heads"]
    return {"rope__dimension_count": int(head * c["rope_parameters"]["partial_rotary_factor"])}


def short_convolution(c: dict[str, Any]) -> dict[str, Any]:
    return {"shortconv__l_cache": c["conv_L_cache"]}


def nothing(c: dict[str, Any]) -> dict[str, Any]:
    return {}


def gpt_oss(c: dict[str, Any]) -> dict[str, Any]:
    rope = c["rope_parameters"]
    return {
        **moe(c),
        **window(c),
        "rope__scaling__type": "yarn",
        "rope__scaling__factor": float(rope["factor"]),
        "rope__scaling__original_context_length": rope["original_max_position_embeddings"],
    }


def gemma4(c: dict[str, Any]) -> dict[str, Any]:
    """Lists of what layers with a window have otherwise; a full layer's heads stand in `per_layer_config`."""
    sliding = [kind == "sliding_attention" for kind in c["layer_types"]]
    shared = c["num_kv_shared_layers"]
    wide = [c["use_double_wide_mlp"] and layer >= len(sliding) - shared for layer in range(len(sliding))]
    own = [c["per_layer_config"].get(str(layer), {}) for layer in range(len(sliding))]
    found = {
        **window(c),
        "attention__sliding_window_pattern": sliding,
        "attention__shared_kv_layers": shared,
        "attention__key_length": own[-1]["head_dim"],
        "attention__key_length_swa": c["head_dim"],
        "attention__head_count_kv": [one.get("num_key_value_heads", c["num_key_value_heads"]) for one in own],
        "rope__freq_base_swa": c["rope_parameters"]["sliding_attention"]["rope_theta"],
        "embedding_length_per_layer_input": c["hidden_size_per_layer_input"],
        "feed_forward_length": [(1 + one) * c["intermediate_size"] for one in wide],
    }
    if c["final_logit_softcapping"]:
        found["final_logit_softcapping"] = float(c["final_logit_softcapping"])
    return {**found, **moe({**c, "num_experts_per_tok": c["top_k_experts"]})} if c["enable_moe_block"] else found


GEMMA4 = {
    **HEADS,
    "global_head_dim": 32,
    "sliding_window": 32,
    "hidden_size_per_layer_input": 0,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
# (configuration class, its settings, the architecture in GGUF, its keys beside the usual ones)
CASES: list[tuple[str, dict[str, Any], str, Callable[[dict[str, Any]], dict[str, Any]]]] = [
    ("Llama", {"attention_bias": True}, "llama", nothing),
    ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}, "llama", moe),
    ("Qwen2", {}, "qwen2", nothing),
    ("Qwen3", {**HEADS, "tie_word_embeddings": True}, "qwen3", nothing),
    ("Qwen2Moe", {**EXPERTS, "shared_expert_intermediate_size": 40}, "qwen2moe", moe),
    ("Qwen3Moe", {**HEADS, **EXPERTS, "norm_topk_prob": True}, "qwen3moe", moe),
    ("Gemma", HEADS, "gemma", nothing),
    ("Gemma2", {**HEADS, "query_pre_attn_scalar": 24, "sliding_window": 32}, "gemma2", caps),
    ("Gemma3Text", {**HEADS, "query_pre_attn_scalar": 24, "sliding_window": 32}, "gemma3", window),
    ("Gemma4Text", {**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1}, "gemma4", gemma4),
    (
        "Gemma4Text",
        {
            **GEMMA4,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": 96,
            "final_logit_softcapping": 30.0,
        },
        "gemma4",
        gemma4,
    ),
    ("Gemma4Text", {**GEMMA4, "enable_moe_block": True, "top_k_experts": 2, **EXPERTS}, "gemma4", gemma4),
    ("Phi3", {"sliding_window": 64}, "phi3", phi3),
    ("GptOss", {**HEADS, "num_local_experts": 4, "num_experts_per_tok": 2}, "gpt-oss", gpt_oss),
    ("SmolLM3", {}, "smollm3", nothing),
    ("Olmo2", {}, "olmo2", nothing),
    ("Olmo3", {"sliding_window": 32}, "olmo2", window),
    ("Granite", {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 8.0}, "granite", granite),
    ("Glm4", {"head_dim": 24}, "glm4", nothing),
    ("Glm4Moe", {**HEADS, **ROUTED, "use_qk_norm": True, "attention_bias": True}, "glm4moe", routed),
    ("DeepseekV2", {**LATENT, "topk_method": "group_limited_greedy"}, "deepseek2", latent),
    ("DeepseekV2", {**LATENT, "q_lora_rank": None, "n_group": 1}, "deepseek2", latent_older),
    ("DeepseekV3", {**LATENT, "rope_parameters": STRETCHED}, "deepseek2", latent_stretched),
    ("Lfm2", {"layer_types": ["conv", "full_attention", "conv", "conv"], "conv_bias": True}, "lfm2", short_convolution),
    ("Qwen3_5Text", LINEAR, "qwen35", linear),
    ("Qwen3_5Text", {**LINEAR, "attention_bias": True, "rope_parameters": WHOLE}, "qwen35", linear),
    (
        "Qwen3Next",
        {**LINEAR, **EXPERTS, "shared_expert_intermediate_size": 40},
        "qwen3next",
        lambda c: {**linear(c), **moe(c), "expert_shared_feed_forward_length": 40},
    ),
    (
        "Qwen3_5MoeText",
        {**LINEAR, **EXPERTS, "shared_expert_intermediate_size": 40},
        "qwen35moe",
        lambda c: {**linear(c), **moe(c), "expert_shared_feed_forward_length": 40},
    ),
]
FACTORS = {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.1}
FACTORS |= {"logits_scaling": 8.0}
PARTLY = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}
YARN = {key: value for key, value in STRETCHED.items() if not key.startswith("mscale")}
GROWN = {**YARN, "llama_4_scaling_beta": 0.5, "mscale": 1.0, "mscale_all_dim": 1.0}
SHARPENED = math.sqrt(1 + math.log(4) / math.log(64))
LONG = {"rope_type": "longrope", "short_factor": [1.5] * 8, "long_factor": [2.5] * 8, "rope_theta": 1e4}
LONG |= {"short_mscale": SHARPENED, "long_mscale": SHARPENED, "original_max_position_embeddings": 64}
TURNS = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
CASES += [
    ("Qwen2", {}, "qwen2vl", nothing),
    ("Glm4", {"head_dim": 24, "rope_parameters": WHOLE}, "glm4", nothing),
    ("Ministral3", {**HEADS, "rope_parameters": GROWN}, "mistral3", mistral3),
    ("Ernie4_5", {**HEADS, "use_bias": False}, "ernie4_5", nothing),
    (
        "Ernie4_5_Moe",
        {"moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 24, "moe_layer_end_index": 2},
        "ernie4_5-moe",
        ernie_moe,
    ),
    (
        "Ernie4_5_Moe",
        {
            **{"moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 24, "moe_num_shared_experts": 0},
            **{"moe_layer_interval": 2, "tie_word_embeddings": False},
        },
        "ernie4_5-moe",
        ernie_moe,
    ),
    ("GraniteMoe", {**FACTORS, "num_local_experts": 5, "num_experts_per_tok": 2}, "granitemoe", granitemoe),
    (
        "GraniteMoeShared",
        {**FACTORS, "num_local_experts": 5, "num_experts_per_tok": 2, "shared_intermediate_size": 40},
        "granitemoe",
        granitemoe,
    ),
    ("Exaone4", {**HEADS, "sliding_window": 32, "layer_types": TURNS}, "exaone4", windows),
    (
        "Exaone4",
        {"sliding_window": None, "sliding_window_pattern": None, "layer_types": ["full_attention"] * 4},
        "exaone4",
        nothing,
    ),
    ("Apertus", {"rope_parameters": LLAMA3, "attention_bias": True}, "apertus", nothing),
    ("Apertus", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, "apertus", nothing),
    ("HunYuanDenseV1", {**HEADS, "attention_bias": True}, "hunyuan-dense", nothing),
    (
        "HunYuanMoEV1",
        {
            **HEADS,
            **{"num_experts": 6, "moe_topk": [3] * 4},
        },
        "hunyuan-moe",
        lambda c: moe({**c, "moe_topk": 3}),
    ),
    ("Arcee", {"rope_parameters": YARN}, "arcee", yarn),
    ("Arcee", {"attention_bias": True, "mlp_bias": True}, "arcee", nothing),
    ("SeedOss", {**HEADS, "attention_bias": True, "attention_out_bias": False}, "seed_oss", nothing),
    ("Cohere", {"logit_scale": 0.25, "layer_norm_eps": 1e-3}, "command-r", scaled),
    (
        "Cohere2",
        {"logit_scale": 0.25, "layer_norm_eps": 1e-3, "sliding_window": 32, "layer_types": TURNS},
        "cohere2",
        lambda c: {**scaled(c), **window(c)},
    ),
    ("Phi", {"num_key_value_heads": 4, "layer_norm_eps": 1e-3, "rope_parameters": PARTLY}, "phi2", partly),
    (
        "Phimoe",
        {"num_local_experts": 5, "attention_bias": True, "lm_head_bias": True, "rope_parameters": LONG},
        "phimoe",
        phimoe,
    ),
    ("Nemotron", {"norm_eps": 1e-3, "attention_bias": True, "rope_parameters": PARTLY}, "nemotron", partly),
    ("Starcoder2", {"norm_epsilon": 1e-3}, "starcoder2", nothing),
    ("Olmoe", {"num_experts": 6, "num_experts_per_tok": 2}, "olmoe", moe),
    (
        "Lfm2Moe",
        {**EXPERTS, "num_dense_layers": 1, "layer_types": ["conv", "full_attention", "conv", "conv"]},
        "lfm2moe",
        lfm2moe,
    ),
]
IDS = [name for name, *_ in CASES]
# Stacked in a folder, and each for itself in a file: linear attention head by head; gate and up, of experts all.
SEPARATE = ("in_proj_qkvz", "input_linear", "block_sparse_moe.output_linear")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], tuple[Path, Path]]:
    """Number of a case → its folder, and its file."""
    found: dict[int, tuple[Path, Path]] = {}

    def make(number: int) -> tuple[Path, Path]:
        if number not in found:
            name, settings, architecture, more = CASES[number]
            folder = tmp_path_factory.mktemp(name)
            saved(name, settings, folder)
            config = json.loads((folder / "config.json").read_text())
            if architecture == "lfm2":
                config["intermediate_size"] = load_file(folder / "model.safetensors")[
                    "model.layers.0.feed_forward.w1.weight"
                ].shape[0]
                (folder / "config.json").write_text(json.dumps(config | {"block_auto_adjust_ff_dim": False}))
            found[number] = folder, convert(folder, folder / "model.gguf", architecture, **more(config))
        return found[number]

    return make


def saved(name: str, settings: dict[str, Any], folder: Path) -> None:
    """A model with random weights, norms included."""
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **settings})
    torch.manual_seed(len(name))
    model = getattr(transformers, f"{name.removesuffix('Text')}ForCausalLM")(config)
    with torch.no_grad():
        for one in model.parameters():
            one.uniform_(-1, 1)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(config.to_json_string(use_diff=False))
    (folder / "generation_config.json").unlink(missing_ok=True)


@pytest.mark.parametrize("number", range(len(CASES)), ids=IDS)
def test_metadata_say_what_config_json_says(made: Callable[[int], tuple[Path, Path]], number: int) -> None:
    folder, file = made(number)

    def compared(spec: ModelSpec) -> ModelSpec:
        return replace(spec, name="", checkpoint_dtype=None, end_token_ids=(), bos_token_id=None)

    assert compared(read_folder(file)) == compared(read_folder(folder))


@pytest.mark.parametrize("number", range(len(CASES)), ids=IDS)
def test_every_tensor_is_what_it_was(made: Callable[[int], tuple[Path, Path]], number: int) -> None:
    folder, file = made(number)
    found, tied = GGUFCheckpoint(file), json.loads((folder / "config.json").read_text()).get("tie_word_embeddings")
    for name, expected in load_file(folder / "model.safetensors").items():
        if ".mlp.experts.gate_up_proj" in name or ".mlp.experts.down_proj" in name:
            for one, part in of_each_expert(name, expected):
                assert np.array_equal(found.tensor(one, part.shape), part), one
        elif any(part in name for part in SEPARATE):  # (`test_logits_are_those_of_the_folder`)
            assert name not in found
        elif name.endswith((".act_fn.beta", ".act_fn.eps")):  # numbers that were not changed
            assert expected in (np.float32(0.5), np.float32(-1e-6))
        elif name != "lm_head.weight" or not tied:
            assert name in found and np.allclose(found.tensor(name, expected.shape), expected, rtol=1e-6, atol=1e-6), (
                name
            )


@pytest.mark.parametrize("number", range(len(CASES)), ids=IDS)
def test_logits_are_those_of_the_folder(
    made: Callable[[int], tuple[Path, Path]], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Take all families that run."""
    folder, file = made(number)
    if not read_folder(folder).runs:
        pytest.skip("described only")
    monkeypatch.setattr("execution.driver.Checkpoint", open_checkpoint)
    prompt = np.random.default_rng(1).integers(0, SIZES["vocab_size"], 40)
    drivers = [Driver.of(one, "float32", "reference") for one in (folder, file)]
    expected, found = (one.prefill(one.start(prompt), 16) for one in drivers)
    assert np.isfinite(expected).all() and expected.std() > 0
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def test_every_family_that_runs_is_read_from_files() -> None:
    """Mistral's files are Llama's; Ministral's windows no converter writes, and of encoders none is read."""
    classes = {f"{name.removesuffix('Text')}ForCausalLM" for name in IDS}
    families = [family for family in families_naming("") if family.runs and family.generates]
    unread = {family.name for family in families if not classes & set(family.architectures)}
    assert unread == {"mistral", "ministral"}
    assert {architecture for _, _, architecture, _ in CASES} == set(ARCHITECTURES)


@pytest.mark.parametrize("number", [n for n, name in enumerate(IDS) if name.startswith("Deepseek")])
def test_latent_attention_says_the_folders_tokens(
    made: Callable[[int], tuple[Path, Path]], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("execution.driver.Checkpoint", open_checkpoint)
    prompt = np.random.default_rng(2).integers(0, SIZES["vocab_size"], 30)
    outputs = [Driver.of(one, "float32", backends()[-1]).greedy(prompt, 48) for one in made(number)]
    assert outputs[0] == outputs[1] and len(set(outputs[0])) > 3


@pytest.mark.parametrize("kind", [Type.Q8_0, Type.Q5_1, Type.F16])
def test_a_table_of_token_inputs_is_held_in_bytes_beside_quantized_matrices(
    made: Callable[[int], tuple[Path, Path]], tmp_path: Path, kind: Type
) -> None:
    """Whatever type it has in the file, and read in pieces; the rest of the model is in Q8_0."""
    number = next(n for n, (_, settings, *_) in enumerate(CASES) if settings.get("hidden_size_per_layer_input"))
    folder, _ = made(number)
    more = gemma4(json.loads((folder / "config.json").read_text()))

    def types(name: str, values: np.ndarray) -> Type:
        return kind if name.startswith("per_layer_token") else Type.F32 if values.shape[-1] % 32 else Type.Q8_0

    file = convert(folder, tmp_path / "model.gguf", "gemma4", types, **more)
    backend = open_backend("float32", 1, "reference")
    found = load_weights(read_folder(file, to_run=True), GGUFCheckpoint(file), backend, 16).token_inputs
    assert found is not None
    name = "model.embed_tokens_per_layer.weight"
    values = load_file(folder / "model.safetensors")[name]
    rows, columns = values.shape
    assert found.table.nbytes == rows * columns + rows * 4 * 4  # a scale for each of four layers
    from_file = GGUFCheckpoint(file).tensor(name, values.shape).astype(np.float32)
    expected, scales = int8.quantize(from_file.reshape(rows * 4, -1))
    assert np.array_equal(found.table.weight.values, expected) and np.array_equal(
        found.table.weight.scales[:, 0], scales
    )


def of_each_expert(name: str, stack: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """gpt-oss's stacks as the experts that they are of."""
    at, kind = name.partition("experts.")[0] + "experts", "bias" if name.endswith("_bias") else "weight"
    rows = stack if kind == "bias" else stack.swapaxes(1, 2)
    parts = {"down": rows} if "down" in name else {"gate": rows[:, ::2], "up": rows[:, 1::2]}
    return [(f"{at}.{n}.{part}_proj.{kind}", one[n]) for part, one in parts.items() for n in range(len(stack))]


# -- what no family's configuration has --------------------------------------------------------------------------------
def file_with(file: Path, tensors: Mapping[str, list[float]] = {}, **keys: Any) -> Path:
    """A small Llama, with more tensors and keys (`__` for a dot)."""
    architecture = keys.pop("architecture", "llama")
    writer = gguf.GGUFWriter(file, architecture)
    for key, value in {
        "context_length": 131_072,
        "embedding_length": 64,
        "block_count": 1,
        "feed_forward_length": 96,
        "attention__head_count": 1,
        "rope__freq_base": 5e5,
        "rope__dimension_count": 64,
        "attention__layer_norm_rms_epsilon": 1e-5,
        **keys,
    }.items():
        name = key.replace("__", ".")
        put(writer, name if name.startswith(("tokenizer.", "general.")) else f"{architecture}.{name}", value)
    add(writer, "token_embd.weight", np.zeros((32, 64), np.float32))
    for name, values in tensors.items():
        add(writer, name, np.array(values, np.float32))
    return finish(writer, file)


def divisors(factor: float, original: int, low: float = 1.0, high: float = 4.0) -> list[float]:
    """Make divisors of Llama 3's frequencies, as the converter writes them."""
    found = []
    for at in range(0, 64, 2):
        length = 2 * math.pi * 5e5 ** (at / 64)
        smooth = min(1.0, max(0.0, (original / length - low) / (high - low)))
        found.append(1 / ((1 - smooth) / factor + smooth))
    return found


def test_llama3s_rope_is_found_in_its_divisors(tmp_path: Path) -> None:
    for factor, original in ((8.0, 8192), (32.0, 8192), (4.0, 4096)):
        file = file_with(tmp_path / "model.gguf", {"rope_freqs.weight": divisors(factor, original)})
        assert config_of(GGUFModel(file))["rope_scaling"] == {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": original,
        }
    file = file_with(tmp_path / "model.gguf", {"rope_freqs.weight": [1.0, 3.0] * 16})
    with pytest.raises(ModelError, match="divides the frequencies of the rotation by up to 3, and not as Llama 3 does"):
        read_folder(file)


def test_other_scalings_are_spelled_as_config_json_has_them(tmp_path: Path) -> None:
    scaled = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 32}
    found = config_of(GGUFModel(file_with(tmp_path / "yarn.gguf", **scaled)))["rope_scaling"]
    assert isinstance(found, dict) and (found["rope_type"], found["factor"]) == ("yarn", 4.0)
    assert found["original_max_position_embeddings"] == 32 and found["attention_factor"] is None
    scaled["rope__scaling__type"] = "linear"
    found = config_of(GGUFModel(file_with(tmp_path / "linear.gguf", **scaled)))["rope_scaling"]
    assert found == {"rope_type": "linear", "factor": 4.0}
    factors = {f"rope_factors_{one}.weight": [1.0, 2.0] for one in ("short", "long")}
    found = config_of(GGUFModel(file_with(tmp_path / "long.gguf", factors, **scaled)))["rope_scaling"]
    assert isinstance(found, dict) and found["long_factor"] == [1.0, 2.0]


def test_every_token_that_ends_an_answer_is_found(tmp_path: Path) -> None:
    tokens = ["a", "<|eot_id|>", "<|end|>", "</s>", "<|im_end|>"]
    keys = {"tokenizer__ggml__tokens": tokens, "tokenizer__ggml__token_type": [1, 3, 3, 3, 1]}
    keys |= {"tokenizer__ggml__eos_token_id": 3, "tokenizer__ggml__eot_token_id": 1}
    file = file_with(tmp_path / "model.gguf", **keys)
    assert read_folder(file).end_token_ids == (1, 2, 3)  # the last is a text like any other


def test_a_token_that_the_file_says_is_none_is_none(tmp_path: Path) -> None:
    """Converters write -1 as an unsigned number where a vocabulary has no beginning token."""
    tokens = {"tokenizer__ggml__tokens": ["a", "<|end|>"], "tokenizer__ggml__token_type": [1, 3]}
    keys = {f"tokenizer__ggml__{one}_token_id": 2**32 - 1 for one in ("bos", "eos", "eot", "padding")}
    spec = read_folder(file_with(tmp_path / "model.gguf", **tokens, **keys))
    assert (spec.bos_token_id, spec.end_token_ids) == (None, (1,))


def test_how_the_authors_sample_is_read(tmp_path: Path) -> None:
    keys = {"general__sampling__temp": 0.6, "general__sampling__top_k": 20, "general__sampling__top_p": 0.95}
    found = generation_of(GGUFModel(file_with(tmp_path / "model.gguf", **keys)))
    assert {key: value for key, value in found.items() if value} == {"temperature": 0.6, "top_k": 20, "top_p": 0.95}


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (
            {"architecture": "mamba"},
            "of the architecture 'mamba', which is not read from GGUF; read are apertus, arcee, cohere2",
        ),
        ({"architecture": "granitehybrid"}, "of the architecture 'granitehybrid', which is not read from GGUF"),
        ({"block_count": 2**31}, "block_count in .* makes 2,147,483,648 layers"),
        ({"block_count": 0}, "makes 0 layers"),
        ({"embedding_length": "wide"}, "llama.embedding_length must be a whole number, not 'wide'"),
        (
            {"block_count": 2, "attention__head_count": [4, 2]},
            r"head_count in .* differs from layer to layer \(\[2, 4\]\)",
        ),
        ({"block_count": 2, "feed_forward_length": [96, 64]}, "feed_forward_length in .* differs from layer to layer"),
        ({"block_count": 3, "attention__head_count": [4, 2]}, "head_count in .* has 2 values for 3 layers"),
        ({"attention__head_count": 0}, "llama.attention.head_count in .* must be a whole number above 0"),
        ({"architecture": "deepseek2"}, r"lacks the key deepseek2\.attention\.key_length"),
    ],
)
def test_metadata_that_make_no_model(tmp_path: Path, keys: dict[str, Any], sentence: str) -> None:
    file = file_with(tmp_path / "model.gguf", **keys)
    with pytest.raises(ModelError, match=sentence):
        read_folder(file)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"embedding_length": 0}, r"^llama\.embedding_length in .*bad\.gguf must be a whole number above 0, not 0\.$"),
        ({"attention__key_length": 0}, r"^llama\.attention\.key_length in .*bad\.gguf must be"),
        ({"context_length": 2**31}, r"^llama\.context_length in .*bad\.gguf is 2147483648, more than any model has"),
        (
            {"attention__head_count_kv": 3},
            r"bad\.gguf: llama\.attention\.head_count \(1\) must be a multiple",
        ),
        ({"rope__freq_base": 0.5}, r"bad\.gguf: llama\.rope\.freq_base must be larger than 1, not 0\.5"),
    ],
)
def test_errors_in_keys_name_the_file(tmp_path: Path, keys: dict[str, Any], sentence: str) -> None:
    """Which has no config.json."""
    with pytest.raises(ModelError, match=sentence) as raised:
        read_folder(file_with(tmp_path / "bad.gguf", **keys))
    assert "config.json" not in str(raised.value)
