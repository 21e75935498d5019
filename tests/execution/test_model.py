"""The decoder against `transformers`: same logits, same greedy tokens, and the same bits however a step is cut."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inflight.execution.backends import open_backend
from inflight.execution.backends.protocol import Quantization
from inflight.execution.checkpoints.checkpoint import Checkpoint
from inflight.execution.weights import load_weights
from inflight.models.mlps.moe import MoE
from inflight.models.registry import read_folder

from .conftest import OracleOf
from .driver import BLOCK, Driver, backends
from .variants import VARIANTS, WRAPPED

NAMES = backends()
# In numpy, on the best set and on the plainest; on the others, whose kernels have tests of their own, in ./check --all.
USUAL = {*NAMES[:2], *NAMES[-1:]}
BACKENDS = [pytest.param(isa, marks=() if isa in USUAL else pytest.mark.wide) for isa in NAMES]
CHUNK = 32
# One variant per mechanism, for the tests that need not see all of them.
LLAMA_LIKE = ["llama32_tied", "mistral_window", "qwen2_some_windows", "qwen3_biases"]
DISTINCT = [
    *LLAMA_LIKE,
    "glm4_moe",
    "gpt_oss",
    "gemma2",
    "gemma3",
    "phi4_longrope",
    "granite",
    "smollm3",
    "olmo3",
    "glm4",
    "cohere",
    "starcoder2",
    "qwen2_moe",
    "deepseek_v2_lite",
    "deepseek_v3",
    "qwen35",
    "lfm2",
    "gemma4_e2b",
    "gemma4_26b",
]
RECURRENT = ["qwen35", "qwen35_moe", "lfm2_biases"]
# Those of which some instruction set alone shows the sameness of bits: what they add is done to each token by itself.
ALSO_DISTINCT = ["ernie_moe", "granitemoe_shared", "hunyuan", "apertus", "phi_moe"]


# Each family on the best set, each mechanism in numpy and on the plainest too.
def everywhere(variants: Iterable[str], usual: Container[str] = USUAL) -> list[Any]:
    """Pairs of variant and instruction set. usual: sets on which each mechanism is tried every time."""
    return [
        pytest.param(one, isa, marks=() if isa in (usual if one in DISTINCT else NAMES[1:2]) else pytest.mark.wide)
        for one in variants
        for isa in NAMES
    ]


def relative_error(ours: np.ndarray, oracle: np.ndarray) -> float:
    return float(np.abs(ours - oracle).max() / np.abs(oracle).max())


@pytest.mark.parametrize(("variant", "isa"), everywhere(VARIANTS))
def test_logits_agree_in_f32(oracle_of: OracleOf, variant: str, isa: str) -> None:
    oracle = oracle_of(variant)
    driver = Driver.of(oracle.folder, "float32", isa)
    longest = driver.start(oracle.prompt)
    assert relative_error(driver.prefill(longest, CHUNK), oracle.logits) < 1e-4
    driver.end(longest)
    for length in (1, BLOCK - 1, BLOCK, BLOCK + 1, CHUNK + 5):
        sequence = driver.start(oracle.prompt[:length])
        logits = driver.prefill(sequence, CHUNK)
        driver.end(sequence)
        assert relative_error(logits, oracle.logits[:length]) < 1e-4, f"prompt of {length}"


@pytest.mark.parametrize(("variant", "isa"), everywhere(VARIANTS))
def test_bf16_errs_no_more_than_bf16_does_in_torch(oracle_of: OracleOf, variant: str, isa: str) -> None:
    oracle = oracle_of(variant)
    driver = Driver.of(oracle.folder, "bfloat16", isa)
    ours = driver.prefill(driver.start(oracle.prompt), CHUNK)

    def spread(logits: np.ndarray) -> float:
        return float(np.sqrt(np.mean((logits - oracle.logits) ** 2)))

    # A rounding that picks another expert is a step, and falls to either side.
    sparse = any(isinstance(layer.mlp, MoE) for layer in driver.config.layers)
    assert spread(ours) < spread(oracle.bf16_logits()) * (1.1 if sparse else 1)


@pytest.mark.parametrize("quantization", ["int8", "int8-all"])
@pytest.mark.parametrize("isa", BACKENDS)
@pytest.mark.parametrize("variant", [*LLAMA_LIKE, "lfm2"])
def test_int8_errs_by_a_few_percent(oracle_of: OracleOf, variant: str, isa: str, quantization: Quantization) -> None:
    """Each rounding to 1/127 of the largest errs by about 1 % of a normal distribution's deviation; layers add up."""
    oracle = oracle_of(variant)
    driver = Driver.of(oracle.folder, "float32", isa, quantization)
    ours = driver.prefill(driver.start(oracle.prompt), CHUNK)
    error = float(np.sqrt(np.mean((ours - oracle.logits) ** 2) / np.mean(oracle.logits**2)))
    assert 0.01 < error < 0.12


