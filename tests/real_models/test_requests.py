"""Requests to real models: in a batch as alone, in the form that is asked for, and each ended alone by what is not a
number."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.real_models.run_reference import oracle, write_folder
from inflight import LLM, RequestOutput, SamplingParams, StructuredOutputsParams

from .conftest import pulled

pytestmark = pytest.mark.wide
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
SUBJECTS = ("the sea", "a prime number", "bread", "trains in winter", "Lisbon", "an old piano", "sorting", "the moon")
ASKED = ("Explain {} to a child.", "Write a poem about {}.", "Is {} useful? Say why.", "List facts about {}, please.")


def prompts() -> list[str]:
    """Thirty-two of different lengths."""
    return [CHAT.format(one.format(subject)) for one in ASKED for subject in SUBJECTS]


def outcome(output: RequestOutput) -> tuple[Any, ...]:
    """The tokens of an output with their log-probabilities, bit for bit."""
    sample = output.outputs[0]
    return tuple(sample.token_ids), sample.token_logprobs, sample.finish_reason


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("smollm2", {}),
        ("smollm2", {"load_format": "dequantize", "kv_cache_dtype": "int8"}),
        ("gemma3-270m", {}),
    ],
    ids=str,
)
def test_32_requests_at_once_are_answered_as_one_by_one(name: str, settings: dict[str, Any]) -> None:
    file = pulled(name)
    params = [
        SamplingParams(temperature=0.8 * (index % 2), seed=index, max_tokens=8, logprobs=3) for index in range(32)
    ]
    with LLM(str(file), max_model_len=128, max_num_seqs=32, enable_prefix_caching=False, **settings) as llm:
        together = [outcome(one) for one in llm.generate(prompts(), params)]
        alone = [outcome(llm.generate([one], [own])[0]) for one, own in zip(prompts(), params, strict=True)]
    assert together == alone


def test_it_knows_the_capital_of_france() -> None:
    pulled("smollm2")
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    with LLM("smollm2", max_model_len=256) as llm:
        output = llm.chat(asked, SamplingParams(temperature=0, max_tokens=24))[0]
    assert "Paris" in output.outputs[0].text


def test_an_answer_by_a_schema_is_valid_and_says_what_the_question_says() -> None:
    pulled("smollm2")
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
            "city": {"type": "string", "maxLength": 20},
        },
        "required": ["name", "age", "city"],
        "additionalProperties": False,
    }
    text = "Anna is 34 years old and lives in Lisbon. Give her name, age and city as JSON."
    params = SamplingParams(temperature=0, max_tokens=64, structured_outputs=StructuredOutputsParams(json=schema))
    with LLM("smollm2", max_model_len=256) as llm:
        output = llm.chat([{"role": "user", "content": text}], params)[0].outputs[0]
    answer = json.loads(output.text)
    jsonschema.validate(answer, schema)
    assert answer == {"name": "Anna", "age": 34, "city": "Lisbon"} and output.finish_reason == "stop"


@pytest.fixture(scope="module")
def bf16_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file, folder = pulled("smollm2"), tmp_path_factory.mktemp("smollm2")
    write_folder(oracle(file), file, folder)
    return folder


@pytest.mark.parametrize("settings", [{}, {"quantization": "int8-all", "kv_cache_dtype": "int8"}], ids=["bf16", "int8"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_token_without_a_number_ends_its_own_requests_alone(
    bf16_folder: Path, value: float, settings: dict[str, Any], tmp_path: Path
) -> None:
    """The embedding of one token is poisoned, and the output projection, which shares the table, is not."""
    folder, token = tmp_path / "poisoned", 300
    poison(bf16_folder, folder, token, value)
    random = np.random.default_rng(0)
    healthy = [random.integers(1000, 2000, 20).tolist() for _ in range(3)]
    params = SamplingParams(temperature=0, max_tokens=8, logprobs=1)
    with LLM(str(folder), max_model_len=128, enable_prefix_caching=False, **settings) as llm:
        alone = [outcome(one) for one in llm.generate(healthy, params)]
        ended, *others = llm.generate([[*healthy[0][:10], token, *healthy[0][10:]], *healthy], params)
        again = [outcome(one) for one in llm.generate(healthy, params)]
    sample = ended.outputs[0]
    assert sample.finish_reason == "error" and "not finite (NaN or infinite)" in str(sample.detail)
    assert [outcome(one) for one in others] == alone == again
    assert all(reason != "error" for _, _, reason in alone)


def poison(source: Path, folder: Path, token: int, value: float) -> None:
    """Copy a model whose tables are tied, as one whose tables are not, with a number of one embedding replaced."""
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    tensors = load_file(source / "model.safetensors")
    table = tensors["model.embed_tokens.weight"]
    tensors["lm_head.weight"] = table.clone()
    table[token, 5] = torch.tensor(value, dtype=table.dtype)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
