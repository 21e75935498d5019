"""compressed-tensors: packed whole numbers of 4 or 8 bits, or weights of 8 bits as they are (`eight_bits`).

Of a module [N, K] that is packed with b bits: weight_packed int32[N, ⌈K · b / 32⌉], the lowest bits first, each code a
whole number with a sign to which half of the range was added; weight_scale [N, G]; where the format is not symmetric,
weight_zero_point int32[⌈N · b / 32⌉, G], packed likewise along the outputs; weight_shape, the numbers N and K; and
weight_g_idx, the group of each input, where they follow the activations' size. W[n, k] = (code - zero) · scale.
"""

from __future__ import annotations

import numpy as np

from inflight.execution.backends.matrices import LINEAR_CODES
from inflight.execution.checkpoints.codes import OFFSET_8, Codes, unpacked, zeros_or_none
from inflight.execution.checkpoints.eight_bits import eight_bits
from inflight.execution.checkpoints.grouping import group_count, listed
from inflight.execution.checkpoints.tensors import Tensors
from inflight.models.errors import ModelError
from inflight.models.spec import WeightFormat


def compressed_tensors(tensors: Tensors, module: str, shape: tuple[int, int], format: WeightFormat) -> Codes:
    """Read a matrix of compressed-tensors. Raises ModelError for a tensor that is missing or does not fit the shape."""
    packed, zero = module + ".weight_packed", module + ".weight_zero_point"
    if packed not in tensors:
        return eight_bits(tensors, module, shape, format)
    (outputs, inputs), bits = shape, format.bits or 4
    in_word, middle = 32 // bits, 1 << (bits - 1)
    _check_stated_shape(tensors, module + ".weight_shape", shape)
    count = group_count(tensors, module + ".weight_scale", 1, inputs, format)
    groups = listed(tensors, module + ".weight_g_idx", inputs, count)
    scales = tensors.numbers(module + ".weight_scale", (outputs, count))
    if format.symmetric is False or zero in tensors:
        held = tensors.stored(zero, ("I32",), (-(-outputs // in_word), count))
        zeros = zeros_or_none(unpacked(held.T, bits).T[:outputs].astype(np.int32) - middle)
    else:
        zeros = None
    words = tensors.stored(packed, ("I32",), (outputs, -(-inputs // in_word)))
    meanings = LINEAR_CODES if bits == 4 else OFFSET_8
    return Codes(unpacked(words, bits)[:, :inputs], meanings, scales, zeros, groups)


def _check_stated_shape(tensors: Tensors, name: str, shape: tuple[int, int]) -> None:
    stated = [int(one) for one in tensors.stored(name, ("I64", "I32"), (2,))]
    if stated != list(shape):
        raise ModelError(
            f"tensor {name!r} says that the packed matrix has shape {stated}, but config.json asks for {list(shape)}; "
            "take the config.json that belongs to this checkpoint."
        )
