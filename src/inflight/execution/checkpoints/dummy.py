"""Make random weights of any model, without a download: `--load-format dummy`."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Sequence

import numpy as np

from inflight.execution.backends.bf16 import to_bf16
from inflight.execution.backends.fp8 import E4M3
from inflight.execution.backends.matrices import (
    GROUPS,
    LINEAR_CODES,
    Fp8Matrix,
    Int4Matrix,
    Int8Matrix,
    Matrix,
    ReorderedMatrix,
    by_output,
)
from inflight.execution.backends.protocol import Array, DType
from inflight.execution.checkpoints.codes import WHOLE_8
from inflight.models.spec import WeightFormat

_SCALE = 0.02
_ROUTERS = (".gate.weight", ".shared_expert_gate.weight")
_STEPS_4, _STEPS_8 = 2.5, 32.0  # of codes, in one standard deviation
# The nearest floats of 8 bits to whole numbers, by these as bytes.
_FP8 = np.abs(WHOLE_8[:, None] - np.nan_to_num(E4M3, nan=np.inf)).argmin(1).astype(np.uint8)
# Drawing a normal value costs a hundred times what copying it does, so one pool is drawn and every tensor is cut from
# it. Its length is prime: a row never falls on the same values as the row before.
_POOL_VALUES = 1_048_573


class DummyWeights:
    """Tensors drawn by (seed, name), the same on every machine, of any name and shape that is asked for.

    Their scale is that of trained weights (normal, 0.02; norms around 1), with codes where the model's checkpoint has
    codes. Speed, memory and scheduling are those of the real model; its text is noise.
    """

    def __init__(
        self, dtype: DType = "bfloat16", seed: int = 0, format: WeightFormat | None = None, keep_fp8: bool = False
    ) -> None:
        """Draw the values. format: of the checkpoint in whose stead these are. keep_fp8: as of `Checkpoint`."""
        self._seed, self._format = seed, format
        self._is_fp8 = keep_fp8 and format is not None and _has_floats(format)
        pool = np.random.default_rng(seed).standard_normal(_POOL_VALUES, np.float32) * np.float32(_SCALE)
        self._norms = pool
        self._pool = to_bf16(pool) if dtype == "bfloat16" else pool
        if format is not None:
            steps, low, high = (_STEPS_4, -8, 7) if format.bits == 4 else (_STEPS_8, -127, 127)
            self._step = np.float32(_SCALE / steps)
            self._whole = np.clip(np.rint(pool / self._step), low, high).astype(np.int8)

    def __contains__(self, name: str) -> bool:
        """Return True, but for an output projection that a tied model might have beside its table."""
        return name != "lm_head.weight"

    def tensor(self, name: str, shape: Sequence[int]) -> Array:
        """Make an array [shape], uint16 (bf16) or float32 as asked for at the start; float32 for norms."""
        pool = self._norms + np.float32(1) if name.endswith("norm.weight") else self._pool
        return self._cut(pool, name, shape)

    def pieces(self, name: str, shape: tuple[int, int]) -> Iterable[Array]:
        return (self.tensor(name, shape),)

    def matrix(self, name: str, shape: tuple[int, int]) -> Matrix:
        """Make a matrix as the checkpoint would have it: those of layers (in MXFP4, of experts) quantized, but for
        routers; all others plain."""
        format = self._format
        part = ".experts." if format is not None and format.method == "mxfp4" else ".layers."
        if format is None or part not in name or any(router in name for router in _ROUTERS):
            return self.tensor(name, shape)
        whole = self._cut(self._whole, name, shape)
        if self._is_fp8:
            return Fp8Matrix(_FP8[whole.view(np.uint8)], np.full(shape[0], self._step))
        if format.bits == 4:
            return self._int4((whole + 8).view(np.uint8), format)
        if format.act_order or (format.group_size is None and format.symmetric is not False):
            return by_output(whole, np.full(shape[0], self._step))
        return Int8Matrix(whole, *self._scales(shape, format, has_offsets=format.symmetric is False))

    def _int4(self, codes: Array, format: WeightFormat) -> Matrix:
        has_offsets = not format.symmetric and format.method != "mxfp4"
        scales, offsets, group = self._scales(codes.shape, format, has_offsets)
        found = Int4Matrix(codes, scales, offsets, group, LINEAR_CODES)
        if not (format.act_order and format.group_size):
            return found
        return ReorderedMatrix(found, np.random.default_rng(self._seed).permutation(codes.shape[1]).astype(np.int32))

    def _scales(
        self, shape: tuple[int, ...], format: WeightFormat, has_offsets: bool
    ) -> tuple[Array, Array | None, int]:
        """Return scales, offsets, and how many inputs share one of each."""
        outputs, inputs = shape
        size = math.gcd(format.group_size or inputs, inputs)
        group = next((one for one in GROUPS if not size % one), GROUPS[-1])
        scales = np.full((outputs, -(-inputs // group)), self._step)
        return scales, np.zeros_like(scales) if has_offsets else None, group

    def _cut(self, pool: Array, name: str, shape: Sequence[int]) -> Array:
        """Make an array of this shape from the pool, beginning at an offset that follows from the name."""
        count = math.prod(shape)
        begin = zlib.crc32(f"{self._seed} {name}".encode()) % len(pool)
        values = np.empty(count, pool.dtype)
        done = 0
        while done < count:
            piece = pool[begin : begin + count - done]
            values[done : done + len(piece)] = piece
            done, begin = done + len(piece), 0
        return values.reshape(shape)

    def release(self, name: str) -> None:
        """Do nothing: a tensor's memory goes with its array."""


def _has_floats(format: WeightFormat) -> bool:
    """Return whether weights are floats of 8 bits, with no more than a scale for each output."""
    return format.block is None and (format.method in ("fp8", "fbgemm_fp8") or format.layout == "float-quantized")
