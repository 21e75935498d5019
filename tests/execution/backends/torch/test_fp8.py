"""Models in fp8 on the backend over PyTorch: quantized as they are loaded, as a checkpoint has them, and with keys and
values in fp8, end to end by plain operations.

E4M3 is off by up to 2⁻⁴ of a number, int8 by up to 1/254 of the largest of a row, which is some four times less of what
is usual; logits are compared so.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from inflight import LLM, SamplingParams
from inflight.execution.backends.grouped import PackedMatrix
from inflight.execution.backends.matrices import Fp8Matrix, Int8Matrix, alike, by_output, columns_of, rows_of
from inflight.execution.backends.reference import ReferenceBackend
from inflight.execution.backends.torch import device, weights
from inflight.execution.backends.torch.device import DeviceError
from inflight.execution.checkpoints.checkpoint import Checkpoint
from inflight.execution.checkpoints.dummy import DummyWeights
from inflight.models.spec import WeightFormat

from ...checkpoints.test_quantized_models import write_both
from ...conftest import OracleOf
from ...driver import Driver
from .opened import on_cpu

RANDOM = np.random.default_rng(5)
MODULE = "model.layers.0.mlp.up_proj.weight"


def matrix(outputs: int = 6, inputs: int = 64) -> Fp8Matrix:
    codes = RANDOM.integers(0, 127, (outputs, inputs)) + 128 * RANDOM.integers(0, 2, (outputs, inputs))
    return Fp8Matrix(codes.astype(np.uint8), RANDOM.uniform(0.5, 2, outputs).astype(np.float32))


def off(found: np.ndarray, expected: np.ndarray) -> float:
    """Root of mean squares of what differs, of that of the expected."""
    return float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))


def test_codes_mean_on_the_device_what_they_mean_in_a_checkpoint() -> None:
    given = matrix()
    (held,) = on_cpu().pack_linear([given]).parts
    assert isinstance(held, weights.Fp8Matrix)
    assert np.array_equal((held.codes.float() * held.scales[:, None]).numpy(), given.dequantized())


def test_a_backend_that_packs_none_holds_them_in_int8() -> None:
    given, x = matrix(), RANDOM.standard_normal((3, 64)).astype(np.float32)
    backend = ReferenceBackend("float32")
    assert not backend.packs_fp8 and on_cpu().packs_fp8
    (held,) = backend.pack_linear([given]).parts
    assert (
        isinstance(held, PackedMatrix)
        and off(x @ held.rows(np.arange(held.shape[0])).T, x @ given.dequantized().T) < 0.02
    )


def test_outputs_and_inputs_are_cut_and_pairs_stay_as_they_are() -> None:
    given = matrix()
    whole = given.dequantized()
    assert np.array_equal(rows_of(given, slice(2, 5)).dequantized(), whole[2:5])
    assert np.array_equal(columns_of(given, slice(16, 40)).dequantized(), whole[:, 16:40])
    other = matrix()
    assert alike(given, other, "act") == (given, other)
    assert all(
        isinstance(one, Int8Matrix) for one in alike(given, by_output(other.codes.view(np.int8), other.scales), "")
    )


def test_plain_numbers_are_quantized_with_a_scale_for_each_output() -> None:
    plain = RANDOM.standard_normal((12, 256)).astype(np.float32) * RANDOM.uniform(0.1, 9, (12, 1)).astype(np.float32)
    (held,) = on_cpu().pack_linear([plain], hold="fp8").parts
    assert isinstance(held, weights.Fp8Matrix) and held.codes.dtype == torch.float8_e4m3fn
    meant = (held.codes.float() * held.scales[:, None]).numpy()
    largest = np.abs(plain).max(axis=1, keepdims=True)
    assert np.all(np.abs(meant - plain) <= np.maximum(np.abs(plain) / 15, largest * 2.0**-9 / 448))


@pytest.mark.parametrize("variant", ["llama32_tied", "qwen3_moe", "deepseek_v2_lite"])
def test_logits_are_off_by_a_few_times_what_int8_takes_off(oracle_of: OracleOf, variant: str) -> None:
    oracle = oracle_of(variant)
    fp8, int8 = (
        off(driver.prefill(driver.start(oracle.prompt[:60]), 32), oracle.logits[:60])
        for driver in (
            Driver(oracle.folder, on_cpu(), quantization="fp8"),
            Driver(oracle.folder, on_cpu(), quantization="int8"),
        )
    )
    assert int8 < fp8 < 10 * int8  # int8 rounds no activations


@pytest.mark.parametrize("variant", ["llama32_tied", "gemma3", "deepseek_v2_lite"])
def test_so_are_those_over_keys_and_values_in_fp8(oracle_of: OracleOf, variant: str) -> None:
    oracle = oracle_of(variant)
    fp8, int8 = (
        off(driver.prefill(driver.start(oracle.prompt[:60]), 7), oracle.logits[:60])
        for driver in (
            Driver(oracle.folder, on_cpu(), quantized_kv=True, fp8_kv=True),
            Driver(oracle.folder, on_cpu(), quantized_kv=True),
        )
    )
    assert int8 < fp8 < 8 * int8


@pytest.mark.parametrize("case", ["fp8", "compressed-tensors, fp8 by channel", "compressed-tensors, fp8 by tensor"])
def test_a_checkpoints_floats_are_kept(tmp_path: Path, case: str) -> None:
    """Round nothing but the numbers that meet them."""
    quantized, plain = write_both(tmp_path, case)
    shape = Checkpoint(plain).tensor(MODULE, _shape(plain)).shape
    kept = Checkpoint(quantized, keep_fp8=True).matrix(MODULE, (shape[0], shape[1]))
    assert isinstance(kept, Fp8Matrix)
    assert np.array_equal(kept.dequantized(), Checkpoint(quantized).tensor(MODULE, shape))
    assert isinstance(Checkpoint(quantized).matrix(MODULE, (shape[0], shape[1])), Int8Matrix)
    found, expected = (
        driver.prefill(driver.start(range(3, 60)), 32)
        for driver in (Driver(one, on_cpu()) for one in (quantized, plain))
    )
    assert 1e-4 < off(found, expected) < 0.1


def test_blocks_of_floats_become_int8(tmp_path: Path) -> None:
    quantized, plain = write_both(tmp_path, "fp8 in blocks")
    assert isinstance(Checkpoint(quantized, keep_fp8=True).matrix(MODULE, _shape(plain)), Int8Matrix)


@pytest.mark.parametrize(
    ("format", "kind"),
    [
        (WeightFormat("fp8", 8), Fp8Matrix),
        (WeightFormat("fbgemm_fp8", 8), Fp8Matrix),
        (WeightFormat("compressed-tensors", 8, layout="float-quantized"), Fp8Matrix),
        (WeightFormat("fp8", 8, block=(128, 128)), Int8Matrix),
        (WeightFormat("compressed-tensors", 8, layout="int-quantized"), Int8Matrix),
    ],
)
def test_random_weights_are_of_the_checkpoints_kind(format: WeightFormat, kind: type) -> None:
    made = DummyWeights("float32", 0, format, keep_fp8=True).matrix(MODULE, (64, 96))
    plain = DummyWeights("float32", 0, format).matrix(MODULE, (64, 96))
    assert isinstance(made, kind) and isinstance(plain, Int8Matrix)
    assert off(made.dequantized(), plain.dequantized()) < 0.04


ASKED = "<|user|>\nWhat is continuous batching?<|end|>\n<|assistant|>\n"


def said(**settings: Any) -> str:
    with LLM(threads=1, num_blocks=16, **settings) as llm:
        (output,) = llm.generate(ASKED, SamplingParams(temperature=0, max_tokens=24, ignore_eos=True))
        assert all(llm.settings[name].value == value for name, value in settings.items())
        assert str(llm.settings["kernels"].value).startswith("torch")
    return str(output.outputs[0].text)


@pytest.mark.parametrize("settings", [{"quantization": "fp8"}, {"kv_cache_dtype": "fp8"}], ids=["weights", "KV"])
def test_an_engine_says_what_the_built_in_model_knows_by_heart(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]
) -> None:
    monkeypatch.setenv("INFLIGHT_ISA", "torch")
    assert said(**settings) == said()


def test_gpus_that_do_not_multiply_such_numbers_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        name, major, minor = "NVIDIA A100", 8, 0

    class Cuda:
        @staticmethod
        def get_device_properties(number: str) -> Properties:
            return Properties()

    monkeypatch.setattr(device, "_cuda", lambda asked: Cuda)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda of: (8, 0))
    with pytest.raises(DeviceError, match=r"--quantization fp8 takes .* from sm_89 on .* A100 is sm_80; take int8"):
        device.check_fp8("cuda:0", "--quantization")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda of: (9, 0))
    device.check_fp8("cuda:0", "--quantization")


def _shape(folder: Path) -> tuple[int, int]:
    config = json.loads((folder / "config.json").read_text())
    return config["intermediate_size"], config["hidden_size"]