@pytest.mark.parametrize("quantization", ["int4", "int4-all"])
@pytest.mark.parametrize("isa", BACKENDS)
def test_int4_errs_by_some_percent(oracle_of: OracleOf, isa: str, quantization: Quantization) -> None:
    """Four bits err by some 8 % of a normal distribution's deviation, and layers add up; of a tied table both its ends
    do."""
    oracle = oracle_of("qwen3_tied")
    driver = Driver.of(oracle.folder, "float32", isa, quantization)
    ours = driver.prefill(driver.start(oracle.prompt), CHUNK)
    error = float(np.sqrt(np.mean((ours - oracle.logits) ** 2) / np.mean(oracle.logits**2)))
    assert 0.04 < error < 0.6


# In numpy a step takes long, and its logits and the sameness of its bits are tested.
@pytest.mark.parametrize(("variant", "isa"), everywhere(VARIANTS, USUAL - {"reference"}))
def test_greedy_tokens_agree_over_64_steps(oracle_of: OracleOf, variant: str, isa: str) -> None:
    oracle = oracle_of(variant)
    prompt = oracle.prompt[: CHUNK + 5]
    driver = Driver.of(oracle.folder, "float32", isa)
    assert driver.greedy(prompt, 64, CHUNK) == oracle.greedy(prompt, 64)


@pytest.mark.parametrize(("variant", "isa"), everywhere((*DISTINCT, *ALSO_DISTINCT)))
def test_chunks_and_company_change_no_bit(oracle_of: OracleOf, variant: str, isa: str) -> None:
    check_sameness(oracle_of, variant, isa, "float32")


# In numpy the types differ in how a result is rounded alone.
@pytest.mark.parametrize(("variant", "isa"), everywhere((*DISTINCT, *ALSO_DISTINCT), USUAL - {"reference"}))
def test_in_bf16_chunks_and_company_change_no_bit(oracle_of: OracleOf, variant: str, isa: str) -> None:
    check_sameness(oracle_of, variant, isa, "bfloat16")


