"""Families: what each makes of its fields is what `transformers` builds of them, element by element."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from inflight.models import families
from inflight.models.arithmetic import layer_matrix_parameters, parameters, table_parameters
from inflight.models.errors import ModelError
from inflight.models.family import Family
from inflight.models.mixers.attention import Attention
from inflight.models.mixers.deltanet import LinearAttention
from inflight.models.mixers.mamba import Mamba
from inflight.models.mixers.shortconv import ShortConvolution
from inflight.models.mlps.dense import Dense
from inflight.models.mlps.moe import MoE, Router
from inflight.models.registry import families_naming, read_spec
from inflight.models.runnable import refuse_what_does_not_run
from inflight.models.spec import LayerSpec, Pooler

FAMILIES = families_naming("")
SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
HEADS = {"head_dim": 24}
EXPERTS = {"moe_intermediate_size": 24, "num_experts": 6, "num_experts_per_tok": 2}
SHARED = {"shared_expert_intermediate_size": 40}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
ROUTED = {"moe_intermediate_size": 24, "n_routed_experts": 8, "num_experts_per_tok": 2}
LATENT = {
    **ROUTED,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "n_shared_experts": 2,
}
LINEAR = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
}
ERNIE = {"moe_intermediate_size": 24, "moe_num_experts": 6, "moe_k": 2}
PER_LAYER = {"hidden_size_per_layer_input": 12, "vocab_size_per_layer_input": 330}
GEMMA4 = {
    **HEADS,
    "global_head_dim": 40,
    "hidden_size_per_layer_input": 0,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
# (configuration class, settings beside the sizes)
CASES: list[tuple[str, dict[str, Any]]] = [
    ("Llama", {"attention_bias": True, "mlp_bias": True}),
    ("Mistral", HEADS),
    ("Ministral", HEADS),
    ("Ministral3", HEADS),
    ("Qwen2", {}),
    ("Qwen3", {**HEADS, "attention_bias": True}),
    ("Mixtral", LOCAL),
    ("Qwen2Moe", {**EXPERTS, **SHARED}),
    ("Qwen2Moe", {**EXPERTS, "decoder_sparse_step": 2, "mlp_only_layers": [1]}),
    ("Qwen3Moe", {**HEADS, **EXPERTS}),
    ("Qwen3Moe", {**HEADS, **EXPERTS, "attention_bias": True, "mlp_only_layers": [0]}),
    ("Qwen3Next", {**HEADS, **EXPERTS, **SHARED, **LINEAR}),
    ("Qwen3_5Text", {**HEADS, **LINEAR}),
    ("Qwen3_5MoeText", {**HEADS, **EXPERTS, **SHARED, **LINEAR}),
    ("Llama4Text", {**HEADS, **LOCAL, "intermediate_size_mlp": 80, "interleave_moe_layer_step": 2}),
    ("DeepseekV2", LATENT),
    ("DeepseekV3", LATENT),
    ("DeepseekV3", {**LATENT, "q_lora_rank": None, "attention_bias": True}),
    ("GptOss", {**HEADS, **LOCAL}),
    ("Olmoe", {"num_experts": 6, "num_experts_per_tok": 2, "attention_bias": True}),
    ("Gemma", HEADS),
    ("Gemma2", HEADS),
    ("Gemma3Text", {**HEADS, "sliding_window": 8}),
    ("Gemma4Text", {**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1}),
    ("Gemma4Text", {**GEMMA4, "num_kv_shared_layers": 2, "use_double_wide_mlp": True, **PER_LAYER}),
    ("Gemma4Text", {**GEMMA4, "enable_moe_block": True, "top_k_experts": 2, **EXPERTS}),
    ("Phi", {}),
    ("Phi3", {}),
    ("Glm4Moe", {**HEADS, **ROUTED, "attention_bias": True, "use_qk_norm": True, "n_shared_experts": 2}),
    ("Glm4Moe", {**ROUTED, "first_k_dense_replace": 2}),
    ("Ernie4_5", {**HEADS, "use_bias": True}),
    ("Ernie4_5_Moe", ERNIE),
    ("Ernie4_5_Moe", {**ERNIE, "moe_layer_interval": 2, "moe_num_shared_experts": 0}),
    ("Jamba", {"num_experts": 4, "num_experts_per_tok": 2, "attn_layer_period": 4, "attn_layer_offset": 2}),
    ("Jamba", {"num_experts": 1, "mamba_proj_bias": True, "mamba_conv_bias": False, "mamba_dt_rank": 6}),
    ("Lfm2", {"layer_types": ["conv", "full_attention", "conv", "conv"], "block_multiple_of": 16}),
    ("Lfm2", {"full_attn_idxs": [2], "conv_bias": True, "block_auto_adjust_ff_dim": False}),
    ("Lfm2Moe", {**EXPERTS, "layer_types": ["conv", "full_attention", "conv", "conv"], "use_expert_bias": False}),
    ("Lfm2Moe", {**EXPERTS, "layer_types": ["full_attention"] + ["conv"] * 3, "num_dense_layers": 1}),
    ("MiniMaxM2", {**HEADS, **LOCAL, "rotary_dim": 8}),
    ("Glm4", HEADS),
    ("SmolLM3", {"attention_bias": True}),
    ("Granite", {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 8.0}),
    ("Olmo2", {}),
    ("Olmo3", {"attention_bias": True}),
    ("Cohere", {"use_qk_norm": True}),
    ("Cohere2", {"attention_bias": True}),
    ("Starcoder2", {}),
    ("Starcoder2", {"use_bias": False, "tie_word_embeddings": False}),
    ("SeedOss", {**HEADS, "attention_out_bias": True, "mlp_bias": True}),
    ("Nemotron", {**HEADS, "attention_bias": True, "mlp_bias": True}),
    ("GPTNeoX", {"num_key_value_heads": 4}),
    ("GraniteMoe", {**LOCAL, "attention_bias": True}),
    ("GraniteMoeShared", {**LOCAL, "shared_intermediate_size": 40}),
    ("Exaone4", {**HEADS, "sliding_window": 8}),
    ("Arcee", {"mlp_bias": True}),
    ("Apertus", {"attention_bias": True}),
    ("HunYuanDenseV1", {**HEADS, "attention_bias": True}),
    ("HunYuanMoEV1", {**HEADS, "num_experts": 6, "moe_topk": [2] * 4, "attention_bias": True}),
    ("Phimoe", {**LOCAL, "attention_bias": True, "lm_head_bias": True}),
]


ENCODERS = {"bert", "mpnet", "roberta", "distilbert", "modernbert"}  # compared in execution/test_encoders.py


def saved(name: str, settings: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Return what `transformers` writes into config.json, and the elements of the model that it builds, biases of
    routers included, which it stores separately."""
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **settings})
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    biases = sum(
        values.numel()
        for name, values in model.named_buffers()
        if name.endswith(("e_score_correction_bias", "expert_bias"))
    )
    return json.loads(config.to_json_string(use_diff=False)), biases + sum(one.numel() for one in model.parameters())


