"""Read safetensors files through a memory map: views of their tensors, each header checked before any data."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from msgspec import Struct

from inflight.execution.backends.bf16 import from_bf16
from inflight.execution.backends.protocol import Array
from inflight.json_file import LONGEST_FILE, JsonFileError, parse_json_object, shown
from inflight.models.errors import ModelError

_ITEM_BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8}
_ITEM_BITS |= {"U16": 16, "I16": 16, "F16": 16, "BF16": 16}
_ITEM_BITS |= {"U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64}
_READABLE = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}
# What packed weights are made of; floats of 8 bits as they lie, since numpy has none.
_STORED = {**_READABLE, "U8": np.uint8, "I8": np.int8, "F8_E4M3": np.uint8, "F8_E8M0": np.uint8}
_STORED |= {"I32": np.int32, "I64": np.int64}
NUMBERS = ("F32", "F16", "BF16")
_EXPONENT_BIAS = 127  # of F8_E8M0, a byte that stands for 2 to the power of itself less this; 255 is not a number
_MAX_DIMENSIONS = 16  # a weight has two
_LARGEST = 2**63  # of a dimension or an offset


class TensorEntry(Struct, frozen=True):
    """A tensor's entry in the header. `begin` and `end` are bytes from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsFile:
    """Read-only tensors of one file; a view stays valid after the file object is gone.

    The `safetensors` library is not used: its arrays for numpy have no bfloat16, and it cannot return the pages of one
    tensor to the kernel. Here a bf16 tensor is a view of its uint16 halves, and `release` drops its pages as soon as it
    is packed, so that resident memory stays near the packed weights, and a model of half of the memory can be loaded.
    """

    def __init__(self, path: str | Path) -> None:
        """Map the file and check its header. Raises ModelError for a file that is truncated or not safetensors."""
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                self.entries = _checked_entries(self.path, _read_header(self.path, file, size), size)
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelError(f"{self.path} cannot be read ({error.strerror or error}).") from None

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def tensor(self, name: str) -> Array:
        """Return a read-only view of one tensor: uint16 for BF16, float16, or float32.

        Raises KeyError for an unknown name and ModelError for a tensor that is no floating-point weight.
        """
        entry = self.entries[name]
        if entry.dtype not in _READABLE:
            raise ModelError(
                f"tensor {name!r} in {self.path} is stored as {entry.dtype}; "
                "weights must be BF16, F16 or F32, so take or convert to an unquantized checkpoint."
            )
        return self.stored(name)

    def stored(self, name: str) -> Array:
        """Return a read-only view of one tensor of any readable type: as `tensor`, or whole numbers of its own type, or
        uint8 for F8_E4M3 and F8_E8M0. Raises KeyError for an unknown name and ModelError for any other dtype."""
        entry = self.entries[name]
        if entry.dtype not in _STORED:
            raise ModelError(
                f"tensor {name!r} in {self.path} is stored as {entry.dtype}, of which no weights are made that can be "
                f"read; known are {', '.join(_STORED)}."
            )
        array = np.frombuffer(self._map, _STORED[entry.dtype], math.prod(entry.shape), entry.begin)
        # The format does not guarantee alignment; kernels expect it.
        return (array if array.flags.aligned else array.copy()).reshape(entry.shape)

    def release(self, name: str) -> None:
        """Return the pages of one tensor to the kernel; a view that is read again fetches them from the file.

        Whole pages are dropped, those that a neighbour shares included: they are clean, so nothing is lost.
        """
        entry = self.entries[name]
        begin = entry.begin - entry.begin % mmap.PAGESIZE
        if entry.end > begin and hasattr(mmap, "MADV_DONTNEED"):  # absent outside Unix, where this is only a hint
            self._map.madvise(mmap.MADV_DONTNEED, begin, entry.end - begin)


def _read_header(path: Path, file: BinaryIO, size: int) -> tuple[dict[str, Any], int]:
    """Return the parsed header, and the byte at which data begins."""
    prefix = file.read(8)
    if len(prefix) < 8:
        raise ModelError(f"{path} is truncated: {size} bytes cannot hold a safetensors header; download it again.")
    length = int.from_bytes(prefix, "little")
    if length > LONGEST_FILE:
        raise ModelError(
            f"{path} is no safetensors file: its first bytes claim a header of {length:,} bytes (at most "
            f"{LONGEST_FILE:,} are read)."
        )
    if 8 + length > size:
        raise ModelError(
            f"{path} is truncated: its header takes {length} bytes, but the file has only {size}; download it again."
        )
    try:
        header = parse_json_object(file.read(length), f"{path} is no safetensors file: its header")
    except JsonFileError as error:
        raise ModelError(str(error)) from None
    header.pop("__metadata__", None)
    return header, 8 + length


