"""Tokenize long texts part by part, so that the library's memory is bounded by the part, not by the text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tokenizers import Encoding

    from inflight.text.compiled_tokenizer import CompiledEncoding

    Encode = Callable[[str], Encoding | CompiledEncoding]

PART = 1 << 15  # characters that are tokenized at once
_TAIL = 1 << 10  # characters behind a cut that must become the same tokens
_MAX_TRIES = 32  # places of a part at which a cut is tried
# Characters before a cut that are tokenized with what is behind it: none, as digits in threes need it, or some, as
# tokenizers need it that put a space before each text.
_LEADS = (0, 64)


class _Tokens(NamedTuple):
    """Tokens after a position of the text. begins, ends: of each token, in characters from the position."""

    ids: list[int]
    begins: list[int]
    ends: list[int]


class _Cut(NamedTuple):
    """A cut. first: index of the first token after it. place: in characters from the start. lead: one of _LEADS."""

    first: int
    place: int
    lead: int


def encoded_in_parts(encode: Encode, text: str) -> Iterator[list[int]]:
    """Yield the token ids of a text, part by part. encode: with offsets, and without tokens around the text.

    A text may be cut where the tokens after the cut are the same with all the text before it and with none, or only a
    few characters, of it: the end of a part is tokenized both ways. If there is no such position, as within a word of
    many pages, the part grows.
    """
    start, lead, size = 0, 0, PART
    while True:
        is_last = len(text) - start <= size + _TAIL
        part = _behind(encode, text, start, len(text) if is_last else start + size, lead)
        assert part is not None, "a cut is where a token begins"
        if is_last:
            yield part.ids
            return
        cut = _found(encode, text, start, start + size, part)
        if cut is None:
            size *= 2
            continue
        yield part.ids[: cut.first]
        start, lead, size = start + cut.place, cut.lead, PART


def _behind(encode: Encode, text: str, start: int, end: int, lead: int) -> _Tokens | None:
    """Return the tokens of a part, read with `lead` characters before it; None if a token crosses its start."""
    lead = min(lead, start)
    encoding = encode(text[start - lead : end])
    ids, places = encoding.ids, encoding.offsets
    first = bisect_left(places, lead, key=lambda place: place[1]) + 1 if lead else 0
    while 0 < first < len(places) and places[first - 1][1] == places[first][1] == lead:
        first += 1  # of one character
    if lead and not (first <= len(places) and places[first - 1][1] == lead):
        return None
    inside = places[first:]
    return _Tokens(ids[first:], [begin - lead for begin, _ in inside], [end - lead for _, end in inside])


def _found(encode: Encode, text: str, start: int, end: int, part: _Tokens) -> _Cut | None:
    """Return a position at which a part can be cut; None: none found."""
    size = end - start
    tries = 0
    for index in range(bisect_left(part.ends, size - 2 * _TAIL) + 1, len(part.ids)):
        place = part.ends[index - 1]
        if place > size - _TAIL or tries == _MAX_TRIES:
            return None
        if part.begins[index] < place:
            continue  # a character of several tokens
        tries += 1
        for lead in _LEADS:
            tail = _behind(encode, text, start + place, end, lead)
            if tail is not None and tail.ids == part.ids[index:]:
                return _Cut(index, place, lead)
    return None
