"""Every family on the backend over PyTorch, by its plain operations: logits of `transformers`, however a prompt is cut.

What is asked of the backends for CPUs to the bit is asked here up to rounding: PyTorch's products on a CPU add up in
another order for another number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from inflight.execution.backends.matrices import Matrix, dequantized, in_int8
from inflight.execution.backends.protocol import Hold, Quantization
from inflight.execution.backends.reference import ReferenceBackend
from inflight.execution.ops.numpy_weights import NumpyLinear
from inflight.models.mlps.moe import MoE

from ...conftest import OracleOf
from ...driver import BLOCK, Driver
from ...test_model import DISTINCT, RECURRENT, relative_error
from ...test_quantized_families import Taken
from ...variants import VARIANTS
from .opened import on_device

CHUNK = 32


class Unmixed(Taken):
    """Rounds plain weights to int8 as they are: a device does not round what meets them, and so mixes neither."""

    def pack_linear(
        self, parts: Sequence[Matrix], bias: np.ndarray | None = None, hold: Hold = "act", group: int = 32
    ) -> NumpyLinear:
        if hold == "int8":
            parts = [in_int8(dequantized(part)) if isinstance(part, np.ndarray) else part for part in parts]
        return super().pack_linear(parts, bias, hold, group)


@pytest.mark.parametrize(
    "variant", [pytest.param(one, marks=() if one in DISTINCT else pytest.mark.wide) for one in VARIANTS]
)
def test_logits_agree_in_f32(oracle_of: OracleOf, variant: str) -> None:
    oracle = oracle_of(variant)
    driver = Driver(oracle.folder, on_device())
    assert relative_error(driver.prefill(driver.start(oracle.prompt), CHUNK), oracle.logits) < 1e-4


@pytest.mark.parametrize(
    "variant", ["llama32_tied", "gemma3", "gpt_oss", "deepseek_v3", "qwen35", "lfm2", "gemma4_e2b"]
)
def test_chunks_and_company_change_nothing_but_rounding(oracle_of: OracleOf, variant: str) -> None:
    oracle = oracle_of(variant)
    driver = Driver(oracle.folder, on_device())
    prompt = oracle.prompt[:80]
    ours, others = driver.start(prompt), [driver.start(oracle.prompt[first:]) for first in (3, 40)]
    random, rows = np.random.default_rng(1), []
    while ours.computed < len(prompt):
        count = min(int(random.integers(1, 20)), len(prompt) - ours.computed)
        company = [(other, int(random.integers(1, 5))) for other in others]
        before = int(random.integers(0, len(company) + 1))
        start = sum(length for _, length in company[:before])
        rows.append(driver.step([*company[:before], (ours, count), *company[before:]])[start : start + count])
    assert relative_error(np.concatenate(rows), oracle.logits[: len(prompt)]) < 1e-4


@pytest.mark.parametrize("variant", ["llama32_tied", "qwen35", "deepseek_v2_lite"])
def test_greedy_tokens_agree(oracle_of: OracleOf, variant: str) -> None:
    """Sequences that go on from what the device has of them."""
    oracle = oracle_of(variant)
    prompt = oracle.prompt[: CHUNK + 5]
    assert Driver(oracle.folder, on_device()).greedy(prompt, 24, CHUNK) == oracle.greedy(prompt, 24)


@pytest.mark.parametrize("variant", ["llama32_tied", "gemma3", "qwen3_moe"])
def test_bf16_errs_about_as_much_as_bf16_does_in_torch(oracle_of: OracleOf, variant: str) -> None:
    oracle = oracle_of(variant)
    driver = Driver(oracle.folder, on_device("bfloat16"))
    ours = driver.prefill(driver.start(oracle.prompt), CHUNK)
    sparse = any(isinstance(layer.mlp, MoE) for layer in driver.config.layers)
    assert _spread(ours, oracle.logits) < _spread(oracle.bf16_logits(), oracle.logits) * (1.1 if sparse else 1)


@pytest.mark.parametrize("variant", ["qwen3_tied", "lfm2", "qwen35_moe", "deepseek_v2_lite", "gemma4_e2b"])
@pytest.mark.parametrize("quantization", ["int8", "int8-all", "int4"])
def test_quantized_products_multiply_what_the_codes_mean(
    oracle_of: OracleOf, variant: str, quantization: Quantization
) -> None:
    """The weights that the definition rounds to, and activations as they are. What is left is the rounding of scales,
    which the definition holds in float16; in a mixture it may pick another expert for a token."""
    oracle = oracle_of(variant)
    ours, theirs = (
        driver.prefill(driver.start(oracle.prompt[:50]), CHUNK)
        for driver in (
            Driver(oracle.folder, backend, quantization=quantization) for backend in (on_device(), Unmixed("float32"))
        )
    )
    errors = np.abs(ours - theirs).max(axis=1) / np.abs(theirs).max()
    assert (np.median(errors) if "moe" in variant else errors.max()) < 1e-2


@pytest.mark.parametrize("variant", ["qwen3_tied", "gemma2", "deepseek_v3"])
def test_keys_and_values_in_int8_err_by_as_little_as_the_definition(oracle_of: OracleOf, variant: str) -> None:
    oracle = oracle_of(variant)
    ours, theirs = (
        _spread(driver.prefill(driver.start(oracle.prompt[:60]), CHUNK), oracle.logits[:60])
        for driver in (
            Driver(oracle.folder, backend, quantized_kv=True) for backend in (on_device(), ReferenceBackend("float32"))
        )
    )
    assert 0 < ours < 1.2 * theirs


@pytest.mark.parametrize("variant", RECURRENT)
def test_a_state_goes_on_from_a_snapshot(oracle_of: OracleOf, variant: str) -> None:
    """Taken in the middle of a chunk and at its end, beside others; begun from in another row."""
    oracle = oracle_of(variant)
    driver = Driver(oracle.folder, on_device())
    prompt = oracle.prompt[:70]
    first, other = driver.start(prompt), driver.start(oracle.prompt[20:])
    driver.step([(first, 40), (other, 3)], [(16, 4), (32, 1)])
    driver.step([(first, 24)], [(48, 0), (64, 7)])
    for position, slot in ((64, 7), (16, 4), (32, 1), (48, 0)):
        again = driver.start(prompt)
        again.computed, again.snapshot, again.blocks = position, slot, first.blocks[: position // BLOCK]
        rows = np.concatenate([driver.step([(other, 2), (again, 5)])[2:], driver.prefill(again, 33)])
        assert relative_error(rows, oracle.logits[position : len(prompt)]) < 1e-4, f"from position {position}"


def test_a_state_goes_on_where_it_stands(oracle_of: OracleOf) -> None:
    driver = Driver(oracle_of("lfm2").folder, on_device())
    sequence = driver.start(np.arange(40))
    driver.step([(sequence, 20)])
    sequence.computed = 19
    with pytest.raises(ValueError, match="from position 19, but its recurrent state stands at 20"):
        driver.step([(sequence, 5)])


def _spread(found: np.ndarray, expected: np.ndarray) -> float:
    """Root of mean squares of what differs, of that of the expected."""
    return float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))
