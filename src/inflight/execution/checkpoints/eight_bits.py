"""Weights of 8 bits that lie as they are, beside their scales: FP8, and the unpacked formats of compressed-tensors.

Of a module [N, K]: weight F8_E4M3 or I8 [N, K], and weight_scale or weight_scale_inv (by which codes are multiplied,
too, whatever its name says): one in all ([] or [1]), one for each output ([N] or [N, 1]), one for each block of outputs
and inputs [⌈N / a⌉, ⌈K / b⌉], or one for each output and group of inputs [N, G]; I8 may have weight_zero_point of the
same shape. FP8 scales may be bytes that are exponents (E8M0).
"""

from __future__ import annotations

import numpy as np

from inflight.counted import counted
from inflight.execution.backends.fp8 import E4M3
from inflight.execution.backends.matrices import Array
from inflight.execution.checkpoints.codes import WHOLE_8, Codes, zeros_or_none
from inflight.execution.checkpoints.grouping import group_count, listed
from inflight.execution.checkpoints.tensors import Tensors
from inflight.models.errors import ModelError
from inflight.models.spec import WeightFormat

_SCALES = (".weight_scale_inv", ".weight_scale")


def eight_bits(tensors: Tensors, module: str, shape: tuple[int, int], format: WeightFormat) -> Codes:
    """Read a matrix of 8 bits. Raises ModelError for a tensor that is missing, has another shape, or is not finite."""
    weight, scale, zero = module + ".weight", _scale_name(tensors, module), module + ".weight_zero_point"
    span, count, groups = _shared(tensors, module, scale, shape, format)
    held = tensors.shape(scale)
    rows = -(-shape[0] // span)
    scales = tensors.numbers(scale, held, ("F8_E8M0", "U8")).reshape(rows, count)
    zeros = None
    if zero in tensors:
        zeros = zeros_or_none(tensors.stored(zero, ("I8",), held).reshape(rows, count))
    codes = tensors.stored(weight, ("F8_E4M3", "I8"), shape)
    if codes.dtype == np.int8:
        return Codes(codes.view(np.uint8), WHOLE_8, scales, zeros, groups, span)
    if zeros is not None:
        raise ModelError(f"tensor {zero!r} gives zero points to floats of 8 bits, which have none; download it again.")
    broken = sum(int(np.count_nonzero(row & 127 == 127)) for row in codes)
    if broken:
        what = counted(broken, "weight that is no number", "weights that are no numbers")
        raise ModelError(f"tensor {weight!r} holds {what}; download it again.")
    return Codes(codes, E4M3, scales, None, groups, span)


def _scale_name(tensors: Tensors, module: str) -> str:
    found = next((module + name for name in _SCALES if module + name in tensors), None)
    if found is None:
        raise ModelError(
            f"the checkpoint in {tensors.folder} lacks tensor {module + _SCALES[1]!r}, without which the 8 bits of "
            f"{module + '.weight'!r} mean nothing; take a complete checkpoint."
        )
    return found


def _shared(
    tensors: Tensors, module: str, scale: str, shape: tuple[int, int], format: WeightFormat
) -> tuple[int, int, Array]:
    """Return how many outputs share a scale, the number of groups of inputs, and the group of each input."""
    (outputs, inputs), held = shape, tensors.shape(scale)
    whole = np.zeros(inputs, np.int32)
    if format.block is not None and len(held) == 2:
        high, wide = format.block
        tensors.check_shape(scale, (-(-outputs // high), -(-inputs // wide)))
        return high, held[1], np.arange(inputs, dtype=np.int32) // np.int32(wide)
    if held in ((), (1,), (1, 1)):
        return outputs, 1, whole
    if held in ((outputs,), (outputs, 1)):
        return 1, 1, whole
    if len(held) == 2 and held[0] == outputs:
        count = group_count(tensors, scale, 1, inputs, format)
        return 1, count, listed(tensors, module + ".weight_g_idx", inputs, count)
    raise ModelError(
        f"tensor {scale!r} has shape {list(held)}, which is neither one scale nor one for each of {outputs} outputs, "
        "nor for blocks or groups that config.json names; take the config.json that belongs to this checkpoint."
    )
