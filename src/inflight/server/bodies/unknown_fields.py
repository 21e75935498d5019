"""Fields of a body that are unknown here: collected where they are ignored, refused where the server is to refuse them.

Handles names and places; `decoding` knows which fields there are, and `notices` reports the ignored ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from msgspec import Raw

from inflight.counted import shortened
from inflight.server.errors import invalid

UnknownFieldPolicy = Literal["warn", "ignore", "refuse"]
MAX_NAMES = 16  # of ignored fields that one answer names
_MAX_TYPOS = 2  # letters that may differ from the field that was probably meant
_MIN_LETTERS_A_TYPO = 3  # of the name: "n" is not meant as "k"

_fields_of = msgspec.json.Decoder(dict[str, Raw]).decode
_entries_of = msgspec.json.Decoder(list[Raw]).decode
_encode = msgspec.json.Encoder().encode


class UnknownFields:
    """The places of a body's unknown fields, such as `options.num_ctx`, in their order: the first 16, and a number."""

    def __init__(self, *, refuses: bool = False):
        """refuses: the first one is an error."""
        self._refuses = refuses
        self._names: list[str] = []
        self._more = 0

    def add(self, place: str, known: Iterable[str] = ()) -> None:
        """known: names of which one may have been meant. Raises ApiError 400, where unknown fields are refused."""
        name = shortened(place)
        if self._refuses:
            near = nearest(place, known)
            hint = "" if near is None else f" Did you mean {near!r}?"
            raise invalid(f"The field {name!r} is unknown here; leave it out.{hint}", name, "unknown_field")
        if name in self._names:
            return
        if len(self._names) < MAX_NAMES:
            self._names.append(name)
        else:
            self._more += 1

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names, and the number of those that are left out as a last entry."""
        return (*self._names, *((f"{self._more} more",) if self._more else ()))


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name with the fewest differing letters; None where all differ by more than two letters, or by
    more than a third of the name."""
    most = min(_MAX_TYPOS, len(name) // _MIN_LETTERS_A_TYPO)
    distances = [(_distance(name, one), one) for one in known if abs(len(one) - len(name)) <= most]
    least = min(distances, default=None)
    return least[1] if least is not None and least[0] <= most else None


def without_field(raw: Raw, steps: list[str], name: str) -> tuple[Raw, bool]:
    """Return the JSON value without a nested field, and whether that field was null wherever it stood.

    steps: from the value to the object that has the field: names of fields, and "*" for all entries of a list or
    an object. Other values stay as they were written.
    """
    if not steps and bytes(memoryview(raw)[:1]) == b"{":
        fields = _fields_of(raw)
        value = fields.pop(name, Raw(b"null"))
        return Raw(_encode(fields)), bytes(value) == b"null"
    if not steps:
        return raw, True
    step, rest = steps[0], steps[1:]
    is_list = bytes(memoryview(raw)[:1]) == b"["
    entries: dict[Any, Raw] = dict(enumerate(_entries_of(raw))) if is_list else _fields_of(raw)
    were_null = [True]
    for key, entry in entries.items():
        if step in ("*", key) and bytes(memoryview(entry)[:1]) in (b"{", b"["):
            entries[key], was_null = without_field(entry, rest, name)
            were_null.append(was_null)
    return Raw(_encode(list(entries.values()) if is_list else entries)), all(were_null)


def _distance(one: str, other: str) -> int:
    """Return how many letters are to be added, left out or replaced to make one of the other (Levenshtein)."""
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        before, row[0] = row[0], i
        for j, wanted in enumerate(other, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (letter != wanted))
    return row[len(other)]
