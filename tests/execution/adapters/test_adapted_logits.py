"""Adapters beside PEFT: a model with an adapter answers as PEFT's does, in whatever company, on every backend."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapters import TARGETS
from breadth import usual_of

from inflight.models.errors import ModelError

from ..conftest import OracleOf
from ..driver import Driver, backends

VARIANTS = (
    "llama2",
    "llama_biases",
    "phi3_window",
    "gemma2",
    "starcoder2",
    "glm4",
    "qwen3_moe",
    "olmo2",
    "deepseek_v3",
    "qwen35",
    "cohere",
)
MIXTURES = {  # what is linear there besides experts and routers
    "qwen3_moe": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "deepseek_v3": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"],
}
BACKENDS = [*backends(), "torch"]


def adapted(oracle: Any, folder: Path, seed: int = 1, **settings: Any) -> np.ndarray:
    """Saves a random adapter for the oracle's model, and says what PEFT makes of the prompt with it."""
    import torch
    from peft import LoraConfig, get_peft_model

    from ..oracle import _logits

    torch.manual_seed(seed)
    model = type(oracle.model).from_pretrained(
        oracle.folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    )
    given = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "init_lora_weights": False, **settings}
    peft = get_peft_model(model, LoraConfig(**given)).eval()
    with torch.no_grad():
        for name, parameter in peft.named_parameters():
            if "lora_" in name:
                parameter.normal_(0, 0.15)
    peft.save_pretrained(folder)
    return _logits(peft, oracle.prompt)


def logits(driver: Driver, prompt: np.ndarray, slot: int, chunk: int = 64) -> np.ndarray:
    sequence = driver.start(prompt)
    sequence.adapter_slot = slot
    found = driver.prefill(sequence, chunk)
    driver.end(sequence)
    return found


@pytest.mark.parametrize(
    ("variant", "isa"),
    [
        pytest.param(variant, isa, marks=() if isa in BACKENDS[:2] or variant == "llama2" else pytest.mark.wide)
        for variant in VARIANTS
        for isa in BACKENDS
    ],
)
def test_logits_are_those_of_peft(oracle_of: OracleOf, tmp_path: Path, variant: str, isa: str) -> None:
    oracle = oracle_of(variant)
    targets = {} if variant not in MIXTURES else {"target_modules": MIXTURES[variant]}
    wanted = adapted(oracle, tmp_path / "adapter", **targets)
    assert np.abs(wanted - oracle.logits).max() > 0.1, "the adapter changes nothing"
    driver = Driver.of(oracle.folder, "float32", isa)
    driver.load(0, tmp_path / "adapter")
    scale = np.abs(wanted).max()
    np.testing.assert_allclose(logits(driver, oracle.prompt, 0), wanted, atol=1e-4 * scale)
    np.testing.assert_allclose(
        logits(driver, oracle.prompt, -1), oracle.logits, atol=1e-4 * np.abs(oracle.logits).max()
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"use_rslora": True},
        {"r": 3, "target_modules": ["q_proj", "down_proj"]},
        {"rank_pattern": {"v_proj": 7, "layers.1.mlp.up_proj": 2}, "alpha_pattern": {"o_proj": 3}},
        {"layers_to_transform": [1], "target_modules": ["q_proj", "up_proj"]},
    ],
)
def test_ranks_factors_and_targets_are_pefts(oracle_of: OracleOf, tmp_path: Path, settings: dict[str, Any]) -> None:
    oracle = oracle_of("llama2")
    wanted = adapted(oracle, tmp_path / "adapter", **settings)
    for isa in (backends()[0], backends()[-1]):
        driver = Driver.of(oracle.folder, "float32", isa)
        driver.load(0, tmp_path / "adapter")
        np.testing.assert_allclose(logits(driver, oracle.prompt, 0), wanted, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("isa", usual_of(BACKENDS, *BACKENDS[:2], "torch"))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_does_not_notice_its_neighbours_adapters(
    oracle_of: OracleOf, tmp_path: Path, isa: str, dtype: str
) -> None:
    """Prompts and single tokens with three adapters and with none, in one pass: each row's bits are those alone."""
    oracle = oracle_of("llama2")
    for seed, (rank, targets) in enumerate([(4, TARGETS), (9, TARGETS[:3]), (2, ("gate_proj", "down_proj"))]):
        adapted(oracle, tmp_path / str(seed), seed, r=rank, target_modules=list(targets))
    driver = Driver.of(oracle.folder, dtype, isa)
    for slot in range(3):
        driver.load(slot, tmp_path / str(slot))
    prompts = [oracle.prompt[start : start + 9 + 5 * start] for start in range(8)]
    slots = [-1, 0, 2, -1, 1, 1, 0, -1]
    alone = [logits(driver, prompt, slot, 7) for prompt, slot in zip(prompts, slots, strict=True)]
    sequences = [driver.start(prompt) for prompt in prompts]
    for sequence, slot in zip(sequences, slots, strict=True):
        sequence.adapter_slot = slot
    found: list[list[np.ndarray]] = [[] for _ in prompts]
    while any(one.computed < len(one.tokens) for one in sequences):
        left = [(one, min(4, len(one.tokens) - one.computed)) for one in sequences]
        step = [(one, count) for one, count in left if count]
        at, together = 0, driver.step(step)
        for one, count in step:
            found[sequences.index(one)].append(together[at : at + count])
            at += count
    for index, mine in enumerate(alone):
        theirs = np.concatenate(found[index])
        if isa == "torch":
            np.testing.assert_allclose(theirs, mine, atol=1e-3 if dtype == "float32" else 0.5)
        else:
            np.testing.assert_array_equal(theirs, mine, err_msg=f"row {index}")
    assert any(np.abs(alone[1][:9] - alone[index][:9]).max() > 0.1 for index in (2, 4))


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_a_quantized_model_takes_adapters(oracle_of: OracleOf, tmp_path: Path, quantization: Any) -> None:
    oracle = oracle_of("llama2")
    adapted(oracle, tmp_path / "adapter")
    by_reference, by_kernels = (
        Driver.of(oracle.folder, "float32", isa, quantization) for isa in (backends()[0], backends()[-1])
    )
    for driver in (by_reference, by_kernels):
        driver.load(0, tmp_path / "adapter")
    wanted = logits(by_reference, oracle.prompt[:40], 0)
    np.testing.assert_allclose(logits(by_kernels, oracle.prompt[:40], 0), wanted, atol=2e-2 * np.abs(wanted).max())


def test_an_adapter_of_another_model_is_refused(oracle_of: OracleOf, tmp_path: Path) -> None:
    adapted(oracle_of("qwen3_moe"), tmp_path / "moe", target_modules=["q_proj", "o_proj"])
    with pytest.raises(ModelError, match=r"which this model has not|is of another model"):
        Driver.of(oracle_of("llama2").folder, "float32", backends()[-1]).load(0, tmp_path / "moe")
