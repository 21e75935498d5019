"""Weight matrices as a checkpoint holds them, before a backend packs them.

Knows numbers with scales, and nothing of files (`execution.checkpoints`) or of how a backend lays them out. A matrix of
a checkpoint is one of three: plain numbers (float32, float16, or uint16 halves of bf16), whole numbers of 8 bits with a
scale for each output, or codes of 4 bits in groups along the inputs. Every format there is becomes one of them; the
last may have its inputs in another order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
GROUPS = (128, 64, 32, 16)  # inputs that share a scale in an Int4Matrix, however many do in a checkpoint
LINEAR_CODES = np.arange(-8, 8, dtype=np.int8)  # what the 16 codes of a linear format stand for


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """W[n, k] = values[n, k] · scales[n]."""

    values: Array  # int8[N, K], from -127 to 127
    scales: Array  # float32[N]

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    def dequantized(self) -> Array:
        """float32[N, K]."""
        return np.asarray(self.values * self.scales[:, None], np.float32)


@dataclass(frozen=True, slots=True)
class Int4Matrix:
    """W[n, k] = meanings[codes[n, k]] · scales[n, k // group] + offsets[n, k // group].

    offsets None: all zero, as where a format is symmetric. A code of 4 bits stands for a whole number of 8 bits, so
    that linear formats and those with a table of their own (MXFP4, IQ4) are one.
    """

    codes: Array  # uint8[N, K], from 0 to 15
    scales: Array  # float32[N, K / group]
    offsets: Array | None  # float32[N, K / group]
    group: int  # inputs that share a scale: 16, 32, 64 or 128
    meanings: Array  # int8[16]

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    def dequantized(self) -> Array:
        """float32[N, K]."""
        groups = self.meanings[self.codes].reshape(len(self.codes), -1, self.group)
        found = groups * self.scales[..., None]
        if self.offsets is not None:
            found = found + self.offsets[..., None]
        return np.asarray(found, np.float32).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class ReorderedMatrix:
    """W[n, order[k]] = matrix[n, k], as where groups are made of inputs whose activations are of like size (act-order).

    Exact, where other groups would have to be rounded again: a product gathers x[order] first, which costs a copy of K
    numbers for each token, and is one with the matrix from there on. A type of its own, so that nobody who packs a
    matrix can overlook the order.
    """

    matrix: Int4Matrix
    order: Array  # int32[K], each input once

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape

    def dequantized(self) -> Array:
        """float32[N, K]."""
        found = np.empty(self.shape, np.float32)
        found[:, self.order] = self.matrix.dequantized()
        return found


Matrix = Array | Int8Matrix | Int4Matrix | ReorderedMatrix
