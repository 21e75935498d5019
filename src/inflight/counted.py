"""Counts: their limit, and numbers with nouns and quotations for sentences: 1 token, 2 tokens, "a text that is cu…"."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta

LONGEST_SHOWN = 60  # characters of a value or name in a sentence
UNBOUNDED = 2**31 - 1  # limit of anything that is counted and has no other: what the kernels' indices hold

# Types of numbers in records and messages, with limits: a damaged number leaves no float and asks for no memory.
Count = Annotated[int, Meta(ge=0, le=2**53)]
Positive = Annotated[int, Meta(ge=1, le=2**53)]
Amount = Annotated[float, Meta(ge=0, le=1e18)]
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
MAX_MILLISECONDS = 1e15  # of a latency target: as much as a record's Time
Time = Annotated[float, Meta(ge=-1e12, le=1e12)]  # on a clock that began anywhere
TransferId = Annotated[int, Meta(ge=-(2**53), le=2**53)]  # from 1 up; of masks that draws wait for from -1 down
# Limits of an engine. A scheduler keeps a list entry for each block, row and slot.
Blocks = Annotated[int, Meta(ge=0, le=1 << 24)]
Rows = Annotated[int, Meta(ge=1, le=1 << 20)]
Slots = Annotated[int, Meta(ge=0, le=1 << 20)]
Windows = Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(min_length=1, max_length=64)]


def counted(number: int, one: str, many: str = "") -> str:
    """`1 token`, `2,000 tokens`. many: where more than one is not spelled with an s (`calls are in flight`)."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def there_are(number: int, one: str = "") -> str:
    """`there is 1`, `there are 2`, `there is 1 expert`, `there are 2 experts`."""
    return f"there {'is' if number == 1 else 'are'} {counted(number, one) if one else f'{number:,}'}"


def shortened(text: str, most: int = LONGEST_SHOWN) -> str:
    """Return the text, fit to be quoted in a sentence: at most so many characters, and half a character, which no UTF-8
    holds, as an escape."""
    text = text[: most + 1].encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= most else text[: most - 1] + "…"


def quoted(value: object) -> str:
    """Return a value as Python writes it, shortened: what a user gave, whatever it is."""
    return shortened(repr(value))


def cause_of(error: Exception) -> str:
    """Return why a file or a connection failed, for a sentence: of the system's errors the cause alone, since their
    number and path say nothing that the sentence lacks."""
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def did_you_mean(name: str, known: Iterable[str], most: int = 1, alike: float = 0.6) -> str:
    """Return ` Did you mean …?` with the known names that are written most alike; "" where none is.

    Args:
        name: As it was given.
        known: The right names.
        most: So many of them are shown, the likest first.
        alike: Share of characters that a name must have in common with the given one.
    """
    import difflib  # here, as only errors need it

    *others, last = difflib.get_close_matches(name, list(known), most, alike) or [""]
    return f" Did you mean {', '.join(others)}{' or ' if others else ''}{last}?" if last else ""


def seconds_of_parts(parts: Iterable[tuple[str, float]]) -> str:
    """Return names with their seconds: `imports 0.31 s, weights 1.20 s`; parts below 0.01 s are left out."""
    return ", ".join(f"{name} {seconds:.2f} s" for name, seconds in parts if seconds >= 0.01)


_STEERING = frozenset(("Cc", "Cs", "Zl", "Zp"))  # Unicode's categories of control characters, half ones, line ends
_REORDERING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def printable(text: str, keep: str = "") -> str:
    """Return a text of others, fit for a terminal: what would steer it, or show the text in another order, as escapes.

    Args:
        text: From a server, a file or a model.
        keep: Control characters that stay, such as a line end.
    """
    if text.isprintable():
        return text
    return "".join(one if one in keep or not _steers(one) else one.encode("unicode_escape").decode() for one in text)


def _steers(character: str) -> bool:
    return character in _REORDERING or unicodedata.category(character) in _STEERING
