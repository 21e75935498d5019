"""MXFP4, as gpt-oss holds its experts: floats of 4 bits, of which 32 share a power of two (OCP microscaling formats).

The E experts of a layer lie in one stack, `mlp.experts.gate_up_proj` with the outputs of gate and up in turns, and
`mlp.experts.down_proj`. Of a stack [E, N, K]: `_blocks` uint8[E, N, K / 32, 16], the lower four bits first, and
`_scales` uint8[E, N, K / 32], a byte s for 2^(s - 127). A code is a sign and one of 0, 0.5, 1, 1.5, 2, 3, 4, 6: held as
its double, so that it is a whole number, beside half of the scale. Unquantized, the same stack lies as [E, K, N].
Each expert's matrices are known by names of their own, too, `mlp.experts.7.gate_proj.weight`, so that one of them can
be had without the others.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from inflight.execution.backends.matrices import Array
from inflight.execution.checkpoints.codes import Codes
from inflight.execution.checkpoints.grouping import by_place, check_divides
from inflight.execution.checkpoints.tensors import Tensors
from inflight.models.errors import ModelError
from inflight.models.spec import WeightFormat

BLOCKS, SCALES = "_blocks", "_scales"
DOUBLED: Array = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
_EXPERT = re.compile(r"(.+\.experts)\.(\d{1,6})\.(gate|up|down)_proj")
_GROUP = 32
_LARGEST = 252  # 2^125 · 6 is a float32


class Place(NamedTuple):
    """Where a matrix of one expert is: in a stack, from the output `first`, every so many."""

    stack: str
    expert: int
    first: int
    every: int


def place_of(module: str) -> Place | None:
    """None where the name is no expert's."""
    found = _EXPERT.fullmatch(module)
    if found is None:
        return None
    layer, expert, matrix = found[1], int(found[2]), found[3]
    if matrix == "down":
        return Place(f"{layer}.down_proj", expert, 0, 1)
    return Place(f"{layer}.gate_up_proj", expert, int(matrix == "up"), 2)


def mxfp4(tensors: Tensors, module: str, shape: tuple[int, int], format: WeightFormat) -> Codes:
    """Read a matrix of one expert. Raises ModelError for a name of no expert, and as `expert_of`."""
    place = place_of(module)
    if place is None:
        raise ModelError(f"{module} lies packed, but of a checkpoint quantized by {format.method} only experts are.")
    held = tensors.shape(place.stack + BLOCKS)
    return expert_of(tensors, place, (held[0] if held else 0, shape[0] * place.every, shape[1]))


def expert_of(tensors: Tensors, place: Place, shape: tuple[int, int, int]) -> Codes:
    """Read an expert's outputs without touching others. shape: (E, N, K) of the stack. Raises ModelError for an expert
    that does not exist, and for a tensor that is missing or does not fit the shape."""
    stack, expert, first, every = place
    experts, outputs, inputs = shape
    check_divides("inputs", inputs, _GROUP, stack)
    count = inputs // _GROUP
    all_scales = tensors.stored(stack + SCALES, ("U8", "F8_E8M0"), (experts, outputs, count))
    all_blocks = tensors.stored(stack + BLOCKS, ("U8",), (experts, outputs, count, _GROUP // 2))
    if expert >= experts:
        raise ModelError(f"{stack} has {experts} experts, numbered from 0, and none with the number {expert}.")
    exponents, blocks = all_scales[expert, first::every], all_blocks[expert, first::every]
    if exponents.max() > _LARGEST:
        raise ModelError(
            f"tensor {stack + SCALES!r} holds the exponent {exponents.max()} for expert {expert}, at most {_LARGEST} "
            "makes finite weights; download the checkpoint again."
        )
    codes = np.empty((len(blocks), inputs), np.uint8)
    octets = blocks.reshape(len(blocks), inputs // 2)
    np.bitwise_and(octets, 15, out=codes[:, 0::2])
    np.right_shift(octets, 4, out=codes[:, 1::2])
    scales = np.ldexp(np.float32(1), exponents.astype(np.int32) - 128)
    return Codes(codes, DOUBLED, scales, None, by_place(inputs, count))
