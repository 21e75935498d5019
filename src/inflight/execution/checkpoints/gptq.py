"""GPTQ: words of 32 bits that hold codes of neighbouring inputs, and groups that may follow the activations' size.

Of a module [N, K] with b bits: qweight int32[K · b / 32, N], qzeros int32[G, N · b / 32], scales [G, N], and g_idx
int32[K], the group of each input; the lowest bits come first. W[n, k] = (code - zero) · scale. The first version of the
layout stores each zero less 1, in as many bits: 0 lies there as the largest code. `gptq_v2` stores it as it is.
"""

from __future__ import annotations

import numpy as np

from inflight.execution.backends.matrices import LINEAR_CODES
from inflight.execution.checkpoints.codes import OFFSET_8, Codes, unpacked, zeros_or_none
from inflight.execution.checkpoints.grouping import check_divides, group_count, listed
from inflight.execution.checkpoints.tensors import Tensors
from inflight.models.spec import WeightFormat


def gptq(tensors: Tensors, module: str, shape: tuple[int, int], format: WeightFormat) -> Codes:
    """Read a matrix packed by GPTQ. Raises ModelError for a tensor that is missing or does not fit the shape."""
    (outputs, inputs), bits = shape, format.bits or 4
    in_word, middle = 32 // bits, 1 << (bits - 1)
    check_divides("inputs", inputs, in_word, module)
    check_divides("outputs", outputs, in_word, module)
    count = group_count(tensors, module + ".scales", 0, inputs, format)
    groups = listed(tensors, module + ".g_idx", inputs, count)
    scales = tensors.numbers(module + ".scales", (count, outputs))
    qzeros = tensors.stored(module + ".qzeros", ("I32",), (count, outputs // in_word))
    qweight = tensors.stored(module + ".qweight", ("I32",), (inputs // in_word, outputs))
    zeros = unpacked(qzeros, bits).astype(np.int32).T
    if format.layout != "gptq_v2":
        zeros = (zeros + 1) % (1 << bits)
    return Codes(
        unpacked(qweight.T, bits),
        LINEAR_CODES if bits == 4 else OFFSET_8,
        np.ascontiguousarray(scales.T),
        zeros_or_none(zeros - middle),
        groups,
    )
