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
from inflight.execution.checkpoints.mxfp4 import mxfp4_expert
from inflight.execution.checkpoints.tensors import NUMBERS, Tensors
from inflight.models.errors import ModelError
from inflight.models.spec import WeightFormat

_READERS = {"awq": awq, "gptq": gptq, "compressed-tensors": compressed_tensors, "fp8": eight_bits}
_WEIGHT = ".weight"
# By which a packed module is known, and what may lie beside it.
_PACKED, _EXPERTS = (".qweight", ".weight_packed"), "_blocks"
_BESIDE = (
    *(".qzeros", ".scales", ".g_idx", ".weight_scale", ".weight_scale_inv"),
    *(".weight_zero_point", ".weight_shape", ".weight_g_idx"),
)


class Quantized:
    """What of a folder's tensors is packed, and what it stands for."""

    def __init__(self, tensors: Tensors, format: WeightFormat | None) -> None:
        self._tensors, self._format = tensors, format

    def __contains__(self, name: str) -> bool:
        """Whether it is packed, and not plain."""
        return self.are_experts(name) or self._is_module(name)

    def parts(self, name: str) -> Iterator[str]:
        """The names of the tensors in the files that are read for it."""
        module = name.removesuffix(_WEIGHT)
        candidates = [name, f"{name}{_EXPERTS}", f"{name}_scales"]
        candidates += [module + part for part in (*_PACKED, *_BESIDE)] if module != name else []
        return (one for one in candidates if one in self._tensors)

    def codes(self, name: str, shape: Sequence[int]) -> Codes:
        """Of a matrix [N, K]. Raises ModelError."""
        format = self._known_format(name)
        reader = _READERS.get(format.method)
        if reader is None or len(shape) != 2:
            raise ModelError(
                f"tensor {name!r} lies packed as a matrix, which a checkpoint quantized by {format.method} does not "
                f"have for the shape {list(shape)}; take the config.json that belongs to this checkpoint."
            )
        return _finite(reader(self._tensors, name.removesuffix(_WEIGHT), (shape[0], shape[1]), format), name)

    def expert(self, name: str, index: int, shape: tuple[int, int, int]) -> Codes:
        """Of one expert [N, K] of [E, N, K]. Raises ModelError."""
        format = self._known_format(name)
        if format.method != "mxfp4":
            raise ModelError(f"tensor {name!r} lies packed in MXFP4, but config.json says {format.method}.")
        return mxfp4_expert(self._tensors, name, shape, index)

    def experts(self, name: str, shape: Sequence[int]) -> Array:
        """All of them, float32[E, K, N] as they lie where they are not packed: that is the shape here."""
        if len(shape) != 3:
            raise ModelError(f"tensor {name!r} holds experts, but config.json asks for {list(shape)}.")
        count, inputs, outputs = shape
        self.expert(name, 0, (count, outputs, inputs))  # the checks, before any memory is taken
        found = np.empty((count, inputs, outputs), np.float32)
        for index in range(count):
            found[index] = self.expert(name, index, (count, outputs, inputs)).numbers().T
        return found

    def are_experts(self, name: str) -> bool:
        """Whether experts lie packed under this name, all in one."""
        return name + _EXPERTS in self._tensors

    def _is_module(self, name: str) -> bool:
        module = name.removesuffix(_WEIGHT)
        if module == name:
            return False
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
    """Raises ModelError where a scale is so large that weights are infinite."""
    reach = float(np.nanmax(np.abs(codes.meanings.astype(np.float32))))
    reach += 0 if codes.zeros is None else float(np.abs(codes.zeros).max())
    largest = float(np.abs(codes.scales).max())
    if largest * reach > float(np.finfo(np.float32).max):
        raise ModelError(
            f"the scales of {name!r} go up to {largest:.3g}, which makes weights that are infinite; download the "
            "checkpoint again."
        )
    return codes
