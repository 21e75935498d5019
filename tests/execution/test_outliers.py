"""Quantized products where activations have outliers, as those of trained models have: `outlier_model` makes them.

One scale for a whole token would give all channels the resolution of its largest. Divergence from float32 over the
same weights shows it: 10 to 20 times that of scales for 32 inputs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf_files import convert
from outlier_model import VOCABULARY, write_outlier_model
from transformers import AutoModelForCausalLM

from benchmarks.real_models.agreement import agreement
from benchmarks.real_models.answers import Questions
from benchmarks.real_models.run_inflight import collect
from inflight import LLM

# KL divergence from float32, in nats. With one scale a token: 0.009 in int8, 0.013 from both files; with scales for 32
# inputs, emulated in numpy: 0.0009, 0.0007 and 0.0007. Mixed by spans, int8 has 0.0003, and 0.0001 without outliers.
MAX_FILE_KL = 0.002
MAX_INT8_KL = 0.0006
MAX_INT8_KL_WITHOUT_OUTLIERS = 0.0003
CRESTS = {"q_proj": (12, 18), "gate_proj": (12, 18), "down_proj": (16, 28), "lm_head": (11, 16)}  # Gemma 3: 15, 25


def texts() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.integers(0, VOCABULARY, 120).astype(np.int32) for _ in range(3)]


def of_layers(kind: Type) -> Any:
    """The types of a file whose layers have one type, and whose tables are in Q8_0."""
    return lambda name, values: kind if name.startswith("blk.") else Type.Q8_0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_outlier_model(tmp_path_factory.mktemp("outliers"))


def divergence(model: Path, exact: dict[str, Any], quantized: dict[str, Any]) -> float:
    """Return KL(float32 ‖ quantized) of the same weights, by settings of `LLM`."""
    settings = {"enable_prefix_caching": False, "max_num_seqs": 1, "max_model_len": 256, "num_blocks": 32}
    reference = collect(LLM(str(model), **settings, dtype="float32", **exact), Questions(texts()))
    found = collect(LLM(str(model), **settings, **quantized), Questions(texts(), reference.chosen()))
    return agreement(reference.answers(), found.answers()).kl_mean


def test_activations_have_outliers_as_measured_in_gemma(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    crests: dict[str, list[float]] = {}

    def measure(name: str) -> Any:
        def hook(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            x = inputs[0]
            crests.setdefault(name, []).append(float((x.abs().amax(-1) / x.square().mean(-1).sqrt()).mean()))

        return hook

    for name, module in model.named_modules():
        if (last := name.rpartition(".")[2]) in CRESTS:
            module.register_forward_pre_hook(measure(last))
    with torch.inference_mode():
        model(torch.from_numpy(texts()[0].astype(np.int64))[None])
    for name, (low, high) in CRESTS.items():
        assert all(low < one < high for one in crests[name]), (name, crests[name])


def test_int8_from_bf16_weights(folder: Path) -> None:
    assert divergence(folder, {}, {"quantization": "int8"}) < MAX_INT8_KL


@pytest.mark.parametrize("kind", [Type.Q8_0, Type.Q4_0], ids=["Q8_0", "Q4_0"])
def test_a_file_in_8_and_4_bits(folder: Path, kind: Type, tmp_path: Path) -> None:
    path = convert(folder, tmp_path / "model.gguf", "llama", of_layers(kind))
    assert divergence(path, {"load_format": "dequantize"}, {}) < MAX_FILE_KL


def test_without_outliers_it_is_less(tmp_path: Path) -> None:
    plain = write_outlier_model(tmp_path, with_outliers=False)
    assert divergence(plain, {}, {"quantization": "int8"}) < MAX_INT8_KL_WITHOUT_OUTLIERS
