"""JSON that anybody may have written, read by its type: what is not as declared is told in words, not by a traceback.

Knows msgspec, and what it says of what it will not read. Does not know what a file is for: whoever reads one has an
error of its own for the sentence.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

MAX_BYTES = 1 << 28  # of a line, or of a file that is one value


_LACKS = re.compile(r"Object missing required field `([^`]*)`")
_AT_BYTE = re.compile(r" \(byte (\d+)\)$")


class Malformed(ValueError):
    """cause: what is wrong, to follow the name of the file in a sentence. line: where the JSON breaks off, from 1; None
    where it is whole, but holds something else than declared."""

    def __init__(self, cause: str, line: int | None = None):
        super().__init__(cause)
        self.cause = cause
        self.line = line


def decoded(decoder: msgspec.json.Decoder[T], content: bytes) -> T:
    """Raises Malformed."""
    if len(content) > MAX_BYTES:
        raise Malformed(f"has more than {MAX_BYTES >> 20:,} MiB where one JSON value is expected")
    try:
        return decoder.decode(content)
    except msgspec.ValidationError as error:
        raise Malformed(_sentence(str(error))) from None
    except UnicodeDecodeError as error:
        raise Malformed(f"not UTF-8 ({error.reason})", 1) from None
    except msgspec.DecodeError as error:
        at = _AT_BYTE.search(str(error))
        before = content if at is None else content[: int(at[1])]
        cause = _AT_BYTE.sub("", str(error)).removeprefix("JSON is malformed: ").lower()
        raise Malformed(f"not JSON ({cause})", before.count(b"\n") + 1) from None
    except RecursionError:
        raise Malformed("not JSON that can be read (nested too deeply)", 1) from None


def converted(value: Any, type_: type[T], dec_hook: Callable[[type, Any], Any] | None = None) -> T:
    """Return a decoded JSON value as one of this type.

    Raises:
        Malformed: It is not as declared.
    """
    try:
        return msgspec.convert(value, type_, dec_hook=dec_hook, str_keys=True)
    except msgspec.ValidationError as error:
        raise Malformed(_sentence(str(error))) from None


def _sentence(message: str) -> str:
    """msgspec's words: "Expected `int`, got `str` - at `$.chunks[...].row`"."""
    what, _, place = message.partition(" - at ")
    at = f" at {place.strip('`')}" if place else ""
    lacks = _LACKS.fullmatch(what)
    return f"lacks '{lacks[1]}'{at}" if lacks else f"holds something else than a record has{at}: {_lower(what)}"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:].replace("`", "")