@pytest.mark.parametrize(("name", "settings"), CASES, ids=[f"{name}-{at}" for at, (name, _) in enumerate(CASES)])
def test_parameters_are_those_that_transformers_builds(name: str, settings: dict[str, Any]) -> None:
    data, elements = saved(name, settings)
    assert parameters(read_spec(data)) == elements


def test_every_family_is_compared() -> None:
    built = {read_spec(saved(name, settings)[0]).family for name, settings in CASES}
    assert built | ENCODERS == {family.name for family in FAMILIES}


def test_a_family_fits_one_sitting() -> None:
    """Two have more in them that no other family has: Gemma 4's layers differ in everything, ModernBERT's in names."""
    longer = {"gemma4": 134, "modernbert": 83}
    for path in sorted(Path(families.__path__[0]).glob("[a-z]*.py")):
        text = path.read_text(encoding="utf-8")
        count = len(re.findall(r"^[A-Z0-9_]+ = _?[A-Za-z]+\(\n    name=", text, re.MULTILINE))
        assert count and text.count("\n") <= longer.get(path.stem, 60 * count), path.name


def test_names_mean_one_family_each() -> None:
    names = [name for family in FAMILIES for name in (*family.architectures, *family.model_types)]
    assert len(names) == len(set(names))
    runs = (
        "apertus arcee bert roberta mpnet distilbert cohere cohere2 deepseek_v2 deepseek_v3 ernie4_5 "
        "ernie4_5_moe exaone4 gemma gemma2 gemma3 gemma4 glm4 glm4_moe gpt_oss granite granitemoe "
        "hunyuan_v1_dense hunyuan_v1_moe lfm2 lfm2_moe llama mistral ministral ministral3 mixtral modernbert "
        "nemotron olmo2 olmo3 olmoe phi phi3 phimoe qwen2 qwen3 qwen2_moe qwen3_moe qwen3_next qwen3_5 "
        "qwen3_5_moe seed_oss smollm3 starcoder2"
    )
    assert [family.name for family in FAMILIES if family.runs] == runs.split()


