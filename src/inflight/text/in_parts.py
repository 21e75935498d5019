"""Long texts tokenized part by part, so that the library's memory is that of a part and not of the text.

A text may be cut where the tokens behind the cut are the same with the text before it and without: the end of a part is
tokenized both ways. Where no such place is found, as within a word of many pages, the part grows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Encoding

PART = 1 << 15  # characters that are tokenized at once
_TAIL = 1 << 10  # characters behind a cut that must become the same tokens
_MAX_TRIES = 32  # places of a part at which a cut is tried


def encoded_in_parts(encode: Callable[[str], Encoding], text: str) -> Iterator[list[int]]:
    """Yield the token ids of a text, part by part. encode: with places of tokens, and nothing added around the text."""
    start, size = 0, PART
    while len(text) - start > size + _TAIL:
        part = encode(text[start : start + size])
        cut = _cut(encode, text[start : start + size], part)
        if cut is None:
            size *= 2
            continue
        index, end = cut
        yield part.ids[:index]
        start, size = start + end, PART
    yield encode(text[start:]).ids


def _cut(encode: Callable[[str], Encoding], text: str, part: Encoding) -> tuple[int, int] | None:
    """Return the first token behind a cut, and the place of the cut; None where none was found."""
    token_ids, places = part.ids, part.offsets
    first = bisect_left(places, len(text) - 2 * _TAIL, key=lambda place: place[1])
    tries = 0
    for index in range(first + 1, len(places)):
        end = places[index - 1][1]
        if end > len(text) - _TAIL or tries == _MAX_TRIES:
            return None
        if places[index][0] < end:
            continue  # a character of several tokens
        tries += 1
        if encode(text[end:]).ids == token_ids[index:]:
            return index, end
    return None
