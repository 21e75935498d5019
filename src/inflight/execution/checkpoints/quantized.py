"""Read the matrices of a quantized checkpoint by the names that they have where it is not quantized."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from inflight.execution.backends.matrices import Array
from inflight.execution.checkpoints.codes import MXFP4_CODES, Codes, nibbles
from inflight.execution.checkpoints.formats import (
    awq,
    check_divides,
    compressed_tensors,
    eight_bits,
    equal_groups,
    gptq,
)
from inflight.execution.checkpoints.safetensors_file import NUMBERS, Tensors
from inflight.models.errors import ModelError
from inflight.models.spec import WeightFormat

# MXFP4, as gpt-oss has its experts: floats of 4 bits, of which 32 share a power of two (OCP microscaling formats). The
# E experts of a layer are one stack, `mlp.experts.gate_up_proj` with the outputs of gate and up in turns, and
# `mlp.experts.down_proj`. Of a stack [E, N, K]: `_blocks` uint8[E, N, K / 32, 16], the lower four bits first, and
# `_scales` uint8[E, N, K / 32], a byte s for 2^(s - 127). A code is a sign and one of 0, 0.5, 1, 1.5, 2, 3, 4, 6, here
# its double, a whole number, beside half of the scale. Unquantized, the same stack is [E, K, N]. Each expert's matrices
# have names of their own, too, `mlp.experts.7.gate_proj.weight`, so that one can be read without the others.
BLOCKS, SCALES = "_blocks", "_scales"
_EXPERT = re.compile(r"(.+\.experts)\.(\d{1,6})\.(gate|up|down)_proj")
_GROUP = 32
_LARGEST = 252  # 2^125 · 6 is a float32


class StackSlice(NamedTuple):
    """A matrix of one expert in a stack: from the output `first`, every so many."""

    stack: str
    expert: int
    first: int
    every: int


def slice_of(module: str) -> StackSlice | None:
    """Return the slice of an expert's matrix by its name; None where the name is no expert's."""
    found = _EXPERT.fullmatch(module)
    if found is None:
        return None
    layer, expert, matrix = found[1], int(found[2]), found[3]
    if matrix == "down":
        return StackSlice(f"{layer}.down_proj", expert, 0, 1)
    return StackSlice(f"{layer}.gate_up_proj", expert, int(matrix == "up"), 2)


def mxfp4(tensors: Tensors, module: str, shape: tuple[int, int], format: WeightFormat) -> Codes:
    """Read a matrix of one expert. Raises ModelError for a name of no expert, and as `expert_of`."""
    at = slice_of(module)
    if at is None:
        raise ModelError(f"{module} lies packed, but of a checkpoint quantized by {format.method} only experts are.")
    held = tensors.shape(at.stack + BLOCKS)
    return expert_of(tensors, at, (held[0] if held else 0, shape[0] * at.every, shape[1]))


def expert_of(tensors: Tensors, at: StackSlice, shape: tuple[int, int, int]) -> Codes:
    """Read an expert's outputs without touching others. shape: (E, N, K) of the stack. Raises ModelError for an expert
    that does not exist, and for a tensor that is missing or does not fit the shape."""
    stack, expert, first, every = at
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
    scales = np.ldexp(np.float32(1), exponents.astype(np.int32) - 128)
    return Codes(nibbles(blocks.reshape(len(blocks), -1)), MXFP4_CODES, scales, None, equal_groups(inputs, count))


_READERS = {
    "awq": awq,
    "gptq": gptq,
    "compressed-tensors": compressed_tensors,
    "fp8": eight_bits,
    "fbgemm_fp8": eight_bits,
    "mxfp4": mxfp4,
}
_WEIGHT = ".weight"
# By which a packed module is known, and what may lie beside it.
_PACKED = (".qweight", ".weight_packed")
_BESIDE = (
    *(".qzeros", ".scales", ".g_idx", ".weight_scale", ".weight_scale_inv"),
    *(".weight_zero_point", ".weight_shape", ".weight_g_idx"),
)


class Quantized:
    """The quantized tensors of a folder, and the codes for which they stand.

    A tensor that has its own name and plain numbers is plain, whatever the config's lists say: norms, biases, tables,
    and the matrices that a method left out.
    """

    def __init__(self, tensors: Tensors, format: WeightFormat | None) -> None:
        self._tensors, self._format = tensors, format

    def __contains__(self, name: str) -> bool:
        """Return whether it is packed, and not plain."""
        return self.is_stack(name) or self._is_module(name)

    def is_stack(self, name: str) -> bool:
        """Return whether this name is a packed stack of a layer's experts."""
        return name + BLOCKS in self._tensors

    def parts(self, name: str) -> Iterator[str]:
        """Yield the names of the tensors in the files that are read for it."""
        module, stack = name.removesuffix(_WEIGHT), name
        candidates = [name]
        if module != name:
            candidates += [module + part for part in (*_PACKED, *_BESIDE)]
            at = slice_of(module)
            stack = name if at is None else at.stack
        return (one for one in (*candidates, stack + BLOCKS, stack + SCALES) if one in self._tensors)

    def codes(self, name: str, shape: Sequence[int]) -> Codes:
        """Return the codes of a matrix [N, K]. Raises ModelError."""
        format = self._known_format(name)
        if len(shape) != 2:
            raise ModelError(
                f"tensor {name!r} lies packed as a matrix, but config.json asks for the shape {list(shape)}; take the "
                "config.json that belongs to this checkpoint."
            )
        found = _READERS[format.method](self._tensors, name.removesuffix(_WEIGHT), (shape[0], shape[1]), format)
        return _finite(found, name)

    def stack(self, name: str, shape: Sequence[int]) -> Array:
        """Return all experts of a layer, float32[E, K, N], as they are where they are not packed."""
        format = self._known_format(name)
        if format.method != "mxfp4" or len(shape) != 3:
            raise ModelError(
                f"tensor {name!r} lies packed as experts in MXFP4, but config.json says {format.method} and asks for "
                f"the shape {list(shape)}; take the config.json that belongs to this checkpoint."
            )
        experts, inputs, outputs = shape
        all_of = [StackSlice(name, expert, 0, 1) for expert in range(experts)]
        expert_of(self._tensors, all_of[0], (experts, outputs, inputs))  # the checks, before any memory is taken
        found = np.empty((experts, inputs, outputs), np.float32)
        for at in all_of:
            found[at.expert] = expert_of(self._tensors, at, (experts, outputs, inputs)).numbers().T
        return found

    def _is_module(self, name: str) -> bool:
        module = name.removesuffix(_WEIGHT)
        if module == name:
            return False
        at = slice_of(module)
        if at is not None and self.is_stack(at.stack):
            return True
        packed = any(module + part in self._tensors for part in _PACKED)
        dtype = self._tensors.dtype(name)
        return packed or (self._format is not None and dtype is not None and dtype not in NUMBERS)

    def _known_format(self, name: str) -> WeightFormat:
        if self._format is None:
            raise ModelError(
                f"tensor {name!r} lies packed in {self._tensors.folder}, but its config.json has no "
                "quantization_config; take the config.json that belongs to this checkpoint."
            )
        return self._format


def _finite(codes: Codes, name: str) -> Codes:
    """Return the codes. Raises ModelError where a scale is so large that weights are infinite."""
    reach = float(np.nanmax(np.abs(codes.meanings.astype(np.float32))))
    reach += 0 if codes.zeros is None else float(np.abs(codes.zeros).max())
    largest = float(np.abs(codes.scales).max())
    if largest * reach > float(np.finfo(np.float32).max):
        raise ModelError(
            f"the scales of {name!r} go up to {largest:.3g}, which makes weights that are infinite; download the "
            "checkpoint again."
        )
    return codes