def test_what_mixtures_do_not_compute_is_refused() -> None:
    phi = {**CONFIG, "model_type": "phimoe", "num_experts_per_tok": 3}
    with pytest.raises(ModelError, match=r"is 3, but the sparse mixer of Phi-3\.5-MoE picks 2 experts"):
        read_spec(phi)
    hunyuan = {**CONFIG, "model_type": "hunyuan_v1_moe", "num_experts": 6, "moe_topk": [1, 2]}
    with pytest.raises(ModelError, match=r"moe_topk in config.json differs from layer to layer \(\[1, 2\]\)"):
        read_spec(hunyuan)
    with pytest.raises(ModelError, match="moe_topk is 2, but there is 1 expert"):
        read_spec({**hunyuan, "num_experts": 1, "moe_topk": 2})


# -- what the files say ------------------------------------------------------------------------------------------------
CONFIG = {key: SIZES[key] for key in SIZES if key.endswith(("size", "layers", "heads"))}


def layers(model_type: str, **changes: Any) -> tuple[LayerSpec, ...]:
    return read_spec({**CONFIG, "model_type": model_type, **changes}).layers


def windows(model_type: str, **changes: Any) -> list[int]:
    return [layer.mixer.window for layer in layers(model_type, **changes) if isinstance(layer.mixer, Attention)]


def test_windows_alternate_as_the_family_does() -> None:
    assert windows("gemma2") == [4096, 0, 4096, 0]
    assert windows("gemma3_text", num_hidden_layers=7, sliding_window=8) == [8] * 5 + [0, 8]
    assert windows("gemma3_text", sliding_window_pattern=2, sliding_window=8) == [8, 0, 8, 0]
    assert windows("gpt_oss") == [128, 0, 128, 0]
    assert windows("gpt_oss", layer_types=["full_attention"] * 4) == [0] * 4
    assert windows("llama4", attention_chunk_size=32) == [32, 32, 32, 0]
    assert windows("llama4", attention_chunk_size=32, no_rope_layers=[0, 1, 0, 1]) == [0, 32, 0, 32]
    assert windows("phi3", sliding_window=2047) == [2047] * 4
    assert windows("olmo3") == windows("cohere2") == [4096, 4096, 4096, 0]
    assert windows("cohere2", sliding_window_pattern=2, sliding_window=8) == [8, 0, 8, 0]


def test_factors_are_read() -> None:
    granite = read_spec({**CONFIG, "model_type": "granite", "embedding_multiplier": 12, "logits_scaling": 8.0})
    assert (granite.embedding_scale, granite.head.scale) == (12.0, 0.125)
    assert read_spec({**CONFIG, "model_type": "cohere"}).head.scale == 0.0625


def test_mixers_alternate_as_the_family_does() -> None:
    linear = [isinstance(layer.mixer, LinearAttention) for layer in layers("qwen3_5", **LINEAR)]
    assert linear == [True, True, True, False]
    mamba = [isinstance(layer.mixer, Mamba) for layer in layers("jamba", attn_layer_period=2, attn_layer_offset=1)]
    assert mamba == [True, False, True, False]
    convolution = [isinstance(layer.mixer, ShortConvolution) for layer in layers("lfm2", full_attn_idxs=[2])]
    assert convolution == [True, True, False, True]


