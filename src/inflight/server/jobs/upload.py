"""An uploaded file on its way in: multipart/form-data, parsed as it comes, so that no upload is ever in memory whole.

Knows the form (`file` and `purpose`) and its mistakes; not what becomes of the content.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from inflight.counted import shortened
from inflight.server.errors import ApiError, invalid

PIECE_BYTES = 1 << 20
_LONGEST_VALUE = 1000  # bytes of a field that is no file
_LONGEST_BOUNDARY = 256  # RFC 2046 allows 70; the parser takes this much
_BOUNDARY = re.compile(rb"[0-9A-Za-z'()+_,\-./:=? ]*[0-9A-Za-z'()+_,\-./:=?]")


class MultipartUpload:
    """`filename` and `purpose` are known when `content` has ended."""

    def __init__(self, request: Request):
        """Raises ApiError when the request is no form."""
        kind, options = parse_options_header(request.headers.get("content-type"))
        if kind != b"multipart/form-data" or not options.get(b"boundary"):
            raise invalid("The request is no form; send multipart/form-data with `file` and `purpose`.")
        self.filename: str | None = None
        self.purpose: str | None = None
        self._request = request
        self._ended = False
        self._pieces = bytearray()  # of the file, not given out yet
        self._part: str | None = None
        self._value = bytearray()
        self._header, self._header_value, self._disposition = b"", b"", b""
        self._parser = MultipartParser(
            _boundary(options[b"boundary"]),
            {
                "on_part_begin": self._begin_part,
                "on_header_field": self._take_header,
                "on_header_value": self._take_header_value,
                "on_header_end": self._end_header,
                "on_headers_finished": self._end_headers,
                "on_part_data": self._take_data,
                "on_part_end": self._end_part,
                "on_end": self._end,
            },
        )

    async def content(self) -> AsyncIterator[bytes]:
        """The file in pieces. Raises ApiError where the upload breaks off or is malformed."""
        try:
            async for chunk in self._request.stream():
                if chunk:
                    self._parser.write(chunk)
                if len(self._pieces) >= PIECE_BYTES:
                    yield self._given()
        except FormParserError as error:
            raise invalid(f"The form cannot be read: {error}; send multipart/form-data.") from None
        except ClientDisconnect:
            raise invalid("The upload broke off; send it again.", "file", "truncated_upload") from None
        if not self._ended:
            raise invalid("The upload ends before its form does; send it again.", "file", "truncated_upload")
        if self._pieces:
            yield self._given()

    def _given(self) -> bytes:
        given = bytes(self._pieces)
        self._pieces.clear()
        return given

    # -- the parser's calls ---------------------------------------------------------------------------------------

    def _begin_part(self) -> None:
        self._part, self._disposition = None, b""
        self._value.clear()

    def _take_header(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _take_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._header_value
        self._header, self._header_value = b"", b""

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = _text(options.get(b"name", b""))
        if name not in ("file", "purpose"):
            raise invalid(
                f"The form field {shortened(name)!r} is unknown; send `file` and `purpose`.", shortened(name) or None
            )
        if (self.filename if name == "file" else self.purpose) is not None:
            raise invalid(f"The form field {name!r} is there twice; send it once.", name)
        if name == "file":
            if not options.get(b"filename"):
                raise invalid("The form field `file` is no file; send it with a file name.", "file")
            self.filename = _text(options[b"filename"])
        self._part = name

    def _take_data(self, data: bytes, start: int, end: int) -> None:
        if self._part == "file":
            self._pieces += data[start:end]
            return
        self._value += data[start:end]
        if len(self._value) > _LONGEST_VALUE:
            raise invalid(f"The form field {self._part!r} is too long; see what it may hold.", self._part)

    def _end_part(self) -> None:
        if self._part == "purpose":
            self.purpose = _text(bytes(self._value))

    def _end(self) -> None:
        self._ended = True


def _boundary(given: bytes) -> bytes:
    """Raises ApiError where no form can have it."""
    if len(given) > _LONGEST_BOUNDARY:
        why = f"The form's boundary has {len(given)} characters, but may have {_LONGEST_BOUNDARY}; take a shorter one."
        raise invalid(why)
    if not _BOUNDARY.fullmatch(given):
        raise invalid("The form's boundary holds a character that none may hold; take letters and digits.")
    return given


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def declared_bytes(request: Request) -> int | None:
    """Return the bytes that the client announces for the whole request. Raises ApiError where that is no number."""
    length = request.headers.get("content-length")
    if length is None:
        return None
    if not length.isascii() or not length.isdigit():
        raise ApiError(400, f"Content-Length is {shortened(length)!r}; send a number of bytes.")
    return int(length)
