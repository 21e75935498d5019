"""Whole models whose matrices are quantized: the tokens of the same numbers in float32."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from models import write_model
from safetensors.numpy import load_file, save_file

from inflight import LLM, SamplingParams

from .formats import CASES, Tensors, write_file

PROMPTS = [{"prompt_token_ids": list(range(begin, begin + 20))} for begin in (3, 50)]
RUN = (
    *("awq", "gptq", "gptq, act-order", "gptq, 8 bits", "compressed-tensors, int4 with zeros"),
    *("compressed-tensors, int8", "compressed-tensors, fp8 in blocks", "fp8", "fp8 in blocks"),
)


def write_both(folder: Path, case: str) -> tuple[Path, Path]:
    """A model with quantized projections, and the same numbers in float32."""
    quantized, plain = write_model(folder / "quantized", "qwen2"), write_model(folder / "plain", "qwen2")
    random, held = np.random.default_rng(3), load_file(plain / "model.safetensors")
    tensors: Tensors = {}
    for name, values in held.items():
        if name.endswith("_proj.weight"):
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
def test_a_quantized_model_answers_as_its_numbers_in_float32_do(case: str, tmp_path: Path) -> None:
    answers = []
    for folder in write_both(tmp_path, case):
        with LLM(str(folder), dtype="float32", threads=1, num_blocks=16) as llm:
            outputs = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=24, ignore_eos=True))
            answers.append([output.outputs[0].token_ids for output in outputs])
    assert answers[0] == answers[1]
    assert len(set(answers[0][0])) > 3, "the model says one thing only"