def test_dense_layers_lie_between_those_with_experts() -> None:
    def sparse(model_type: str, **changes: Any) -> list[bool]:
        return [isinstance(layer.mlp, MoE) for layer in layers(model_type, **changes)]

    assert sparse("deepseek_v3", **LATENT) == [False, True, True, True]
    assert sparse("glm4_moe", **ROUTED, first_k_dense_replace=3) == [False, False, False, True]
    assert sparse("llama4", **LOCAL, interleave_moe_layer_step=2) == [False, True, False, True]
    assert sparse("llama4", **LOCAL, moe_layers=[0]) == [True, False, False, False]
    assert sparse("ernie4_5_moe", **ERNIE, moe_layer_start_index=1, moe_layer_end_index=2) == [False, True, True, False]
    assert sparse("qwen3_moe", **EXPERTS, mlp_only_layers=[1], decoder_sparse_step=1) == [True, False, True, True]


def test_experts_are_read_in_both_spellings() -> None:
    mixtral, qwen = layers("mixtral", **LOCAL)[0].mlp, layers("qwen2_moe", **EXPERTS, **SHARED)[0].mlp
    assert isinstance(mixtral, MoE) and isinstance(qwen, MoE)
    assert (mixtral.experts, mixtral.top_k, mixtral.width) == (4, 2, 96)
    assert (qwen.experts, qwen.width, qwen.shared_width, qwen.shared_gate) == (6, 24, 40, True)
    saved_anew = layers("qwen3_moe", moe_intermediate_size=24, **LOCAL)[0].mlp
    assert isinstance(saved_anew, MoE) and saved_anew.experts == 4


def test_routers_are_read() -> None:
    def router(model_type: str, **changes: Any) -> Router:
        mlp = layers(model_type, **changes)[-1].mlp
        assert isinstance(mlp, MoE)
        return mlp.router

    assert router("mixtral", **LOCAL) == Router(renormalize=True)
    assert router("qwen3_moe", **EXPERTS) == Router() != router("qwen3_moe", **EXPERTS, norm_topk_prob=True)
    assert router("gpt_oss", **LOCAL) == Router(renormalize=True, bias=True)
    grouped = {**ROUTED, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5, "norm_topk_prob": True}
    of_pairs = Router(
        scores="sigmoid", renormalize=True, correction=True, groups=4, top_groups=2, group_best=2, scale=2.5
    )
    assert router("glm4_moe", **grouped) == router("deepseek_v3", **LATENT | grouped) == of_pairs
    limited = {**LATENT, **grouped, "topk_method": "group_limited_greedy", "norm_topk_prob": False}
    assert router("deepseek_v2", **limited) == Router(groups=4, top_groups=2, group_best=1, scale=2.5)
    assert router("deepseek_v2", **LATENT) == Router()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"n_group": 3}, "8 experts do not make 3 equal groups of at least 2, of which 1 are taken"),
        ({"n_group": 8}, "do not make 8 equal groups"),
        ({"n_group": 2, "topk_group": 3}, "of which 3 are taken"),
        ({"n_group": 4, "num_experts_per_tok": 3}, "is 3, but 1 of 4 groups have 2 experts"),
        ({"num_experts_per_tok": 9}, "is 9, but there are 8 experts"),
    ],
)
def test_groups_that_the_experts_do_not_fill_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence):
        layers("glm4_moe", **{**ROUTED, **changes})


def test_another_swiglu_than_the_published_is_refused() -> None:
    with pytest.raises(ModelError, match=r"swiglu_limit in config\.json is 10, but of gpt-oss's clamped SwiGLU only"):
        layers("gpt_oss", **LOCAL, swiglu_limit=10)


