"""MXFP4, as gpt-oss holds its experts: floats of 4 bits, of which 32 share a power of two (OCP microscaling formats).

Of E experts [N, K] under one name: `_blocks` uint8[E, N, K / 32, 16], the lower four bits first, and `_scales`
uint8[E, N, K / 32], a byte s for 2^(s - 127). A code is a sign and one of 0, 0.5, 1, 1.5, 2, 3, 4, 6: held as its
double, so that it is a whole number, beside half of the scale. Unquantized, the same experts lie as [E, K, N].
"""

from __future__ import annotations

import numpy as np

from inflight.execution.backends.matrices import Array
from inflight.execution.checkpoints.codes import Codes
from inflight.execution.checkpoints.grouping import by_place, check_divides
from inflight.execution.checkpoints.tensors import Tensors
from inflight.models.errors import ModelError

DOUBLED: Array = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
_GROUP = 32
_LARGEST = 252  # 2^125 · 6 is a float32


def mxfp4_expert(tensors: Tensors, name: str, shape: tuple[int, int, int], index: int) -> Codes:
    """One of the experts, without touching the others. shape: (E, N, K). Raises ModelError for a tensor that is
    missing or does not fit the shape."""
    experts, outputs, inputs = shape
    check_divides("inputs", inputs, _GROUP, name)
    count = inputs // _GROUP
    exponents = tensors.stored(name + "_scales", ("U8", "F8_E8M0"), (experts, outputs, count))[index]
    blocks = tensors.stored(name + "_blocks", ("U8",), (experts, outputs, count, _GROUP // 2))[index]
    if exponents.max() > _LARGEST:
        raise ModelError(
            f"tensor {name + '_scales'!r} holds the exponent {exponents.max()} for expert {index}, at most {_LARGEST} "
            "makes finite weights; download the checkpoint again."
        )
    codes = np.empty((outputs, inputs), np.uint8)
    octets = blocks.reshape(outputs, inputs // 2)
    np.bitwise_and(octets, 15, out=codes[:, 0::2])
    np.right_shift(octets, 4, out=codes[:, 1::2])
    scales = np.ldexp(np.float32(1), exponents.astype(np.int32) - 128)
    return Codes(codes, DOUBLED, scales, None, by_place(inputs, count))
