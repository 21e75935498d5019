"""Lines of batch files: requests as OpenAI writes them, one at a time, and the lines that answer them.

The body of a line stays as it was written, unread, until the line is answered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Raw

from inflight.counted import shortened
from inflight.server.common.mistakes import HALF_CHARACTER, without_prefix
from inflight.server.registry import OF_LINES

if TYPE_CHECKING:
    LinePath = str
else:
    LinePath = Literal[tuple(OF_LINES)]  # as bodies and the OpenAPI document have it
MAX_CUSTOM_ID = 512  # characters
_FIELDS_OF = msgspec.json.Decoder(dict[str, Raw]).decode
_TEXT = msgspec.json.Decoder(str).decode
_FIELDS = ("custom_id", "method", "url", "body")


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request. number: of its line in the file, from 1. body: JSON, as it was written."""

    number: int
    custom_id: str
    url: str
    body: bytes


class BadLine(ValueError):
    """A line that cannot be served. custom_id: where it can be read. code: a short name for machines."""

    def __init__(self, number: int, code: str, sentence: str, custom_id: str | None = None):
        super().__init__(sentence)
        self.number = number
        self.code = code
        self.custom_id = custom_id


@dataclass(slots=True)
class LineChecker:
    """Checks the lines of one file in their order. endpoint: the url that each must have; None: any."""

    endpoint: str | None = None
    _seen: dict[bytes, int] = field(default_factory=dict)  # digest of a custom id → the line that has it

    def check(self, number: int, line: bytes) -> BatchLine:
        """Return the line as a request. Raises BadLine."""
        data = line_fields(number, line)
        custom_id = self._custom_id(number, data)

        def bad(code: str, sentence: str) -> BadLine:
            return BadLine(number, code, sentence, custom_id)

        # Ids may be long, and a file has many: 16 bytes of each distinguish them.
        digest = hashlib.blake2b(custom_id.encode(), digest_size=16).digest()
        first = self._seen.setdefault(digest, number)
        if first != number:
            raise bad("duplicate_custom_id", f"The custom_id is that of line {first} too; give each line its own.")
        for name in data:
            if name not in _FIELDS:
                raise bad(
                    "unknown_field", f"The field {shortened(name)!r} is unknown; a line has {', '.join(_FIELDS)}."
                )
        for name in _FIELDS:
            if name not in data:
                raise bad("missing_field", f"The line has no {name}; it needs {', '.join(_FIELDS)}.")
        if (method := _text(data["method"])) != "POST":
            raise bad("invalid_method", f'method is {_shown(method)}; give "POST".')
        url, body = _text(data["url"]), bytes(data["body"])
        if url not in OF_LINES:
            raise bad("invalid_url", f"url is {_shown(url)}; give {' or '.join(OF_LINES)}.")
        if self.endpoint is not None and url != self.endpoint:
            raise bad("mismatched_url", f"url is {url}, but the job's endpoint is {self.endpoint}; use one of them.")
        if not body.startswith(b"{"):
            raise bad("invalid_body", "body is not a JSON object; give the body of a request.")
        if bytes(_FIELDS_OF(body).get("stream", Raw(b"null"))) == b"true":
            raise bad("unsupported_stream", "stream is not supported in batch lines; leave `stream` out.")
        return BatchLine(number, custom_id, url, body)

    @staticmethod
    def _custom_id(number: int, data: Mapping[str, Raw]) -> str:
        if "custom_id" not in data:
            raise BadLine(number, "missing_field", f"The line has no custom_id; it needs {', '.join(_FIELDS)}.")
        value = _text(data["custom_id"])
        if value is None or not 1 <= len(value) <= MAX_CUSTOM_ID:
            raise BadLine(number, "invalid_custom_id", f"custom_id must be text of 1 to {MAX_CUSTOM_ID} characters.")
        return value


def line_fields(number: int, line: bytes) -> dict[str, Raw]:
    """Return the fields of a line, unread. Raises BadLine."""
    try:
        line.decode()  # msgspec leaves text unread until it is decoded
        return _FIELDS_OF(line)
    except UnicodeDecodeError as error:
        sentence = f"not UTF-8: byte 0x{line[error.start]:02X} at byte {error.start + 1}; convert the file to UTF-8."
    except msgspec.ValidationError:
        sentence = "a JSON value that is no object; write an object such as {…}."
    except msgspec.DecodeError as error:
        half = HALF_CHARACTER.search(line)
        reason = "a lone surrogate (half of a UTF-16 pair)" if half else without_prefix(error)
        sentence = f"not JSON: {reason}; write one object a line, with its keys and texts in double quotes."
    except RecursionError:
        sentence = "not usable: the JSON is nested too deeply."
    raise BadLine(number, "invalid_json_line", f"The line is {sentence}")


def _shown(text: str | None) -> str:
    return "no text" if text is None else repr(shortened(text))


def _text(value: Raw) -> str | None:
    try:
        return _TEXT(value)
    except msgspec.DecodeError:
        return None


def is_batch_line(data: dict[str, Any]) -> bool:
    """Whether an input line has this form, complete or not."""
    return "custom_id" in data or "body" in data


def line_id(job_id: str, number: int) -> str:
    """Return the id of a line's request and answer, the same for every try."""
    return f"batch_req_{hashlib.sha256(f'{job_id}/{number}'.encode()).hexdigest()[:32]}"


def answered(request_id: str, custom_id: str | None, status: int, body: Any) -> dict[str, Any]:
    """Return the output line of a request that its endpoint has answered, also with an error."""
    response = {"status_code": status, "request_id": request_id, "body": body}
    return {"id": request_id, "custom_id": custom_id, "response": response, "error": None}


def unanswered(request_id: str, custom_id: str | None, error: dict[str, Any] | Raw) -> dict[str, Any]:
    """Return the output line of a request that has no answer. error: `error_of`."""
    return {"id": request_id, "custom_id": custom_id, "response": None, "error": error}


def error_of(code: str, message: str, number: int) -> dict[str, Any]:
    return {"code": code, "message": message, "line": number}
