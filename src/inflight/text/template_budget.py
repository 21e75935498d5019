"""Limit the work and the text of one rendering of a chat template."""

from __future__ import annotations

import sys
from collections.abc import Mapping, MappingView
from typing import Any

from msgspec import Struct

from inflight.text.errors import ChatTemplateError

_CHARACTERS_A_UNIT = 1024
_BYTES_A_UNIT = 512  # of text that is made, all of which may be kept
_MAX_BITS = 4096  # of a whole number
_NESTING = (list, tuple, Mapping, MappingView)


class RenderLimits(Struct, frozen=True):
    """Limits of one rendering.

    Attributes:
        characters: Of the prompt and of any intermediate text; max_model_len times the longest token is enough.
        work: Units (see above), so that an endless loop is stopped within a second.
        items: Of one list.
    """

    characters: int = 2**24
    work: int = 1_000_000
    items: int = 2**20


class Budget:
    """The work and text that one rendering has used.

    A unit of work is about what takes a microsecond: a call, an operator, a pass through a small loop, a kilobyte of
    text read, half of one of memory taken. The largest values are bounded before they are made, because one operation
    (`'a' * 10**10`) can take all of a machine's memory.
    """

    __slots__ = ("_limits", "_work", "_written")

    def __init__(self, limits: RenderLimits) -> None:
        self._limits = limits
        self._work = limits.work
        self._written = 0

    @property
    def max_items(self) -> int:
        return self._limits.items

    def spend(self, units: int) -> None:
        """Use units of work. Raises ChatTemplateError if none are left."""
        self._work -= units
        if self._work < 0:
            raise ChatTemplateError(
                f"The model's chat template takes more than {self._limits.work:,} steps on these messages and was "
                "stopped; send fewer or shorter messages, or correct its loops."
            )

    def write(self, characters: int) -> None:
        """Count characters of the prompt."""
        self._written += characters
        self.allow(self._written)

    def allow(self, characters: int) -> None:
        """Check the length of a text. Raises ChatTemplateError if it is too long."""
        if characters > self._limits.characters:
            raise ChatTemplateError(
                f"The model's chat template makes a text of {characters:,} characters of these messages, and at most "
                f"{self._limits.characters:,} are allowed; send fewer or shorter messages."
            )

    def allow_items(self, count: int) -> None:
        """Check the length of a list. Raises ChatTemplateError if it is too long."""
        if count > self._limits.items:
            raise ChatTemplateError(
                f"The model's chat template makes a list of {count:,} entries of these messages, and at most "
                f"{self._limits.items:,} are allowed; send fewer or shorter messages."
            )

    def allow_number(self, value: Any) -> None:
        """Check a number that may become a width or a count. Raises ChatTemplateError if it is too large."""
        if isinstance(value, int) and abs(value) > self._limits.characters:
            raise ChatTemplateError(
                f"The model's chat template asks for {_digits(value)} of something, and at most "
                f"{self._limits.characters:,} are allowed; correct the template."
            )

    def allow_bits(self, bits: int) -> None:
        if bits > _MAX_BITS:
            raise ChatTemplateError(
                f"The model's chat template computes a number of {_digits(bits)} bits, and at most {_MAX_BITS:,} are "
                "allowed; correct the template."
            )

    def charge(self, value: Any) -> Any:
        """Charge one reading of a value; return the value."""
        if isinstance(value, str):
            self.allow(len(value))
            self.spend(1 + len(value) // _CHARACTERS_A_UNIT)
        elif isinstance(value, list | tuple | dict | range):
            self.allow_items(len(value))
            self.spend(1 + len(value))
        else:
            self.spend(1)
        return value

    def made(self, value: Any) -> Any:
        """Charge the result of an operation; return the result."""
        if isinstance(value, str):
            self.spend(sys.getsizeof(value) // _BYTES_A_UNIT)
        elif isinstance(value, int):
            self.allow_bits(value.bit_length())
        return self.charge(value)

    def measure(self, value: Any, indent: int = 0) -> int:
        """Return about how many characters a value has as text, with everything in it; charge each entry.

        A list that contains one list many times takes little memory, and very long to write or compare.
        """
        if not isinstance(value, _NESTING):
            return self._measured(value)
        characters = 0
        waiting = [(value, 1)]
        while waiting:
            one, depth = waiting.pop()
            if isinstance(one, _NESTING):
                entries = [*one.keys(), *one.values()] if isinstance(one, Mapping) else list(one)  # type: ignore[arg-type]  # a view has entries
                self.spend(2 + len(entries))
                characters += (4 + indent * depth) * (1 + len(entries))
                waiting += [(entry, depth + 1) for entry in entries]
            else:
                characters += self._measured(one)
            if characters > self._limits.characters:
                self.allow(characters)
        return characters

    def text(self, value: Any) -> str:
        """Convert a value to text as `str` does, charged."""
        if isinstance(value, str):
            return value
        self.measure(value)
        return str(value)

    def _measured(self, value: Any) -> int:
        if isinstance(value, str):
            self.spend(len(value) // _CHARACTERS_A_UNIT)
            return len(value)
        return 24 + value.bit_length() // 3 if isinstance(value, int) else 24


def _digits(value: int) -> str:
    return f"{value:,}" if abs(value) < 10**30 else "a number of more than thirty digits"
