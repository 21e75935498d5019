"""`--backend transformers`: the library's own tokens, whatever the batch, and refusals by name.

In float32, since products of torch may round differently beside other rows.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from breadth import usual_of
from msgspec.structs import replace
from text.builders import byte_level

from benchmarks.engine_side import EngineSide
from inflight import LLM, SamplingParams
from inflight.build import build_engine
from inflight.config.engine import EngineSettings
from inflight.config.setting import SettingsError
from inflight.core.types.kv_transfer import KVTransfer
from inflight.core.types.request import Request
from inflight.models.errors import ModelError
from inflight.models.mixers.attention import Attention

from .variants import SIZES

_SIZES: dict[str, Any] = {**SIZES, "head_dim": 16, "pad_token_id": 0}
_LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
}
# name → the class, and settings beside the sizes: learned positions, side by side, latent attention, experts and sinks,
# caps and windows, norms over all heads
RUN: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", {"n_positions": 160}),
    "gpt_neox": ("GPTNeoX", {}),
    "deepseek_v3": ("DeepseekV3", _LATENT),
    "gpt_oss": ("GptOss", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8}),
    "gemma2": ("Gemma2", {"sliding_window": 8}),
    "olmoe": ("Olmoe", {"num_experts": 4, "num_experts_per_tok": 2}),
}
TORCH = ("gpt_oss", "torch")  # sinks, windows and grouped heads
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "mamba": ("Mamba", {}, "mamba: it has layers of linear_attention"),
    "falcon": ("Falcon", {}, "falcon: it does not use the library's attention interface"),
    "bloom": ("Bloom", {"n_head": 4, "n_layer": 2}, "bloom: BloomForCausalLM does not use the library's attention"),
    "lfm2": ("Lfm2", {"layer_types": ["conv", "full_attention", "conv"]}, "lfm2: it has layers of conv"),
    "llama4": ("Llama4Text", {"num_local_experts": 2}, "llama4_text: it has layers of chunked_attention"),
}
_LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [4.0] * 8,
    "original_max_position_embeddings": 32,
}
FOLLOW_LENGTH: dict[str, tuple[str, dict[str, Any]]] = {
    "dynamic": ("Llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}),
    "longrope": ("Phi3", {"rope_parameters": _LONGROPE, "original_max_position_embeddings": 32}),
}
PROMPTS = [[int(one) for one in np.random.default_rng(seed).integers(0, 320, 9 + 17 * seed)] for seed in range(5)]


def saved(folder: Path, kind: str, settings: dict[str, Any]) -> Any:
    """A model with random weights, in `folder` with a tokenizer."""
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    torch.manual_seed(3)
    sizes = {key: value for key, value in _SIZES.items() if not (kind == "DeepseekV3" and key == "head_dim")}
    config = getattr(transformers, f"{kind}Config")(**{**sizes, **settings})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.uniform_(0.5, 1.5) if "norm" in name or "ln" in name else parameter.normal_(0, 0.2)
    model.save_pretrained(folder)
    byte_level().save(str(folder / "tokenizer.json"))
    return model


def greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    ids = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize(
    ("name", "isa"),
    [*((name, "auto") for name in RUN), *usual_of(((name, "torch") for name in RUN), TORCH), ("gpt_oss", "reference")],
)
def test_the_librarys_tokens(tmp_path: Path, name: str, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several at once, in small chunks, with too few blocks for all, and again out of the prefix cache; with attention
    by the CPU's kernels, by what a GPU's are compared with, and by the definition."""
    monkeypatch.setenv("INFLIGHT_ISA", isa)
    model = saved(tmp_path, *RUN[name])
    llm = LLM(
        str(tmp_path),
        backend="transformers",
        dtype="float32",
        threads=1,
        max_num_seqs=4,
        max_num_batched_tokens=24,
        num_blocks=14,
    )
    params = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    expected = [greedy(model, prompt, 16) for prompt in PROMPTS]
    for _ in range(2):
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], params)
        assert [output.outputs[0].token_ids for output in outputs] == expected