def test_what_a_model_type_implies_counts() -> None:
    """Gemma's config.json does not say that the tables are one; a plain MLP has two matrices, not three."""
    gemma = read_spec({**CONFIG, "model_type": "gemma2"})
    assert gemma.head.tied and not read_spec({**CONFIG, "model_type": "gemma2", "tie_word_embeddings": False}).head.tied
    assert gemma.embedding_scale == 8.0
    plain, gated = (read_spec({**CONFIG, "model_type": kind}) for kind in ("phi", "llama"))
    assert isinstance(plain.layers[0].mlp, Dense) and not plain.layers[0].mlp.gated
    difference = layer_matrix_parameters(gated, gated.layers[0]) - layer_matrix_parameters(plain, plain.layers[0])
    assert difference == 64 * 96 and table_parameters(plain) == 320 * 64


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"num_kv_shared_layers": 4}, "num_kv_shared_layers is 4, but there are 4 layers"),
        ({"num_kv_shared_layers": 1}, "none of which looks back as far as those that are to share them .all tokens"),
        ({"use_bidirectional_attention": "all"}, "attention to later tokens"),
        (
            {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 100},
            "is 100, but a token may be any of 320",
        ),
        ({"per_layer_config": {"3": {"num_attention_heads": 2}}}, "an object of layers, each with head_dim and"),
        ({"per_layer_config": 7}, "an object of layers"),
        (
            {
                "layer_types": ["full_attention", "sliding_attention"] * 2,
                "num_kv_shared_layers": 2,
                "per_layer_config": {"2": {"head_dim": 8, "num_key_value_heads": 4}},
            },
            "layer 2 is to share the keys and values of layer 0, but has 4 heads of 8 numbers",
        ),
        ({"enable_moe_block": True, "num_experts": 4, "top_k_experts": 5}, "top_k_experts is 5, but there are 4"),
    ],
)
def test_what_gemma_4_cannot_be_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ModelError, match=why):
        layers("gemma4_text", hidden_size_per_layer_input=changes.pop("hidden_size_per_layer_input", 0), **changes)


def test_layers_that_share_keys_and_values_name_the_last_that_has_its_own() -> None:
    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    shared = layers("gemma4_text", num_hidden_layers=6, layer_types=kinds, num_kv_shared_layers=3)
    assert [layer.mixer.kv_layer for layer in shared if isinstance(layer.mixer, Attention)] == [*[None] * 3, 1, 1, 2]


def test_of_a_model_that_sees_images_the_text_part_counts() -> None:
    whole = {"model_type": "many", "tie_word_embeddings": True, "text_config": {**CONFIG, "model_type": "llama"}}
    model = read_spec(whole)
    assert (len(model.layers), model.head.tied, model.runs) == (4, True, False)
    with pytest.raises(ModelError, match="many is an architecture that is not supported"):
        read_spec(whole, to_run=True)


def test_a_model_that_sees_to_both_sides_continues_no_texts() -> None:
    sees = {**CONFIG, "model_type": "gemma3_text", "use_bidirectional_attention": True, "sliding_window": 512}
    embedder = read_spec({**sees, "architectures": ["Gemma3TextModel"]}, to_run=True)
    assert embedder.pools_all_tokens and embedder.pooler == Pooler(pooling="mean")
    assert {layer.mixer.window for layer in embedder.layers if isinstance(layer.mixer, Attention)} <= {0, 256}
    with pytest.raises(ModelError, match="is set, but Gemma3ForCausalLM continues texts"):
        read_spec({**sees, "architectures": ["Gemma3ForCausalLM"]})


def test_what_is_described_is_not_run() -> None:
    neox = {**CONFIG, "architectures": ["GPTNeoXForCausalLM"]}
    assert not read_spec(neox).runs
    match = r"GPTNeoXForCausalLM is an architecture that is not supported\. Supported are the families of Apertus"
    with pytest.raises(ModelError, match=match):
        read_spec(neox, to_run=True)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize(("key", "value"), [("index_topk", 2048), ("num_kv_shared_layers", 2)])
def test_a_field_of_another_kind_of_model_is_refused(family: Family, key: str, value: float) -> None:
    if key in family.understands:
        pytest.skip("it is of this kind")
    with pytest.raises(ModelError, match=rf"{key} is set \({value}\): .* which the family {family.name} is not known"):
        read_spec({**CONFIG, "model_type": family.model_types[0], key: value})


JUNK: list[Any] = [7, -1, "x", [], [1, "x"], {}, {"sliding_attention": 3}, {"rope_type": 7}, True, 1e300, None]
JUNK += [{"rope_type": "dynamic", "alpha": one} for one in ("x", 1e300, -1, {})]


