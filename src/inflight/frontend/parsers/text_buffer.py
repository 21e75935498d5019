"""Buffer received text that is not consumed yet.

Reading takes time in proportion to the text's length: only text that is put back is copied or searched again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from inflight.frontend.parsers.json_scanner import JsonScanner


class TextBuffer:
    def __init__(self) -> None:
        self._text = ""
        self._place = 0  # text before this index is consumed

    def __bool__(self) -> bool:
        return self._place < len(self._text)

    def __len__(self) -> int:
        return len(self._text) - self._place

    def push(self, text: str) -> None:
        self._text = self._text[self._place :] + text
        self._place = 0

    def put_back(self, text: str) -> None:
        """Put back the text that was consumed last."""
        begin = self._place - len(text)
        if begin >= 0 and self._text.startswith(text, begin):
            self._place = begin
        else:
            self._text, self._place = text + self._text[self._place :], 0

    def peek(self) -> str:
        """Return the first character; empty if the buffer is empty."""
        return self._text[self._place : self._place + 1]

    def take(self, length: int) -> str:
        begin, self._place = self._place, min(len(self._text), self._place + length)
        return self._text[begin : self._place]

    def take_white(self) -> str:
        found = _WHITE.match(self._text, self._place)
        assert found is not None
        self._place = found.end()
        return found.group()

    def starts_with(self, text: str) -> bool:
        return self._text.startswith(text, self._place)

    def is_beginning_of(self, text: str) -> bool:
        """Return whether the whole buffer is a proper beginning of the text."""
        return len(self) < len(text) and text.startswith(self._text[self._place :])

    def find(self, marks: Sequence[str]) -> tuple[int, str] | None:
        """Return the length of the text before the first mark, and the mark, the longest of those at that index."""
        found = _pattern(tuple(marks)).search(self._text, self._place)
        return None if found is None else (found.start() - self._place, found.group())

    def length_of_json(self, scanner: JsonScanner) -> int | None:
        """Return the length of the scanner's value in the buffer; None: the value goes on."""
        end = scanner.feed(self._text, self._place)
        return None if end is None else end - self._place

    def length_of_beginning(self, marks: Sequence[str]) -> int:
        """Return the length of the longest end of the buffer that begins a mark."""
        longest = min(len(self), max(map(len, marks)) - 1)
        for length in range(longest, 0, -1):
            tail = self._text[len(self._text) - length :]
            if any(mark.startswith(tail) for mark in marks):
                return length
        return 0


_WHITE = re.compile(r"\s*")


@lru_cache(256)
def _pattern(marks: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(marks, key=len, reverse=True))))