@pytest.mark.parametrize("name", FOLLOW_LENGTH)
def test_rotations_that_follow_the_length_are_those_of_our_kernels(tmp_path: Path, name: str) -> None:
    """Whatever the texts beside it, a text is rotated as the longest one that there may be."""
    kind, settings = FOLLOW_LENGTH[name]
    saved(tmp_path, kind, {**settings, "max_position_embeddings": 32 if name == "dynamic" else 128})
    params, found = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True), {}
    for backend in ("auto", "transformers"):
        assert build_length(tmp_path, backend) == 32
        llm = LLM(str(tmp_path), backend=backend, dtype="float32", threads=1, max_model_len=128)
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], params)
        found[backend] = [output.outputs[0].token_ids for output in outputs]
    assert found["auto"] == found["transformers"]


def test_rotations_of_each_kind_of_layer_may_follow_the_length(tmp_path: Path) -> None:
    """A text's tokens are those that it has alone, beside longer ones: modules name the kind behind the positions."""
    ropes = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        "full_attention": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0},
    }
    layers = ["sliding_attention", "full_attention", "full_attention"]
    settings = {"rope_parameters": ropes, "layer_types": layers, "sliding_window": 8}
    saved(tmp_path, "Gemma3Text", {**settings, "max_position_embeddings": 32})
    llm = LLM(str(tmp_path), backend="transformers", dtype="float32", threads=1, max_model_len=128)
    params, prompts = SamplingParams(temperature=0, max_tokens=12), [{"prompt_token_ids": one} for one in PROMPTS]
    together = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
    assert together == [llm.generate(one, params)[0].outputs[0].token_ids for one in prompts]


def test_prompts_are_transferred_between_engines_of_one_length(tmp_path: Path) -> None:
    """Rotations follow the longest text that there may be, so engines for other lengths keep other keys."""
    saved(tmp_path, "Phi3", {**FOLLOW_LENGTH["longrope"][1], "max_position_embeddings": 128})
    settings: dict[str, Any] = {"model": str(tmp_path), "backend": "transformers", "dtype": "float32"}
    params, cached = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True), []
    with EngineSide("prefill", **settings, max_model_len=128) as prefill:
        for length in (128, 32):
            name, prompt = str(length), tuple(PROMPTS[1][:25])
            with EngineSide("decode", **settings, max_model_len=length) as decode:
                one = Request(request_id=name, prompt_token_ids=prompt, params=params, seed=0)
                prefill.add(replace(one, kv_transfer=KVTransfer(give=name)))
                prefill.wait(name)
                decode.add(replace(one, kv_transfer=KVTransfer(take=prefill.address(name))))
                tokens = decode.wait(name)
                cached.append(decode.cached(name))
                decode.add(replace(one, request_id="alone", cache_salt="another"))
                assert tokens == decode.wait("alone")
    assert cached == [16, 0]


def build_length(folder: Path, backend: str) -> int:
    engine = build_engine(EngineSettings(model=str(folder), backend=backend, threads=1))  # type: ignore[arg-type]
    engine.loop.close()
    return engine.capacity.max_model_len


def test_layers_with_a_window_keep_the_windows_blocks(tmp_path: Path) -> None:
    saved(tmp_path, "Gemma2", {"sliding_window": 8, "num_hidden_layers": 6, "max_position_embeddings": 256})
    engine = build_engine(EngineSettings(model=str(tmp_path), backend="transformers", threads=1))
    windows = [layer.mixer.window for layer in engine.model.layers if isinstance(layer.mixer, Attention)]
    assert windows == [8, 0, 8, 0, 8, 0]
    assert engine.capacity.windows == (0, 8)
    assert engine.settings["kernels"].value.startswith("native ")  # type: ignore[union-attr]
    assert engine.settings["batch_invariant"].value is False
    engine.loop.close()


def test_logprobs_are_the_models(tmp_path: Path) -> None:
    model = saved(tmp_path, *RUN["gemma2"])
    llm = LLM(str(tmp_path), backend="transformers", dtype="float32", threads=1)
    (output,) = llm.generate(
        {"prompt_token_ids": PROMPTS[1]}, SamplingParams(temperature=0, max_tokens=1, logprobs=1, prompt_logprobs=1)
    )
    with torch.inference_mode():
        right = torch.log_softmax(model(torch.tensor([PROMPTS[1]])).logits[0].float(), -1)
    (first,) = output.outputs[0].token_logprobs or ()
    assert first.logprob == pytest.approx(float(right[-1].max()), abs=1e-3)
    scored = [entry.logprob for entry in output.prompt_token_logprobs or () if entry is not None]
    assert scored == pytest.approx([float(right[at, token]) for at, token in enumerate(PROMPTS[1][1:])], abs=1e-3)