@pytest.mark.parametrize("family", [family for family in FAMILIES if family.runs], ids=lambda family: family.name)
def test_whatever_stands_in_a_field_is_read_or_refused_in_words(family: Family) -> None:
    keys = (
        "rope_parameters rope_scaling rope_theta rope_local_base_freq partial_rotary_factor no_rope_layers hidden_act"
    )
    keys += (
        " original_max_position_embeddings query_pre_attn_scalar final_logit_softcapping hidden_activation layer_types"
    )
    keys += " sliding_window sliding_window_pattern residual_multiplier attention_multiplier logit_scale head_dim"
    keys += " moe_k moe_num_experts moe_num_shared_experts moe_layer_start_index moe_layer_end_index moe_layer_interval"
    keys += " num_local_experts num_experts_per_tok shared_intermediate_size embedding_multiplier logits_scaling"
    for key in keys.split():
        for junk in JUNK:
            try:
                # The family is given: finding it reads every family's file, and asks none of these fields.
                read_spec({**CONFIG, "model_type": family.model_types[0], key: junk}, to_run=True, family=family)
            except ModelError as error:
                assert len(str(error)) < 1000


SHARING = {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 16,
    "hidden_size_per_layer_input": 0,
    "head_dim": 24,
    "global_head_dim": 40,
}
UNFIT: list[tuple[str, dict[str, Any], str]] = [
    (
        "gemma4_text",
        SHARING | {"per_layer_config": {"0": {"head_dim": 8}}},
        r"layer 2 is to share the keys and values of layer 0, but has 2 heads of 24 numbers and that one 2 of 8; .+fit",
    ),
    (
        "gemma4_text",
        SHARING | {"sliding_window": None, "per_layer_config": {"3": {"num_key_value_heads": 1}}},
        r"layer 3 is to share the keys and values of layer 1, but has 1 heads of 24 numbers and that one 2 of 24",
    ),
    (
        "deepseek_v3",
        {**LATENT, "n_group": None, "topk_group": 2},
        r"8 experts do not make 1 equal groups of at least 2, of which 2 are taken; n_group and topk_group in config",
    ),
    ("lfm2", {"conv_L_cache": 1}, r"conv_L_cache in config\.json must be a whole number above 1, not 1\."),
]


@pytest.mark.parametrize(("model_type", "changes", "sentence"), UNFIT)
def test_fields_that_do_not_fit_each_other_are_refused_before_anything_is_loaded(
    model_type: str, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ModelError, match=sentence):
        read_spec({**CONFIG, "model_type": model_type, **changes}, to_run=True)


TOO_MUCH: list[tuple[str, dict[str, Any], str]] = [
    ("cohere", {"use_qk_norm": True}, "layer norms of queries and keys"),
    ("phi", {"tie_word_embeddings": True}, "a bias of a tied projection to logits"),
    ("llama4", {"attention_chunk_size": 32, "moe_layers": []}, "chunked windows"),
    ("jamba", {"mamba_d_state": 8, "num_experts": 2}, "layers of Mamba and Dense"),
    (
        "qwen3_5",
        LINEAR | {"linear_num_key_heads": 3},
        "linear attention whose heads of values do not share those of keys evenly",
    ),
    ("qwen3_5", LINEAR | {"linear_conv_kernel_dim": 17}, "convolutions of over 16 tokens"),
    ("lfm2", {"layer_types": ["conv"] * 4}, "no layer of attention"),
]


@pytest.mark.parametrize(("model_type", "changes", "what"), TOO_MUCH)
def test_a_family_that_says_it_runs_is_held_to_what_the_decoder_computes(
    model_type: str, changes: dict[str, Any], what: str
) -> None:
    """The decoder reads no more of a spec than it computes: what it would leave out is refused by its name."""
    spec = read_spec({**CONFIG, "hidden_act": "silu", "model_type": model_type, **changes})
    with pytest.raises(ModelError, match=f"the family {spec.family} has {what}, which is described, but not computed"):
        refuse_what_does_not_run(spec)
