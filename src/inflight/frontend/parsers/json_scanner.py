"""Where a JSON value ends in a text that is still coming.

Knows strings, brackets and scalars, not whether a value is valid: models write broken ones, which are passed on as they
are.
"""

from __future__ import annotations

import re

_OUTSIDE = re.compile(r'["{}\[\]]')
_INSIDE = re.compile(r'["\\]')
_AFTER_SCALAR = re.compile(r"[\s,}\]]")


class JsonScanner:
    """One value, from its first character on."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._begun = False
        self.is_scalar = False  # a number, true, false, null, or nonsense: no bracket or quote ends it

    @property
    def is_within_string(self) -> bool:
        """Of a list or an object, which goes on behind it."""
        return self._in_string and self._depth > 0

    def feed(self, text: str, place: int = 0) -> int | None:
        """More of the text, from `place` on. Where in it the value ends; None where it goes on behind it."""
        if place < len(text) and not self._begun:
            self._begun = True
            self.is_scalar = text[place] not in '"{['
        if self.is_scalar:
            end = _AFTER_SCALAR.search(text, place)
            return None if end is None else end.start()
        while place < len(text):
            if self._escaped:
                self._escaped = False
                place += 1
                continue
            found = (_INSIDE if self._in_string else _OUTSIDE).search(text, place)
            if found is None:
                return None
            place = found.end()
            self._see(found.group())
            if self._depth <= 0 and not self._in_string:
                return place
        return None

    def _see(self, character: str) -> None:
        if character == "\\":
            self._escaped = True
        elif character == '"':
            self._in_string = not self._in_string
        else:
            self._depth += 1 if character in "{[" else -1
