"""Find the end of a JSON value in streamed text, by strings, brackets and scalars.

Validity is not checked: malformed values of models are passed on unchanged.
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
        """Whether the text so far ends within a string of a list or an object."""
        return self._in_string and self._depth > 0

    def feed(self, text: str, index: int = 0) -> int | None:
        """Scan text from `index` on; return the index of the value's end, or None if the value goes on."""
        if index < len(text) and not self._begun:
            self._begun = True
            self.is_scalar = text[index] not in '"{['
        if self.is_scalar:
            end = _AFTER_SCALAR.search(text, index)
            return None if end is None else end.start()
        while index < len(text):
            if self._escaped:
                self._escaped = False
                index += 1
                continue
            found = (_INSIDE if self._in_string else _OUTSIDE).search(text, index)
            if found is None:
                return None
            index = found.end()
            self._see(found.group())
            if self._depth <= 0 and not self._in_string:
                return index
        return None

    def _see(self, character: str) -> None:
        if character == "\\":
            self._escaped = True
        elif character == '"':
            self._in_string = not self._in_string
        else:
            self._depth += 1 if character in "{[" else -1
