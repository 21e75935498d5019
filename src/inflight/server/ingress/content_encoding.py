"""Bodies that come compressed: inflated piece by piece, so that no more is inflated than a body may have.

Knows `gzip` and `deflate` by zlib; what a body may have, the reader of bodies knows.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from starlette.types import Scope

from inflight.counted import shortened
from inflight.server.errors import ApiError, invalid
from inflight.server.ingress.answering import header

PIECE_BYTES = 1 << 18  # that one step inflates: a fraction of a millisecond
_WINDOWS = {"gzip": 31, "x-gzip": 31, "deflate": 15}  # as zlib names its formats


class Inflater:
    """Inflates one body."""

    def __init__(self, encoding: str):
        self._encoding = encoding
        self._library = zlib.decompressobj(_WINDOWS[encoding])
        self._begun = False

    def inflate(self, piece: bytes) -> Iterator[bytes]:
        """Yield what a piece of the compressed body holds, at most PIECE_BYTES at a time. Raises ApiError 400."""
        while piece:
            if self._library.eof:  # files of gzip may be several, one behind the other
                self._library = zlib.decompressobj(_WINDOWS[self._encoding])
            try:
                inflated = self._library.decompress(piece, PIECE_BYTES)
            except zlib.error as error:
                raise self._damaged(str(error).rpartition(": ")[2]) from None
            self._begun = True
            piece = self._library.unused_data if self._library.eof else self._library.unconsumed_tail
            if inflated:
                yield inflated

    def check_ended(self) -> None:
        """Raises ApiError 400 where the body is cut off."""
        if not (self._begun and self._library.eof):
            raise self._damaged("it is cut off")

    def _damaged(self, why: str) -> ApiError:
        return invalid(
            f"The body cannot be inflated as {self._encoding} ({why}); send it as its Content-Encoding says.",
            code="invalid_encoding",
        )


def inflater_for(scope: Scope) -> Inflater | None:
    """Return what inflates the request's body; None where it is not compressed. Raises ApiError 415."""
    encoding = (header(scope, b"content-encoding") or b"").decode("latin-1").strip().lower()
    if encoding in ("", "identity"):
        return None
    if encoding not in _WINDOWS:
        raise ApiError(
            415,
            f"Content-Encoding is {shortened(encoding)!r}, which is not read; send gzip, deflate or no compression.",
            code="unsupported_encoding",
            accepts="gzip, deflate",
        )
    return Inflater(encoding)
