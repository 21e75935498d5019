"""The tensors of a folder's files, by the names and in the shapes that they have there.

Knows which file holds a tensor, and the sentences for one that is missing or is something else than was asked for. Does
not know what packed tensors stand for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from inflight.execution.backends.bf16 import from_bf16
from inflight.execution.backends.protocol import Array
from inflight.execution.checkpoints.safetensors_file import SafetensorsFile
from inflight.models.errors import ModelError

NUMBERS = ("F32", "F16", "BF16")
_EXPONENT_BIAS = 127  # of F8_E8M0, a byte that stands for 2 to the power of itself less this; 255 is not a number


class Tensors:
    """Views are read-only; nothing is copied."""

    def __init__(self, folder: Path, files: Mapping[str, SafetensorsFile]) -> None:
        self.folder, self._files = folder, files

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def dtype(self, name: str) -> str | None:
        """As the file names it; None where there is no such tensor."""
        return self._files[name].entries[name].dtype if name in self._files else None

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file(name).entries[name].shape

    def plain(self, name: str, shape: Sequence[int]) -> Array:
        """float32, float16 or uint16 (bf16), of exactly this shape. Raises ModelError."""
        file = self._file(name)
        array = file.tensor(name)
        self.check_shape(name, shape)
        return array

    def stored(self, name: str, dtypes: Sequence[str], shape: Sequence[int]) -> Array:
        """As it lies in the file: of one of these dtypes, and exactly this shape. Raises ModelError."""
        file, found = self._file(name), self.dtype(name)
        if found not in dtypes:
            raise ModelError(
                f"tensor {name!r} in {file.path} is stored as {found}, but the checkpoint's quantization_config means "
                f"{' or '.join(dtypes)}; take the config.json that belongs to this checkpoint."
            )
        self.check_shape(name, shape)
        return file.stored(name)

    def numbers(self, name: str, shape: Sequence[int], exponents: Sequence[str] = ()) -> Array:
        """Scales, as a new float32 array of this shape. exponents: dtypes that are read as F8_E8M0, too. Raises
        ModelError, also for a number that is infinite or none."""
        held = self.stored(name, (*NUMBERS, *exponents), shape)
        if held.dtype == np.uint8:
            powers = held.astype(np.int32) - _EXPONENT_BIAS
            found = np.where(held == 255, np.nan, np.ldexp(1.0, powers))
        else:
            found = from_bf16(held) if held.dtype == np.uint16 else held.astype(np.float32)
        broken = int(np.count_nonzero(~np.isfinite(found)))
        if broken:
            raise ModelError(
                f"tensor {name!r} in {self._files[name].path} holds {broken:,} scales of {found.size:,} that are no "
                "finite numbers; download the checkpoint again."
            )
        return np.asarray(found, np.float32)

    def whole_numbers(self, name: str, shape: Sequence[int]) -> Array:
        """int64 of exactly this shape. Raises ModelError."""
        file, found = self._file(name), self.dtype(name)
        if found not in ("I64", "I32"):
            raise ModelError(
                f"tensor {name!r} in {file.path} is stored as {found}, but whole numbers (I64, I32) are wanted; take a "
                "checkpoint that has them."
            )
        self.check_shape(name, shape)
        return file.stored(name).astype(np.int64)

    def check_shape(self, name: str, shape: Sequence[int]) -> None:
        found = self.shape(name)
        if found != tuple(shape):
            raise ModelError(
                f"tensor {name!r} in {self._files[name].path} has shape {list(found)}, but config.json asks for "
                f"{list(shape)}; take the config.json that belongs to this checkpoint."
            )

    def release(self, name: str) -> None:
        """Lets go of the memory that reading a tensor took. Its views stay valid."""
        self._files[name].release(name)

    def _file(self, name: str) -> SafetensorsFile:
        if name not in self._files:
            raise ModelError(
                f"the checkpoint in {self.folder} lacks tensor {name!r}, which its config.json asks for; "
                "take a complete checkpoint, or the config.json that belongs to it."
            )
        return self._files[name]
