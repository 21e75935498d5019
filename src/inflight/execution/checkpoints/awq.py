"""AWQ in the layout of its `gemm` kernels: words of 32 bits that hold codes of eight neighbouring outputs.

Of a module [N, K]: qweight int32[K, N / 8], qzeros int32[G, N / 8], scales [G, N]. Of the eight outputs of a word, from
the first, the codes lie in its nibbles 0, 4, 1, 5, 2, 6, 3, 7, the lowest being 0. W[n, k] = (code - zero) · scale.
"""

from __future__ import annotations

import numpy as np

from inflight.execution.backends.matrices import LINEAR_CODES, Array
from inflight.execution.checkpoints.codes import Codes, zeros_or_none
from inflight.execution.checkpoints.grouping import by_place, check_divides, group_count
from inflight.execution.checkpoints.tensors import Tensors
from inflight.models.spec import WeightFormat

_NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)


def awq(tensors: Tensors, module: str, shape: tuple[int, int], format: WeightFormat) -> Codes:
    """Read a matrix packed by AWQ. Raises ModelError for a tensor that is missing or does not fit the shape."""
    outputs, inputs = shape
    check_divides("outputs", outputs, len(_NIBBLES), module)
    words = outputs // len(_NIBBLES)
    count = group_count(tensors, module + ".scales", 0, inputs, format)
    scales = tensors.numbers(module + ".scales", (count, outputs))
    zeros = _unpacked(tensors.stored(module + ".qzeros", ("I32",), (count, words)))
    codes = _unpacked(tensors.stored(module + ".qweight", ("I32",), (inputs, words)))
    return Codes(
        codes,
        LINEAR_CODES,
        np.ascontiguousarray(scales.T),
        zeros_or_none(zeros.astype(np.int32) - 8),
        by_place(inputs, count),
    )


def _unpacked(words: Array) -> Array:
    """int32[R, N / 8] → uint8[N, R]."""
    octets = np.ascontiguousarray(words.T).view(np.uint8).reshape(words.shape[1], words.shape[0], 4)
    codes = np.empty((words.shape[1], len(_NIBBLES), words.shape[0]), np.uint8)
    for output, nibble in enumerate(_NIBBLES):
        octet = octets[:, :, nibble // 2]
        codes[:, output] = octet >> 4 if nibble % 2 else octet & 15
    return codes.reshape(-1, words.shape[0])
