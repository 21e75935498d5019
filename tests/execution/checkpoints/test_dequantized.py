"""A quantized checkpoint held as plain numbers: by the option, and by the catalogue for a model that has a name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf_files import convert
from package_index import name_model, packaged, use_index
from safetensors.numpy import load_file, save_file

from inflight import LLM, SamplingParams
from inflight.config.setting import SettingsError
from inflight.execution.checkpoints.gguf.gguf_checkpoint import GGUFCheckpoint
from inflight.execution.checkpoints.packaged.catalogue import SUGGESTED

SCORED = SamplingParams(temperature=0, max_tokens=8, logprobs=3)


def four_bits(name: str, values: np.ndarray) -> Type:
    return Type.Q4_1 if values.shape[-1] % 32 == 0 else Type.F32


@pytest.fixture
def file(tiny: Path, tmp_path: Path) -> Path:
    return convert(tiny, tmp_path / "Tiny-Q4_1.gguf", "llama", four_bits)


def scores(model: str | Path, **settings: Any) -> list[dict[int, float]]:
    """Return the best tokens' log-probabilities of each token of an answer, in float32."""
    llm = LLM(str(model), dtype="float32", threads=1, **settings)
    logprobs = llm.generate("hello there", SCORED)[0].outputs[0].logprobs
    assert logprobs is not None
    return [{token: one.logprob for token, one in step.items()} for step in logprobs]


def test_its_answers_are_those_of_its_numbers(file: Path, tiny: Path, tmp_path: Path) -> None:
    checkpoint, folder = GGUFCheckpoint(file), tmp_path / "numbers"
    folder.mkdir()
    for one in tiny.glob("*.json"):
        (folder / one.name).write_bytes(one.read_bytes())
    shapes = {name: values.shape for name, values in load_file(tiny / "model.safetensors").items()}
    save_file({name: checkpoint.tensor(name, shape) for name, shape in shapes.items()}, folder / "model.safetensors")
    assert scores(file, load_format="dequantize") == scores(folder) != scores(file)


def test_a_model_whose_answers_need_it_is_held_so_under_its_name(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "index"
    model = packaged(index, file.read_bytes(), file.name)
    use_index(index, monkeypatch)
    name_model(replace(model, dequantized=True), monkeypatch)
    named, numbers = scores("tiny"), scores(file, load_format="dequantize")
    name_model(model, monkeypatch)
    assert named == numbers != scores("tiny")


def test_plain_models_and_modules_of_transformers_refuse_it(tiny: Path) -> None:
    with pytest.raises(SettingsError, match="dequantize is for quantized matrices, and those of this one are plain"):
        LLM(str(tiny), load_format="dequantize")
    with pytest.raises(SettingsError, match="dequantize is for our own kernels, not --backend transformers"):
        LLM(str(tiny), load_format="dequantize", backend="transformers")


def test_a_folder_goes_before_a_name_of_the_catalogue(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / SUGGESTED).symlink_to(tiny)
    monkeypatch.chdir(tmp_path)
    assert scores(SUGGESTED) == scores(tiny)
