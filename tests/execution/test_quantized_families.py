"""Families that hold more than rows of matrices, quantized: as `transformers` computes with the same rounded weights.

Knows which tensors of a checkpoint are quantized, and along which of their sides. What backends pack is taken back to
plain numbers on both sides, so that a wrong row, a wrong side or a matrix too many shows in the logits at once; what
activations are rounded by comes on top of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from inflight.execution.backends import int8
from inflight.execution.backends.grouped import PackedMatrix
from inflight.execution.backends.matrices import Matrix, dequantized, in_int8
from inflight.execution.backends.protocol import Hold, Quantization
from inflight.execution.backends.reference import ReferenceBackend
from inflight.execution.backends.reference.backend import packed
from inflight.execution.ops.numpy_pass import Act
from inflight.execution.ops.numpy_weights import NumpyLinear, Packed
from inflight.execution.sizes import hold_of
from inflight.models.mixers.mla import LatentAttention
from inflight.models.mlps.moe import MoE
from inflight.models.registry import read_folder
from inflight.models.spec import ModelSpec

from .conftest import OracleOf
from .driver import Driver, backends
from .oracle import Oracle

VARIANTS = ["qwen35", "qwen35_moe", "qwen3_next", "deepseek_v2_lite", "deepseek_v2", "deepseek_v3", "gemma4_e2b"]
# Parts of names of matrices that are never quantized: what decides what is computed or kept, and tables of tokens.
PLAIN = (".gate.weight", ".shared_expert_gate.", ".in_proj_a.", ".in_proj_b.", ".in_proj_ba.", "embed_tokens.weight")
TABLE = "embed_tokens_per_layer.weight"
CHUNK = 32


class Taken(ReferenceBackend):
    """Quantizes as the other does, and computes with the plain numbers of it, so that activations are not rounded."""

    def pack_linear(
        self, parts: Sequence[Matrix], bias: np.ndarray | None = None, hold: Hold = "act", group: int = 32
    ) -> NumpyLinear:
        found = super().pack_linear(parts, bias, hold, group)
        return replace(found, parts=tuple(plain(part) for part in found.parts))


def plain(part: Packed) -> np.ndarray:
    return part.rows(np.arange(part.shape[0])) if isinstance(part, PackedMatrix) else dequantized(part)


def rounded_folder(folder: Path, target: Path, hold: Hold) -> Path:
    """The checkpoint, with every matrix that is quantized rounded."""
    spec, act = read_folder(folder), Act("float32")

    def by_rows(values: np.ndarray) -> np.ndarray:
        rows = values.reshape(-1, values.shape[-1])
        return plain(packed(rows, act, hold, 32)).reshape(values.shape)

    tensors = load_file(folder / "model.safetensors")
    for name, values in tensors.items():
        if name.endswith(TABLE):
            whole, scales = int8.quantize(values.reshape(len(values) * len(spec.layers), -1))
            tensors[name] = (whole * scales[:, None]).reshape(values.shape)
        elif name.endswith("kv_b_proj.weight"):
            tensors[name] = by_head(values, spec, by_rows)
        elif values.ndim == 2 and not any(part in name for part in (*PLAIN, "lm_head")):
            as_packed = values if hold_of(name, hold) == hold else in_int8(values)
            tensors[name] = plain(packed(as_packed, act, hold, 32))
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_text((folder / "config.json").read_text())
    return target


def by_head(values: np.ndarray, spec: ModelSpec, rounded: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Latent attention: of each head keys are quantized along the other side."""
    mixer = spec.layers[0].mixer
    assert isinstance(mixer, LatentAttention)
    heads = values.reshape(mixer.heads, -1, mixer.kv_lora_rank)
    keys, rest = np.split(heads, [mixer.qk_nope_head_dim], axis=1)
    turned = rounded(np.ascontiguousarray(keys.swapaxes(1, 2))).swapaxes(1, 2)
    return np.concatenate((turned, rounded(np.ascontiguousarray(rest))), axis=1).reshape(values.shape)


def logits_of(oracle: Oracle, backend: ReferenceBackend | str, quantization: Quantization) -> np.ndarray:
    if isinstance(backend, str):
        driver = Driver.of(oracle.folder, "float32", backend, quantization)
    else:
        driver = Driver(oracle.folder, backend, quantization=quantization)
    return driver.prefill(driver.start(oracle.prompt), CHUNK)


def spread(found: np.ndarray, expected: np.ndarray) -> float:
    """Root of mean squares of what differs, of that of the expected."""
    return float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_packed_weights_are_those_of_rounded_ones(
    oracle_of: OracleOf, tmp_path: Path, variant: str, quantization: Quantization
) -> None:
    oracle = oracle_of(variant)
    folder = rounded_folder(oracle.folder, tmp_path, "int8" if quantization == "int8" else "int4")
    expected = oracle.loaded(folder, oracle.model.dtype)(oracle.prompt)
    assert spread(expected, oracle.logits) > 0.003  # something was rounded
    found = logits_of(oracle, Taken("float32"), quantization)
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()
    # With activations in int8 beside, on the kernels: about a hundredth of each product's input, and of mixtures a
    # rounding that picks another expert is a step.
    beside = spread(logits_of(oracle, backends()[-1], quantization), expected)
    assert beside < (0.25 if any(isinstance(layer.mlp, MoE) for layer in read_folder(folder).layers) else 0.1)
