"""Read one `.gguf` file through a memory map: its metadata, and where each of its tensors lies.

Versions 2 and 3 of the format are read (header, keys with values, names with shapes and types, aligned data). Every
claim is checked against the file's size before a value is touched or allocated.

Why not the `gguf` library: it trusts a file's counts and lengths, makes a Python object of every token at once (a
second for a vocabulary), cannot give the pages of one tensor back to the kernel, and brings four more packages. What it
makes of the same files is the oracle of the tests.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import sys
from array import array
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from inflight.compiled import module
from inflight.json_file import shown
from inflight.models.errors import ModelError
from inflight.models.gguf.metadata import ARRAY, FORMATS, STRING, Metadata, Value
from inflight.models.gguf.tensor_types import TensorType, tensor_type

_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_AGAIN = "download or convert it again."
# Far above any file there is; what passes them would only keep the reader busy.
_MAX_KEYS, _MAX_TENSORS, _MAX_STRINGS = 2**16, 2**17, 2**22
_MANY_STRINGS = 2**10  # from which loading the compiled module is worth it
_LONGEST_NAME = 2**12  # bytes of a key or a tensor's name
_MAX_DIMENSIONS = 4
_ALIGNMENT, _DEFAULT_ALIGNMENT, _LARGEST_ALIGNMENT = "general.alignment", 32, 2**16
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_ITEM_BYTES = {kind: struct.calcsize("<" + form) for kind, form in FORMATS.items()}


def _compiled_search() -> Callable[[mmap.mmap, int, int], bytes | None] | None:
    """Return what finds the ends of strings in a fraction of the time; None where it is not built."""
    try:
        found: Callable[[mmap.mmap, int, int], bytes | None] | None = getattr(module(), "string_ends", None)
    except ImportError:
        return None
    return found


class TensorEntry(Struct, frozen=True):
    """shape: outputs first, as Hugging Face has it (the file has them last). begin, end: bytes of the file."""

    type: TensorType
    shape: tuple[int, ...]
    begin: int
    end: int


class GGUFFile:
    """`metadata`, and `tensors` by the names that the file gives them."""

    def __init__(self, path: Path) -> None:
        """Map the file and check its header. Raises ModelError for a file that is truncated or not GGUF."""
        self.path = path
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < 24:
                    raise ModelError(f"{path} is truncated: {size} bytes cannot hold a GGUF header; {_AGAIN}")
                self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelError(f"{path} cannot be read ({error.strerror or error}).") from None
        self.metadata, self.tensors = _Reader(path, self.map).read()

    def release(self, begin: int, end: int) -> None:
        """Return the pages of these bytes to the kernel; reading them again reads the file again."""
        first = begin - begin % mmap.PAGESIZE
        if end > first and hasattr(mmap, "MADV_DONTNEED"):  # absent outside Unix, where this is only a hint
            self.map.madvise(mmap.MADV_DONTNEED, first, end - first)


class _Reader:
    """Goes through a header once. `_at` never passes the end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data, self._size, self._at = path, data, len(data), 0
        self._strings = 0

    def read(self) -> tuple[Metadata, dict[str, TensorEntry]]:
        self._check_version()
        num_tensors = self._count("tensors", _MAX_TENSORS)
        num_keys = self._count("keys", _MAX_KEYS)
        metadata = Metadata(self._path, self._data, self._values(num_keys))
        infos = [self._tensor_info() for _ in range(num_tensors)]
        alignment = self._alignment(metadata)
        data_begin = -(-self._at // alignment) * alignment
        tensors: dict[str, TensorEntry] = {}
        for name, kind, shape, offset in infos:
            if name in tensors:
                raise self._damaged(f"it has two tensors named {shown(name)}")
            tensors[name] = self._entry(name, kind, shape, offset, data_begin, alignment)
        self._check_overlap(tensors)
        return metadata, tensors

    # -- the start --------------------------------------------------------------------------------------------------
    def _check_version(self) -> None:
        magic = self._data[:4]
        self._at = 4
        version = self._u32("the version")
        if magic != _MAGIC:
            raise ModelError(f"{self._path} is no GGUF file: it begins with {shown(magic)} instead of {_MAGIC!r}.")
        if version in _VERSIONS:
            return
        if int.from_bytes(version.to_bytes(4, "big"), "little") in _VERSIONS:
            raise ModelError(
                f"{self._path} is a big-endian GGUF file, made for another kind of machine; take a little-endian one."
            )
        raise ModelError(
            f"{self._path} has version {version} of the GGUF format; versions 2 and 3 are read, so convert the model "
            "again with a present converter."
        )

    def _alignment(self, metadata: Metadata) -> int:
        found = metadata.integer(_ALIGNMENT) if _ALIGNMENT in metadata else _DEFAULT_ALIGNMENT
        if found is None or not 1 <= found <= _LARGEST_ALIGNMENT or found & (found - 1):
            raise self._damaged(
                f"{_ALIGNMENT} is {found}, which must be a power of 2 of at most {_LARGEST_ALIGNMENT:,}"
            )
        return found

    # -- keys and values --------------------------------------------------------------------------------------------
    def _values(self, num_keys: int) -> dict[str, Value]:
        values: dict[str, Value] = {}
        for _ in range(num_keys):
            key = self._name("a key")
            if key in values:
                raise self._damaged(f"it has the key {shown(key)} twice")
            values[key] = self._value(key)
        return values

    def _value(self, key: str) -> Value:
        kind, count = self._u32(key), None
        if kind == ARRAY:
            kind, count = self._u32(key), self._u64(key)
            if kind == ARRAY:
                raise self._damaged(f"{shown(key)} is a list of lists, which no key of a model is")
        begin = self._at
        if kind == STRING:
            ends = self._skip_strings(key, 1 if count is None else count)
            return Value(kind, begin, count, () if count is None else ends)
        if kind in _ITEM_BYTES:
            self._skip(key, _ITEM_BYTES[kind] * (1 if count is None else count))
        else:
            raise self._damaged(f"{shown(key)} has the unknown value type {kind}")
        return Value(kind, begin, count)

    def _skip_strings(self, key: str, count: int) -> array[int]:
        """Skip strings; return where each of them ends."""
        self._strings += count
        if self._strings > _MAX_STRINGS or self._at + 8 * count > self._size:
            raise self._damaged(f"{shown(key)} claims {count:,} texts in a file of {self._size:,} bytes")
        data, at, ends = self._data, self._at, array("Q")
        if count > _MANY_STRINGS and sys.byteorder == "little" and (find := _compiled_search()) is not None:
            found = find(data, at, count)
            if found is None:
                raise self._truncated(key)
            ends.frombytes(found)
            self._at = ends[-1]
            return ends
        read, note = _U64.unpack_from, ends.append
        try:
            for _ in range(count):
                at += 8 + read(data, at)[0]
                note(at)
        except (struct.error, OverflowError):  # behind the file's end, or beyond 64 bits
            raise self._truncated(key) from None
        if at > self._size:
            raise self._truncated(key)
        self._at = at
        return ends

    # -- tensors ----------------------------------------------------------------------------------------------------
    def _tensor_info(self) -> tuple[str, int, tuple[int, ...], int]:
        name = self._name("a tensor's name")
        dimensions = self._u32(name)
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise self._damaged(f"tensor {shown(name)} has {dimensions:,} dimensions (from 1 to {_MAX_DIMENSIONS})")
        shape = tuple(self._u64(name) for _ in range(dimensions))[::-1]
        return name, self._u32(name), shape, self._u64(name)

    def _entry(
        self, name: str, number: int, shape: tuple[int, ...], offset: int, data_begin: int, alignment: int
    ) -> TensorEntry:
        kind = tensor_type(number)
        if kind is None:
            raise ModelError(f"tensor {shown(name)} in {self._path} has the unknown type {number}; take another file.")
        if min(shape) < 1:
            raise self._damaged(f"tensor {shown(name)} has shape {list(shape)}, so it holds nothing")
        if shape[-1] % kind.values:
            raise self._damaged(
                f"tensor {shown(name)} has shape {list(shape)}, whose rows are no multiple of {kind.values} values "
                f"({kind.name})"
            )
        if offset % alignment:
            raise self._damaged(f"tensor {shown(name)} begins at {offset:,}, which is no multiple of {alignment}")
        begin = data_begin + offset
        end = begin + math.prod(shape) // kind.values * kind.nbytes
        if end > self._size:
            raise ModelError(
                f"{self._path} is truncated: tensor {shown(name)} ends at byte {end:,}, but the file has "
                f"{self._size:,}; {_AGAIN}"
            )
        return TensorEntry(kind, shape, begin, end)

    def _check_overlap(self, tensors: dict[str, TensorEntry]) -> None:
        end, before = 0, ""
        for name, entry in sorted(tensors.items(), key=lambda item: item[1].begin):
            if entry.begin < end:
                raise self._damaged(f"tensors {shown(before)} and {shown(name)} share bytes")
            end, before = entry.end, name

    # -- pieces -----------------------------------------------------------------------------------------------------
    def _count(self, what: str, most: int) -> int:
        count = self._u64(f"the number of {what}")
        if count > most or count * 16 > self._size:
            raise self._damaged(f"it claims {count:,} {what} in {self._size:,} bytes")
        return count

    def _name(self, what: str) -> str:
        length = self._u64(what)
        if length > _LONGEST_NAME:
            raise self._damaged(f"{what} claims {length:,} bytes")
        begin = self._at
        self._skip(what, length)
        try:
            return self._data[begin : self._at].decode("utf-8")
        except UnicodeDecodeError:
            raise self._damaged(f"{what} is no UTF-8") from None

    def _u32(self, what: str) -> int:
        begin = self._at
        self._skip(what, 4)
        return int(_U32.unpack_from(self._data, begin)[0])

    def _u64(self, what: str) -> int:
        begin = self._at
        self._skip(what, 8)
        return int(_U64.unpack_from(self._data, begin)[0])

    def _skip(self, what: str, count: int) -> None:
        if count > self._size - self._at:
            raise self._truncated(what)
        self._at += count

    def _truncated(self, what: str) -> ModelError:
        return ModelError(
            f"{self._path} is truncated: {shown(what)} would pass its end at {self._size:,} bytes; {_AGAIN}"
        )

    def _damaged(self, cause: str) -> ModelError:
        return ModelError(f"{self._path} is damaged: {cause}; {_AGAIN}")