@pytest.mark.parametrize("name", REFUSED)
def test_what_keeps_state_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    kind, settings, sentence = REFUSED[name]
    sizes = {key: value for key, value in _SIZES.items() if not (kind == "Falcon" and key == "head_dim")}
    getattr(transformers, f"{kind}Config")(**{**sizes, **settings}).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=sentence):
        LLM(str(tmp_path), backend="transformers", load_format="dummy", threads=1)


def test_the_trial_finds_what_no_field_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, *RUN["gpt_neox"])
    plain = transformers.models.gpt_neox.modeling_gpt_neox.GPTNeoXMLP.forward

    def over_time(self: Any, hidden: torch.Tensor) -> torch.Tensor:
        return plain(self, hidden.cumsum(1))

    monkeypatch.setattr(transformers.models.gpt_neox.modeling_gpt_neox.GPTNeoXMLP, "forward", over_time)
    with pytest.raises(ModelError, match=r"gpt_neox: its logits over a paged cache are .* % off"):
        LLM(str(tmp_path), backend="transformers", dtype="float32", threads=1)


def test_folders_that_are_no_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not know the model in"):
        LLM(str(tmp_path), backend="transformers", threads=1)
    saved(tmp_path, *RUN["gpt2"])
    (tmp_path / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    with pytest.raises(ModelError, match="transformers cannot load"):
        LLM(str(tmp_path), backend="transformers", threads=1)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"vocab_size": 300}, r"wte\.weight is \[320, 64\] in its files and \[300, 64\] by its config"),
        ({"n_layer": 4}, r"its files lack 12 tensors, transformer\.h\.3\."),
        ({"model_type": "llama", "num_attention_heads": 7}, "not a multiple of the number of attention heads"),
        ({"model_type": "unheard", "auto_map": {"AutoConfig": "code.Config"}}, "its code comes with its files"),
    ],
)
def test_what_is_wrong_with_a_folder_is_named(tmp_path: Path, wrong: dict[str, Any], sentence: str) -> None:
    saved(tmp_path, *RUN["gpt2"])
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **wrong}))
    with pytest.raises(ModelError, match=sentence):
        LLM(str(tmp_path), backend="transformers", threads=1)


@pytest.mark.parametrize("kind", ["yarn", "dynamic"])
def test_texts_are_as_long_as_our_kernels_allow(tmp_path: Path, kind: str) -> None:
    rope = {"rope_type": kind, "factor": 2.5}
    saved(tmp_path, "Llama", {"rope_parameters": rope, "max_position_embeddings": 64})
    for backend in ("auto", "transformers"):
        assert build_length(tmp_path, backend) == (160 if kind == "yarn" else 64)
        with pytest.raises(ModelError, match="--max-model-len is 161, but the model has 160 positions; give 1 to 160"):
            LLM(str(tmp_path), backend=backend, threads=1, max_model_len=161)


def test_a_backend_that_computes_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, *RUN["gpt2"])
    monkeypatch.setenv("INFLIGHT_ISA", "null")
    with pytest.raises(ModelError, match="INFLIGHT_ISA=null computes nothing, but --backend transformers does"):
        LLM(str(tmp_path), backend="transformers", threads=1)


@pytest.mark.parametrize("setting", [{"quantization": "int8"}, {"kv_cache_dtype": "int8"}, {"family": "a:B"}])
def test_what_only_our_kernels_do_is_refused(setting: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="models that are computed by our own kernels"):
        LLM("somewhere", backend="transformers", **setting)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="--backend transformers needs a --model"):
        LLM(backend="transformers")


def test_without_it_nothing_of_it_is_imported() -> None:
    code = (
        "import sys; from inflight import LLM, SamplingParams; llm = LLM(threads=1);"
        "llm.generate('a', SamplingParams(max_tokens=1));"
        "sys.exit(bool({'torch', 'transformers', 'inflight.execution.transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
