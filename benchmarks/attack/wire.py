"""Requests as they go over the wire, whole, broken or half."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

HOST = "127.0.0.1"
MAX_BODY = (8 << 20) - 1024  # bytes of the largest body that the server reads by default, nearly


def head(
    path: str,
    length: int | None,
    key: str = "",
    method: str = "POST",
    kind: str = "application/json",
    more: Iterable[str] = (),
) -> bytes:
    """length: of the body as announced; None: nothing is said of it. The connection closes after the answer."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {HOST}", "Connection: close"]
    if key:
        lines.append(f"Authorization: Bearer {key}")
    if length is not None:
        lines += [f"Content-Type: {kind}", f"Content-Length: {length}"]
    return "\r\n".join([*lines, *more, "", ""]).encode()


def post(path: str, body: bytes, key: str = "") -> bytes:
    return head(path, len(body), key) + body


def get(path: str, key: str = "") -> bytes:
    return head(path, None, key, "GET")


def text(body: dict[str, Any]) -> bytes:
    return json.dumps(body).encode()


def filled(before: str, piece: str, after: str, size: int = MAX_BODY) -> bytes:
    """before, piece after piece with commas between, after: as much as fits into so many bytes."""
    first, last, one = before.encode(), after.encode(), piece.encode()
    count = max(1, (size - len(first) - len(last) + 1) // (len(one) + 1))
    return first + b",".join([one] * count) + last


def stretched(before: str, filling: str, after: str, size: int = MAX_BODY) -> bytes:
    """The same without commas."""
    first, last, one = before.encode(), after.encode(), filling.encode()
    return first + one * ((size - len(first) - len(last)) // len(one)) + last


def form(content: bytes, boundary: str = "B", purpose: str = "batch") -> bytes:
    """A file to upload, as multipart/form-data."""
    mark = f"--{boundary}\r\nContent-Disposition: form-data; name="
    start = f'{mark}"purpose"\r\n\r\n{purpose}\r\n{mark}"file"; filename="in.jsonl"\r\n\r\n'
    return start.encode() + content + f"\r\n--{boundary}--\r\n".encode()


def upload(content: bytes, key: str = "", boundary: str = "B", more: Iterable[str] = ()) -> bytes:
    body = form(content, boundary)
    return head("/v1/files", len(body), key, kind=f"multipart/form-data; boundary={boundary}", more=more) + body