def _checked_entries(path: Path, header: tuple[dict[str, Any], int], size: int) -> dict[str, TensorEntry]:
    tensors, data_begin = header
    entries = {name: _entry(path, name, fields, data_begin) for name, fields in tensors.items()}
    data_end = max((entry.end for entry in entries.values()), default=data_begin)
    if data_end > size:
        raise ModelError(
            f"{path} is truncated: its header describes {data_end} bytes, but the file has {size}; download it again."
        )
    expected = data_begin
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != expected:
            raise ModelError(
                f"{path} is damaged: tensor {shown(name)} begins at byte {entry.begin}, where {expected} was due; "
                "download it again."
            )
        expected = entry.end
    if expected != size:
        raise ModelError(f"{path} is damaged: {size - expected:,} bytes belong to no tensor; download it again.")
    return entries


def _entry(path: Path, name: str, fields: Any, data_begin: int) -> TensorEntry:
    try:
        dtype, shape, (begin, end) = fields["dtype"], fields["shape"], fields["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise ModelError(f"{path} is damaged: its header describes tensor {shown(name)} as {shown(fields)}.") from None
    if not isinstance(dtype, str) or dtype not in _ITEM_BITS:
        raise ModelError(
            f"tensor {shown(name)} in {path} has the unknown dtype {shown(dtype)}; known are {', '.join(_ITEM_BITS)}."
        )
    is_shape = isinstance(shape, list) and len(shape) <= _MAX_DIMENSIONS
    if not is_shape or not all(map(_is_count, (*shape, begin, end))):
        raise ModelError(
            f"{path} is damaged: tensor {shown(name)} has shape {shown(shape)} at bytes {shown(begin)} to {shown(end)}."
        )
    needed = math.prod(shape) * _ITEM_BITS[dtype] // 8
    if end - begin != needed:
        raise ModelError(
            f"{path} is damaged: tensor {shown(name)} of shape {shape} and dtype {dtype} needs {needed} bytes, "
            f"but its offsets {begin} to {end} span {end - begin}; download it again."
        )
    return TensorEntry(dtype, tuple(shape), data_begin + begin, data_begin + end)


def _is_count(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < _LARGEST


class Tensors:
    """Tensors of a folder's files by name, with shapes and types checked; views are read-only, nothing is copied."""

    def __init__(self, folder: Path, files: Mapping[str, SafetensorsFile]) -> None:
        self.folder, self._files = folder, files

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def dtype(self, name: str) -> str | None:
        """Return the type as the file names it; None where there is no such tensor."""
        return self._files[name].entries[name].dtype if name in self._files else None

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file(name).entries[name].shape

    def plain(self, name: str, shape: Sequence[int]) -> Array:
        """Return float32, float16 or uint16 (bf16) of exactly this shape. Raises ModelError."""
        file = self._file(name)
        array = file.tensor(name)
        self.check_shape(name, shape)
        return array

    def stored(self, name: str, dtypes: Sequence[str], shape: Sequence[int]) -> Array:
        """Return a tensor as the file has it: of one of these dtypes, and exactly this shape. Raises ModelError."""
        file, found = self._file(name), self.dtype(name)
        if found not in dtypes:
            raise ModelError(
                f"tensor {name!r} in {file.path} is stored as {found}, but the checkpoint's quantization_config means "
                f"{' or '.join(dtypes)}; take the config.json that belongs to this checkpoint."
            )
        self.check_shape(name, shape)
        return file.stored(name)

    def numbers(self, name: str, shape: Sequence[int], exponents: Sequence[str] = ()) -> Array:
        """Return scales as a new float32 array of this shape. exponents: dtypes that are read as F8_E8M0, too. Raises
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
        """Return int64 of exactly this shape. Raises ModelError."""
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
        """Release the memory that reading a tensor took. Its views stay valid."""
        self._files[name].release(name)

    def _file(self, name: str) -> SafetensorsFile:
        if name not in self._files:
            raise ModelError(
                f"the checkpoint in {self.folder} lacks tensor {name!r}, which its config.json asks for; "
                "take a complete checkpoint, or the config.json that belongs to it."
            )
        return self._files[name]
