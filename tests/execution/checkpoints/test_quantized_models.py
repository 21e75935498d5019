"""Whole models whose matrices are quantized: the tokens of the same numbers in float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import write_model
from safetensors.numpy import load_file, save_file

from inflight import LLM, SamplingParams
from inflight.execution.checkpoints.checkpoint import Checkpoint

from ..driver import Driver
from .formats import CASES, Tensors, write_file

SETTINGS: dict[str, Any] = {"dtype": "float32", "threads": 1, "num_blocks": 16}
PROMPTS = [{"prompt_token_ids": list(range(begin, begin + 20))} for begin in (3, 50)]
RUN = (
    *("awq", "gptq", "gptq, act-order", "gptq, 8 bits", "compressed-tensors, int4 with zeros"),
    *("compressed-tensors, int8", "compressed-tensors, fp8 in blocks", "fp8", "fp8 in blocks"),
)


def write_both(folder: Path, case: str, family: str = "qwen2") -> tuple[Path, Path]:
    """A model with quantized projections, and the same numbers in float32."""
    quantized, plain = write_model(folder / "quantized", family), write_model(folder / "plain", family)
    random, held = np.random.default_rng(3), load_file(plain / "model.safetensors")
    tensors: Tensors = {}
    for name, values in held.items():
        if name.endswith(("_proj.weight", "_proj_with_mqa.weight")):
            packed, held[name] = CASES[case].write(name.removesuffix(".weight"), *values.shape, random)
            tensors |= packed
        else:
            tensors[name] = ("F32", values)
    write_file(quantized / "model.safetensors", tensors)
    save_file(held, plain / "model.safetensors")
    config = json.loads((quantized / "config.json").read_text()) | {"quantization_config": CASES[case].config}
    (quantized / "config.json").write_text(json.dumps(config))
    return quantized, plain


@pytest.mark.parametrize("case", RUN)
def test_logits_are_those_of_the_numbers_but_for_what_int8_rounds(case: str, tmp_path: Path) -> None:
    """Bound roundings of weights, and of the activations that meet codes, wherever a backend keeps these."""
    logits = []
    for folder in write_both(tmp_path, case):
        driver = Driver.of(folder, "float32", "reference")
        logits.append(driver.step([(driver.start(range(3, 30)), 27)]))
    found, expected = logits
    spread = expected - expected.mean(axis=1, keepdims=True)
    assert np.sqrt(np.mean(np.square(found - expected)) / np.mean(np.square(spread))) < 0.1


def test_latent_attention_and_experts_in_fp8_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As DeepSeek-V3 is published: every projection but the routers' in blocks, those that are cut by head too."""
    folders = write_both(tmp_path, "fp8 in blocks", "deepseek_v3")
    prompt = np.arange(3, 30)

    def logits(folder: Path) -> np.ndarray:
        driver = Driver.of(folder, "float32", "reference")
        return driver.step([(driver.start(prompt), 27)])

    found, expected = (logits(folder) for folder in folders)
    spread = expected - expected.mean(axis=1, keepdims=True)
    assert 1e-4 < np.sqrt(np.mean(np.square(found - expected)) / np.mean(np.square(spread))) < 0.3
    monkeypatch.setattr(Checkpoint, "matrix", Checkpoint.tensor)
    exact = logits(folders[0])
    assert np.abs(exact - expected).max() < 1e-5 * np.abs(expected).max()


def greedy(llm: LLM) -> list[list[int]]:
    outputs = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=24, ignore_eos=True))
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("case", RUN)
def test_a_quantized_model_answers_as_its_numbers_in_float32_do(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantized, plain = write_both(tmp_path, case)
    with LLM(str(quantized), **SETTINGS) as llm:  # as it is held
        assert [len(tokens) for tokens in greedy(llm)] == [24, 24]
        assert llm.settings["quantization"].reason.startswith(
            f"the checkpoint's own, {CASES[case].config['quant_method']}"
        )
    # The numbers themselves, whatever a backend would make of codes and scales.
    monkeypatch.setattr(Checkpoint, "matrix", Checkpoint.tensor)
    with LLM(str(quantized), **SETTINGS) as one, LLM(str(plain), **SETTINGS) as other:
        tokens = greedy(one)
        assert tokens == greedy(other)
    assert len(set(tokens[0])) > 3, "the model says one thing only"
