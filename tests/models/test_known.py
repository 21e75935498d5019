"""Models by name, folder and file: spellings of well-known names, and errors for those that are not known."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from inflight.models import known
from inflight.models.errors import ModelError
from inflight.models.known import known_names, read_model
from inflight.models.mixers.attention import Attention
from inflight.models.model_name import compact

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 1000,
}


@pytest.mark.parametrize(
    "name", ["llama-3-70b", "Meta-Llama-3-70B", "meta-llama/Meta-Llama-3-70B-Instruct", "LLAMA-3-70B"]
)
def test_names_of_hubs_mean_the_same(name: str) -> None:
    assert len(read_model(name).layers) == 80


@pytest.mark.parametrize(
    ("name", "known", "context", "bits"),
    [
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-r1", 163_840, 8),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b-2507", 262_144, None),
        ("Qwen/Qwen3-30B-A3B-Thinking-2507-FP8", "qwen3-30b-a3b-2507-fp8", 262_144, 8),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.3-70b", 131_072, None),
        ("Qwen/Qwen2.5-72B-Instruct-AWQ", "qwen2.5-72b-awq", 32_768, 4),
        ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w8a8", "llama-3.3-70b-quantized.w8a8", 131_072, 8),
        ("moonshotai/Kimi-K2-Thinking", "kimi-k2-thinking", 262_144, 4),
        ("openai/gpt-oss-120b", "gpt-oss-120b", 131_072, 4),
    ],
)
def test_a_hub_id_has_its_shape_context_and_format(name: str, known: str, context: int, bits: int | None) -> None:
    model = read_model(name)
    assert (model.name, model.default_model_len) == (known, context)
    assert (None if model.weight_format is None else model.weight_format.bits) == bits


# hub ids of quantized models, tags of ollama, and the short names of this project's own README
WRITTEN = [
    ("TheBloke/Llama-2-7B-Chat-GPTQ", "llama-2-7b-gptq-int4", 4),
    ("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", "llama-3.1-70b-awq", 4),
    ("nvidia/DeepSeek-R1-FP4", "deepseek-r1-nvfp4", 4),
    ("nvidia/DeepSeek-R1-NVFP4-v2", "deepseek-r1-nvfp4", 4),
    ("nvidia/Qwen3.6-35B-A3B-NVFP4", "qwen3.6-35b-a3b-nvfp4", 4),
    ("nvidia/DeepSeek-V3-0324-FP4", "deepseek-v3-nvfp4", 4),
    ("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3", 8),
    ("amd/DeepSeek-R1-MXFP4-Preview", "deepseek-r1-mxfp4", 4),
    ("mistralai/Devstral-Small-2507", "devstral-small", None),
    ("mistralai/Mistral-Nemo-Instruct-2407", "mistral-nemo", None),
    ("Qwen/Qwen2.5-VL-72B-Instruct-AWQ", "qwen2.5-vl-72b-awq", 4),
    ("amd/Llama-3.3-70B-Instruct-MXFP4", "llama-3.3-70b-mxfp4", 4),
    ("unsloth/Qwen3-14B-unsloth-bnb-4bit", "qwen3-14b-bnb-4bit", 4),
    ("mlx-community/Qwen3-8B-4bit", "qwen3-8b-4bit", 4),
    ("RedHatAI/Mistral-Small-3.2-24B-Instruct-2506-FP8", "mistral-small-3.2-24b-fp8", 8),
    ("bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", "llama-3.1-8b-q4_k_m", 4),
    ("unsloth/Qwen3-30B-A3B-GGUF:UD-Q4_K_XL", "qwen3-30b-a3b-q4_k_xl", 4),
    ("bartowski/Qwen_Qwen3-8B-GGUF:Q8_0", "qwen3-8b-q8_0", 8),
    ("google/gemma-3-27b-it-qat-q4_0-gguf", "gemma-3-27b-q4_0", 4),
    ("llama3.1:8b-instruct-q5_K_M", "llama-3.1-8b-q5_k_m", 5),
    ("ggml-org/gpt-oss-20b-GGUF", "gpt-oss-20b", 4),
    ("gpt-oss:20b", "gpt-oss-20b", 4),
    ("deepseek-r1:671b", "deepseek-r1-q4_k_m", 4),
    ("llama3.1:8b-instruct-fp16", "llama-3.1-8b", None),
    ("gemma3:27b-it-qat", "gemma-3-27b-q4_k_m", 4),
    ("all-minilm:22m", "all-minilm-l6-v2", None),
    ("llama3.1:8b", "llama-3.1-8b-q4_k_m", 4),
    ("zai-org/GLM-4.7-Flash", "glm-4.7-flash", None),
    ("deepseek-ai/DeepSeek-Coder-V2-Lite-Instruct", "deepseek-coder-v2-lite", None),
    ("allenai/Olmo-3-32B-Think", "olmo-3-32b", None),
    ("nvidia/Kimi-K2.7-Code-NVFP4", "kimi-k2.7-code-nvfp4", 4),
    ("codestral:22b", "codestral-22b-q4_k_m", 4),
    ("Llama 3.1 8B", "llama-3.1-8b", None),
    ("llama3.3", "llama-3.3-70b", None),
    ("gemma3:27b", "gemma-3-27b-q4_k_m", 4),
    ("qwen3:30b", "qwen3-30b-a3b-q4_k_m", 4),
    ("mistral:latest", "mistral-7b-q4_k_m", 4),
    ("deepseek-r1:14b", "deepseek-r1-distill-qwen-14b-q4_k_m", 4),
    ("smollm2", "smollm2-135m", None),
    ("gemma3-270m", "gemma-3-270m", None),
    ("all-minilm-l6-v2", "all-minilm-l6-v2", None),
    ("HuggingFaceTB/SmolLM3-3B", "smollm3-3b", None),
    ("microsoft/Phi-4-mini-instruct", "phi-4-mini", None),
    ("Qwen/Qwen3-VL-30B-A3B-Instruct", "qwen3-vl-30b-a3b", None),
    ("zai-org/GLM-4.7", "glm-4.7", None),
    ("BAAI/bge-large-en-v1.5", "bge-large", None),
    ("intfloat/e5-large-v2", "e5-large", None),
    ("intfloat/multilingual-e5-large-instruct", "multilingual-e5-large", None),
    ("Qwen/Qwen3.8-27B", "qwen3.8-27b", None),
    ("Qwen/Qwen3-Coder-Next", "qwen3-coder-next", None),
    ("deepseek-ai/DeepSeek-V3.1-Terminus", "deepseek-v3.1-terminus", 8),
    ("mistralai/Ministral-3-8B-Instruct-2512", "ministral-3-8b-instruct", 8),
    ("mistralai/Ministral-3-8B-Instruct-2512-BF16", "ministral-3-8b", None),
    ("mistralai/Ministral-3-14B-Reasoning-2512", "ministral-3-14b", None),
    ("mistralai/Devstral-Small-2-24B-Instruct-2512", "devstral-small-2-24b", 8),
    ("mistralai/Mistral-Large-3-675B-Instruct-2512", "mistral-large-3-675b", 8),
    ("mistralai/Mistral-Large-3-675B-Instruct-2512-NVFP4", "mistral-large-3-675b-nvfp4", 4),
    ("mistralai/Mistral-Medium-3.5-128B", "mistral-medium-3.5-128b", 8),
    ("mistralai/Mistral-Small-4-119B-2603", "mistral-small-4-119b", 8),
    ("google/gemma-4-E4B-it", "gemma-4-e4b", None),
    ("google/gemma-4-12B-it", "gemma-4-12b", None),
    ("google/embeddinggemma-300m", "embeddinggemma-300m", None),
    ("LiquidAI/LFM2-1.2B", "lfm2-1.2b", None),
    ("LiquidAI/LFM2-8B-A1B", "lfm2-8b-a1b", None),
    ("LiquidAI/LFM2.5-8B-A1B", "lfm2.5-8b-a1b", None),
    ("LGAI-EXAONE/EXAONE-4.0-32B", "exaone-4.0-32b", None),
    ("CohereLabs/c4ai-command-a-03-2025", "command-a-111b", None),
    ("openai/gpt-oss-safeguard-20b", "gpt-oss-safeguard-20b", 4),
    ("Qwen/Qwen3.5-4B", "qwen3.5-4b", None),
    ("ibm-granite/granite-4.2-30b", "granite-4.2-30b", None),
    ("granite3.3:2b", "granite-3.3-2b-q4_k_m", 4),
    ("zai-org/GLM-4.5V-FP8", "glm-4.5v-fp8", 8),
    ("hermes3:8b", "hermes-3-llama-3.1-8b-q4_k_m", 4),
    ("mistral-large:123b", "mistral-large-q4_k_m", 4),
    ("bge-m3:567m", "bge-m3", None),
    ("mistral-small3.2", "mistral-small-3.2-24b", None),
    ("granite3.3:8b", "granite-3.3-8b-q4_k_m", 4),
    ("codellama:34b", "codellama-34b-q4_k_m", 4),
    ("command-r", "command-r-32b", None),
    ("allenai/OLMo-2-1124-13B-Instruct", "olmo-2-13b", None),
]


@pytest.mark.parametrize(("written", "known", "bits"), WRITTEN)
def test_a_name_as_people_write_it_has_its_shape_and_its_format(written: str, known: str, bits: int | None) -> None:
    model = read_model(written)
    assert model.name == known
    assert (None if model.weight_format is None else model.weight_format.bits) == bits


def test_a_gguf_file_of_gpt_oss_keeps_the_format_of_its_experts() -> None:
    for written in ("unsloth/gpt-oss-120b-GGUF:Q4_K_M", "openai/gpt-oss-120b"):
        published = read_model(written).weight_format
        assert published is not None and published.method == "mxfp4"


def test_no_two_names_differ_by_hyphens_alone() -> None:
    names = tomllib.loads((Path(known.__file__).parent / "well_known" / "names.toml").read_text())
    every = [*known_names(), *names["aliases"]]
    assert len(set(map(compact, every))) == len(every)
    assert set(names["aliases"].values()) <= set(known_names())


@pytest.mark.parametrize(
    ("written", "nearest"), [("llama3.1:9b", "llama-3.1-8b"), ("Qwen/Qwen3-33B-AWQ", "qwen3-32b"), ("phi5", "phi-4")]
)
def test_an_unknown_name_is_met_with_the_nearest_of_its_kind(written: str, nearest: str) -> None:
    with pytest.raises(ModelError, match=f"Did you mean .*{nearest}.*\\?"):
        read_model(written)


def test_a_shape_that_is_like_another_one_has_its_layers() -> None:
    one, other = read_model("deepseek-r1-distill-qwen-32b"), read_model("qwen2.5-32b")
    assert (one.layers, one.vocab_size) == (other.layers, other.vocab_size)


def test_an_unknown_model_is_met_with_a_few_names_and_says_how_to_give_one() -> None:
    with pytest.raises(ModelError) as caught:
        read_model("llama-3-80b")
    sentence = str(caught.value)
    assert "Did you mean llama-3-8b, llama-3-70b" in sentence and "qwen" not in sentence and len(sentence) < 250
    assert sentence.endswith("give its folder, or its config.json.")


def test_a_name_that_is_like_none_gets_no_list_of_all() -> None:
    with pytest.raises(ModelError, match=r"None of the [0-9]+ known ones is called alike"):
        read_model("owner/xyz")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("deepseek-ai/DeepSeek-V3.2-Exp", "its attention chooses which tokens to read"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "its Mamba-2 layers are not costed yet"),
        ("XiaomiMiMo/MiMo-V2-Flash", "its family is not costed yet"),
        ("zai-org/GLM-5", "its attention chooses which tokens to read"),
        ("moonshotai/Kimi-Linear-48B-A3B-Instruct", "its family is not costed yet"),
        ("mistralai/Devstral-2-123B-Instruct-2512", "its sizes were on no page that was read"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-4B-BF16", "its Mamba-2 layers are not costed yet"),
    ],
)
def test_a_model_that_cannot_be_planned_yet_says_why(name: str, why: str) -> None:
    with pytest.raises(ModelError, match=f"There are no step times for '{name}': {why}"):
        read_model(name)


def test_a_folder_and_its_config_are_read_alike(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    model = read_model(str(tmp_path))
    assert model == read_model(str(tmp_path / "config.json"))
    mixer = model.layers[0].mixer
    assert isinstance(mixer, Attention)
    assert (mixer.head_dim, mixer.kv_heads, model.name) == (32, 2, tmp_path.name)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"hidden_size": None}, "lacks hidden_size, without which the model's shape is unknown."),
        ({"num_hidden_layers": 0}, "num_hidden_layers in config.json must be a whole number above 0, not 0."),
        ({"vocab_size": "many"}, "vocab_size in config.json must be a whole number above 0, not 'many'"),
        ({"num_key_value_heads": 3}, "num_attention_heads (8) must be a multiple of num_key_value_heads (3)"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder is set"),
        ({"kv_lora_rank": 512}, "multi-head latent attention"),
        ({"num_experts": 8, "num_experts_per_tok": 2, "mlp_only_layers": [0]}, "only some of the layers have experts"),
        (
            {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 9},
            "num_experts_per_tok is 9, but there are 8 experts.",
        ),
        (
            {"model_type": "palm9"},
            "palm9 is an architecture that is not supported. Supported are the families of ApertusForCausalLM, ",
        ),
        (
            {"embedding_multiplier": 12.0},
            "embedding_multiplier is set (12.0): scaled embeddings, which the family llama",
        ),
        ({"quantization_config": [4]}, "quantization_config in config.json must be an object with a quant_method"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, **change}))
    with pytest.raises(ModelError, match=r"config\.json") as caught:
        read_model(str(path))
    assert sentence in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_broken_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ModelError, match=r"config\.json"):
        read_model(str(path))


def test_a_place_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"it has no config\.json \(it is empty\)"):
        read_model(str(tmp_path))
    with pytest.raises(ModelError, match="does not exist"):
        read_model(str(tmp_path / "absent.json"))
