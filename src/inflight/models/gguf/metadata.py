"""The metadata of a GGUF file: keys with values of a type, read when they are asked for.

A vocabulary has hundreds of thousands of strings, which only the tokenizer reads: until then they are bytes of the
file.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from mmap import mmap
from pathlib import Path

from msgspec import Struct

from inflight.json_file import shown
from inflight.models.errors import ModelError

STRING, ARRAY, BOOL, _INT32 = 8, 9, 7, 5
FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}  # little endian
_NO_TOKEN = 2**32 - 1  # -1 as an unsigned number
_LENGTH = struct.Struct("<Q")
_LONGEST_TEXT = 2**24  # bytes of one string; a chat template has a thousandth of it

Scalar = bool | int | float | str


class Value(Struct, frozen=True):
    """Where a value lies. kind: its type, of an array that of its items. count: None where it is no array. ends: of an
    array of strings, where each of them ends."""

    kind: int
    begin: int
    count: int | None
    ends: Sequence[int] = ()


class Metadata:
    """Values by key; every getter raises ModelError where the value is of another kind than the key should have."""

    def __init__(self, path: Path, data: mmap, values: Mapping[str, Value]) -> None:
        """values: whose bounds have been checked."""
        self._path, self._data, self._values = path, data, values

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    # -- one value ----------------------------------------------------------------------------------------------------
    def integer(self, key: str) -> int | None:
        value = self._scalar(key)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise self._other_kind(key, "a whole number", value)

    def token_id(self, key: str) -> int | None:
        """Return a token's number; None where the file says that there is none, which converters spell as -1."""
        value = self.integer(key)
        return None if value in (-1, _NO_TOKEN) else value

    def number(self, key: str) -> float | None:
        value = self._scalar(key)
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            return value
        raise self._other_kind(key, "a number", value)

    def flag(self, key: str) -> bool | None:
        value = self._scalar(key)
        if value is None or isinstance(value, bool):
            return value
        raise self._other_kind(key, "true or false", value)

    def text(self, key: str) -> str | None:
        value = self._scalar(key)
        if value is None or isinstance(value, str):
            return value
        raise self._other_kind(key, "a text", value)

    # -- arrays -------------------------------------------------------------------------------------------------------
    def is_array(self, key: str) -> bool:
        return key in self and self._values[key].count is not None

    def length(self, key: str) -> int:
        """How many items an array has; 0 where there is no such key."""
        return self._array(key).count or 0 if key in self else 0

    def texts(self, key: str) -> list[str]:
        """Return an array of strings; bytes that are no UTF-8 become the replacement character."""
        if key not in self:
            return []
        value, data = self._texts(key), self._data
        begins = chain((value.begin,), value.ends)
        return [str(data[begin + 8 : end], "utf-8", "replace") for begin, end in zip(begins, value.ends, strict=False)]

    def text_of(self, key: str, index: int) -> str:
        """Return one string of an array of strings."""
        ends = self._texts(key).ends
        begin = ends[index - 1] if index else self._values[key].begin
        return str(self._data[begin + 8 : ends[index]], "utf-8", "replace")

    def numbers(self, key: str) -> list[int] | list[float] | list[bool]:
        """Return an array of numbers or flags as Python values."""
        if key not in self:
            return []
        value = self._array(key)
        if value.kind not in FORMATS:
            raise self._other_kind(key, "a list of numbers", "a list of texts")
        return list(struct.unpack_from(f"<{value.count}{FORMATS[value.kind]}", self._data, value.begin))

    def strings(self, key: str) -> tuple[mmap, int, Sequence[int]]:
        """Return an array of strings without copying: the file's bytes, the offset of the first string's length, and
        the offset at which each string ends."""
        value = self._texts(key)
        return self._data, value.begin, value.ends

    def int32s(self, key: str) -> array[int]:
        """Return an array of 32-bit numbers, as `numbers` does."""
        found = array("i")
        if key in self and (value := self._array(key)).kind == _INT32 and sys.byteorder == "little":
            found.frombytes(self._data[value.begin : value.begin + 4 * (value.count or 0)])
        else:
            try:
                found.extend(map(int, self.numbers(key)))
            except (OverflowError, ValueError):  # too large, or not finite
                raise self._other_kind(key, "a list of whole numbers of 32 bits", "a list of others") from None
        return found

    # -- reading ------------------------------------------------------------------------------------------------------
    def _scalar(self, key: str) -> Scalar | None:
        value = self._values.get(key)
        if value is None:
            return None
        if value.count is not None:
            raise self._other_kind(key, "one value", f"a list of {value.count:,}")
        if value.kind != STRING:
            found: Scalar = struct.unpack_from("<" + FORMATS[value.kind], self._data, value.begin)[0]
            return found
        size = _LENGTH.unpack_from(self._data, value.begin)[0]
        if size > _LONGEST_TEXT:
            raise self._other_kind(key, f"a text of at most {_LONGEST_TEXT:,} bytes", f"one of {size:,}")
        return self._data[value.begin + 8 : value.begin + 8 + size].decode("utf-8", "replace")

    def _texts(self, key: str) -> Value:
        value = self._array(key)
        if value.kind != STRING:
            raise self._other_kind(key, "a list of texts", f"a list of type {value.kind}")
        return value

    def _array(self, key: str) -> Value:
        value = self._values[key]
        if value.count is None:
            raise self._other_kind(key, "a list", "one value")
        return value

    def _other_kind(self, key: str, wanted: str, got: object) -> ModelError:
        got = got if isinstance(got, str) and got.startswith(("a list", "one ")) else shown(got)
        return ModelError(f"{self._path} is damaged: {key} must be {wanted}, not {got}; download or convert it again.")
