"""Reading untrusted JSON by its type: a value that is not as declared is a sentence, not a traceback.

The readers of a file add its name to the sentence, in an error of their own.
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
    """JSON that is not as declared.

    Attributes:
        cause: To follow the name of the file in a sentence.
        line: Line of the syntax error, from 1; None where the syntax is right.
    """

    def __init__(self, cause: str, line: int | None = None):
        super().__init__(cause)
        self.cause = cause
        self.line = line


def decoded(decoder: msgspec.json.Decoder[T], content: bytes) -> T:
    """Return the value that JSON encodes, checked by the decoder's type. Raises Malformed."""
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
    """Return a cause for a message such as "Expected `int`, got `str` - at `$.chunks[...].row`"."""
    what, _, path = message.partition(" - at ")
    at = f" at {path.strip('`')}" if path else ""
    lacks = _LACKS.fullmatch(what)
    return f"lacks '{lacks[1]}'{at}" if lacks else f"holds something else than a record has{at}: {_lower(what)}"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:].replace("`", "")
