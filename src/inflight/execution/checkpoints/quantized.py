"""The matrices of a quantized checkpoint, by the names that they have where it is not quantized.

Knows which packed tensors stand for a name, and which reader decodes them. What lies under its own name as plain
numbers is plain, whatever the config's lists say: norms, biases, tables, and the matrices that a method left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from inflight.execution.backends.protocol import Array
from inflight.execution.checkpoints.awq import awq
from inflight.execution.checkpoints.codes import Codes
from inflight.execution.checkpoints.compressed_tensors import compressed_tensors
from inflight.execution.checkpoints.eight_bits import eight_bits
from inflight.execution.checkpoints.gptq import gptq
from inflight.execution.checkpoints.mxfp4 import BLOCKS, SCALES, Place, expert_of, mxfp4, place_of
from inflight.execution.checkpoints.tensors import NUMBERS, Tensors
from inflight.models.errors import ModelError
from inflight.models.spec import WeightFormat

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
    """The quantized tensors of a folder, and the codes for which they stand."""

    def __init__(self, tensors: Tensors, format: WeightFormat | None) -> None:
        self._tensors, self._format = tensors, format

    def __contains__(self, name: str) -> bool:
        """Whether it is packed, and not plain."""
        return self.is_stack(name) or self._is_module(name)

    def is_stack(self, name: str) -> bool:
        """Whether the experts of a layer lie packed under this name, all in one."""
        return name + BLOCKS in self._tensors

    def parts(self, name: str) -> Iterator[str]:
        """Yield the names of the tensors in the files that are read for it."""
        module, stack = name.removesuffix(_WEIGHT), name
        candidates = [name]
        if module != name:
            candidates += [module + part for part in (*_PACKED, *_BESIDE)]
            place = place_of(module)
            stack = name if place is None else place.stack
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
        """All experts of a layer, float32[E, K, N] as they lie where they are not packed: that is the shape here."""
        format = self._known_format(name)
        if format.method != "mxfp4" or len(shape) != 3:
            raise ModelError(
                f"tensor {name!r} lies packed as experts in MXFP4, but config.json says {format.method} and asks for "
                f"the shape {list(shape)}; take the config.json that belongs to this checkpoint."
            )
        experts, inputs, outputs = shape
        all_of = [Place(name, expert, 0, 1) for expert in range(experts)]
        expert_of(self._tensors, all_of[0], (experts, outputs, inputs))  # the checks, before any memory is taken
        found = np.empty((experts, inputs, outputs), np.float32)
        for place in all_of:
            found[place.expert] = expert_of(self._tensors, place, (experts, outputs, inputs)).numbers().T
        return found

    def _is_module(self, name: str) -> bool:
        module = name.removesuffix(_WEIGHT)
        if module == name:
            return False
        place = place_of(module)
        if place is not None and self.is_stack(place.stack):
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