def check_sameness(oracle_of: OracleOf, variant: str, isa: str, dtype: str) -> None:
    oracle = oracle_of(variant)
    driver = Driver.of(oracle.folder, dtype, isa)
    # Of a hundred tokens, each of which numpy takes a step for, sixty go beyond every window and several blocks too.
    prompt = oracle.prompt[: 60 if isa == "reference" else 100]
    alone = driver.prefill(driver.start(prompt), len(prompt))
    for chunk in (1, 7, BLOCK, 33):
        sequence = driver.start(prompt)
        assert np.array_equal(driver.prefill(sequence, chunk), alone), f"chunks of {chunk}"
        driver.end(sequence)
    ours, others = driver.start(prompt), [driver.start(oracle.prompt[first:]) for first in (3, 40, 90)]
    random = np.random.default_rng(1)
    rows = []
    while ours.computed < len(prompt):
        count = min(int(random.integers(1, 20)), len(prompt) - ours.computed)
        company = [(other, int(random.integers(1, 5))) for other in others if other.computed + 5 < len(other.tokens)]
        before = int(random.integers(0, len(company) + 1))
        chunks = [*company[:before], (ours, count), *company[before:]]
        start = sum(length for _, length in company[:before])
        rows.append(driver.step(chunks)[start : start + count])
    assert np.array_equal(np.concatenate(rows), alone)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "isa", [pytest.param(isa, marks=() if isa in NAMES[:2] else pytest.mark.wide) for isa in NAMES]
)
@pytest.mark.parametrize("variant", RECURRENT)
def test_from_a_snapshot_the_bits_are_the_same(oracle_of: OracleOf, variant: str, isa: str, dtype: str) -> None:
    """Taken in the middle of a chunk and at its end, beside others; begun from more than once, in another row."""
    oracle = oracle_of(variant)
    driver = Driver.of(oracle.folder, dtype, isa)
    prompt = oracle.prompt[:90]
    first, other = driver.start(prompt), driver.start(oracle.prompt[20:])
    alone = driver.step([(first, 40), (other, 3)], [(16, 4), (32, 1)])[:40]
    alone = np.concatenate([alone, driver.step([(first, 24)], [(48, 0), (64, 7)]), driver.prefill(first, 26)])
    for position, slot in ((64, 7), (16, 4), (32, 1), (48, 0), (16, 4)):
        again = driver.start(prompt)
        again.computed, again.snapshot, again.blocks = position, slot, first.blocks[: position // BLOCK]
        rows = driver.step([(other, 2), (again, 5)])[2:]
        rows = np.concatenate([rows, driver.prefill(again, 33)])
        assert np.array_equal(rows, alone[position:]), f"from position {position}"


def test_a_state_goes_on_where_it_stands(oracle_of: OracleOf) -> None:
    """Computing a token again, or leaving one out, would make another state of it."""
    driver = Driver.of(oracle_of("lfm2").folder, "float32", "reference")
    sequence = driver.start(np.arange(40))
    driver.step([(sequence, 20)])
    for position in (19, 21):
        sequence.computed = position
        with pytest.raises(ValueError, match=f"from position {position}, but its recurrent state stands at 20"):
            driver.step([(sequence, 5)])


@pytest.mark.parametrize("variant", WRAPPED)
def test_the_text_part_of_a_model_that_sees_images_runs(oracle_of: OracleOf, variant: str) -> None:
    oracle = oracle_of(variant)
    for isa in NAMES[:2]:
        driver = Driver.of(oracle.folder, "float32", isa)
        assert relative_error(driver.prefill(driver.start(oracle.prompt), CHUNK), oracle.logits) < 1e-4


def test_logits_are_those_of_the_rows_asked_for(oracle_of: OracleOf) -> None:
    oracle = oracle_of("llama2")
    driver = Driver.of(oracle.folder, "float32", "reference")
    everything = driver.step([(driver.start(oracle.prompt[:20]), 20)])
    places = [19, 0, 7, 7]
    assert np.array_equal(driver.logits(places), everything[places])


def test_dynamic_rope_is_fixed_for_the_configured_length(oracle_of: OracleOf) -> None:
    """Beyond the trained length the oracle's frequencies follow the sequence; ours are those of the longest."""
    folder = oracle_of("llama_dynamic").folder
    config = read_folder(folder, to_run=True)
    backend = open_backend("float32", 1, "reference")
    (short,) = load_weights(config, Checkpoint(folder), backend, config.default_model_len).ropes.values()
    (stretched,) = load_weights(config, Checkpoint(folder), backend, config.longest_model_len).ropes.values()
    assert (len(short.cos), len(stretched.cos)) == (160, 320)
    assert not np.array_equal(stretched.cos[:160], short.cos)


def test_too_many_tokens_or_rows_are_refused(oracle_of: OracleOf) -> None:
    oracle = oracle_of("llama2")
    driver = Driver.of(oracle.folder, "float32", "reference")
    with pytest.raises(ValueError, match="300 tokens does not fit a decoder made for 256"):
        driver.step([(driver.start(np.zeros(300)), 300)])
    with pytest.raises(ValueError, match="logits of 257 rows"):
        driver.logits([0] * 257)
    assert driver.decoder.nbytes > 256 * 320 * 4


def test_a_config_in_the_old_style_means_the_same(oracle_of: OracleOf, tmp_path: Path) -> None:
    """Checkpoints from before transformers 5 write rope_theta and rope_scaling."""
    oracle = oracle_of("llama31")
    for file in oracle.folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    data = json.loads((oracle.folder / "config.json").read_text())
    rope = data.pop("rope_parameters")
    data["rope_theta"] = rope.pop("rope_theta")
    data["rope_scaling"] = {"type": rope.pop("rope_type"), **rope}
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(data))
    driver = Driver.of(tmp_path, "float32", "reference")
    assert relative_error(driver.prefill(driver.start(oracle.prompt), 160), oracle.logits) < 1e-4
