"""Measure what quantized formats cost in error, and what is added where a checkpoint's matrix is rounded once more
here.

Random normal weights, with a share of inputs whose weights are ten times as large, as trained models have them. Each
format rounds them to the nearest code (no method that calibrates), with scales of 16 bits; `own error` is the format's
beside the weights, `added` what a backend is given (`Checkpoint.matrix`) beside the format's own numbers, `together`
both beside the weights. All are root mean squares relative to that of the weights.

    python -m benchmarks.format_error
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np

from benchmarks.results import table
from inflight.execution.backends.fp8 import E4M3
from inflight.execution.backends.matrices import LINEAR_CODES, Array, Int4Matrix, Int8Matrix, ReorderedMatrix
from inflight.execution.checkpoints.codes import MXFP4_CODES, OFFSET_8, Codes

OUTLIERS, LOUDER = 1 / 256, 10.0  # share of inputs, and how much larger their weights are
_LARGEST_E4M3 = 448.0


@dataclass(frozen=True)
class Error:
    """Return the error of one format, relative to the weights."""

    format: str
    held: str
    own: float
    added: float
    together: float


def weights(outputs: int, inputs: int, seed: int = 0, outliers: float = OUTLIERS) -> Array:
    """float32[outputs, inputs]."""
    random = np.random.default_rng(seed)
    loud = np.where(random.random(inputs) < outliers, LOUDER, 1.0)
    return (random.standard_normal((outputs, inputs)) * loud * 0.02).astype(np.float32)


def formats(given: Array) -> dict[str, Codes]:
    """The weights in every format that is read."""
    inputs = given.shape[1]
    order = np.argsort(-np.abs(given).sum(axis=0), kind="stable")
    sorted_groups = np.empty(inputs, np.int32)
    sorted_groups[order] = np.arange(inputs) // 128
    return {
        "AWQ, GPTQ, compressed-tensors: 4 bits, groups of 128": whole(given, 4, 128),
        "the same, symmetric": whole(given, 4, 128, symmetric=True),
        "GPTQ: 4 bits, groups of 128, act-order": whole(given, 4, 128, groups=sorted_groups),
        "MXFP4": mxfp4(given),
        "GPTQ: 8 bits, groups of 128": whole(given, 8, 128),
        "compressed-tensors: 8 bits, groups of 128, symmetric": whole(given, 8, 128, symmetric=True),
        "compressed-tensors: int8 by channel": whole(given, 8, inputs, symmetric=True),
        "compressed-tensors: int8 by channel, zero points": whole(given, 8, inputs),
        "FP8 by tensor": floats(given, given.shape[0], inputs),
        "FP8 by channel": floats(given, 1, inputs),
        "FP8 in blocks of 128 × 128": floats(given, 128, 128),
    }


def whole(given: Array, bits: int, group: int, *, symmetric: bool = False, groups: Array | None = None) -> Codes:
    """Whole numbers, with zero points unless symmetric."""
    outputs, inputs = given.shape
    of = np.arange(inputs, dtype=np.int32) // np.int32(group) if groups is None else groups
    by_group = given[:, np.argsort(of, kind="stable")].reshape(outputs, -1, group)
    least, most = by_group.min(axis=2), by_group.max(axis=2)
    if symmetric:
        scales = np.abs(by_group).max(axis=2) / (2 ** (bits - 1) - 1)
    else:
        scales = (np.maximum(most, 0) - np.minimum(least, 0)) / (2**bits - 1)
    scales = scales.astype(np.float16).astype(np.float32)
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    zeros = None if symmetric else np.clip(np.rint(low - np.minimum(least, 0) / scales), low, high).astype(np.float32)
    found = np.rint(given / scales[:, of] + (0 if zeros is None else zeros[:, of]))
    codes = (np.clip(found, low, high) - low).astype(np.uint8)
    return Codes(codes, LINEAR_CODES if bits == 4 else OFFSET_8, scales, zeros, of)


def mxfp4(given: Array) -> Codes:
    """The power of two as the OCP specification has it: that of the largest weight, less 2."""
    outputs, inputs = given.shape
    by_group = given.reshape(outputs, -1, 32)
    powers = np.floor(np.log2(np.abs(by_group).max(axis=2))) - 2
    scales = np.exp2(powers - 1).astype(np.float32)
    of = np.arange(inputs, dtype=np.int32) // np.int32(32)
    sizes = given / scales[:, of]
    middles = (MXFP4_CODES[1:8].astype(np.float32) + MXFP4_CODES[:7]) / 2
    codes = np.searchsorted(middles, np.abs(sizes)).astype(np.uint8)
    return Codes(codes + np.where(sizes < 0, np.uint8(8), np.uint8(0)), MXFP4_CODES, scales, None, of)


def floats(given: Array, high: int, wide: int) -> Codes:
    """FP8, where blocks of so many outputs and inputs share a scale, and divide the weights."""
    outputs, inputs = given.shape
    blocks = np.abs(given).reshape(outputs // high, high, inputs // wide, wide)
    scales = (blocks.max(axis=(1, 3)) / _LARGEST_E4M3).astype(np.float32)
    of = np.arange(inputs, dtype=np.int32) // np.int32(wide)
    sizes = given / scales[np.arange(outputs) // high][:, of]
    positive = E4M3[:127]
    codes = np.searchsorted((positive[1:] + positive[:-1]) / 2, np.abs(sizes)).astype(np.uint8)
    return Codes(codes | np.where(sizes < 0, np.uint8(128), np.uint8(0)), E4M3, scales, None, of, high)


def error(name: str, codes: Codes, given: Array) -> Error:
    numbers, matrix = codes.numbers(), codes.matrix()
    assert isinstance(matrix, Int4Matrix | Int8Matrix | ReorderedMatrix)
    held = "int8" if isinstance(matrix, Int8Matrix) else "int4"
    found = matrix.dequantized()
    return Error(name, held, _relative(numbers, given), _relative(found, numbers), _relative(found, given))


def errors(outputs: int, inputs: int, outliers: float = OUTLIERS) -> list[Error]:
    given = weights(outputs, inputs, outliers=outliers)
    return [error(name, codes, given) for name, codes in formats(given).items()]


def _relative(found: Array, given: Array) -> float:
    return float(np.sqrt(np.mean(np.square(found.astype(np.float64) - given)) / np.mean(np.square(given, dtype=float))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outputs", type=int, default=1024)
    parser.add_argument("--inputs", type=int, default=4096)
    args = parser.parse_args()
    for outliers in (0.0, OUTLIERS):
        print(
            f"{args.outputs} × {args.inputs} normal weights, {outliers:.2%} of the inputs {LOUDER:g} times as large\n"
        )
        rows = [
            [one.format, one.held, f"{one.own:.2%}", f"{one.added:.2%}" if one.added else "none", f"{one.together:.2%}"]
            for one in errors(args.outputs, args.inputs, outliers)
        ]
        print(table(["format", "held as", "own error", "added", "together"], rows), end="\n\n")


if __name__ == "__main__":
    main()
