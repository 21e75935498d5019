"""Refusals of the ASGI layers, and what they look up in a request's headers."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from inflight.server.errors import ApiError, is_of_messages, without_frames
from inflight.server.json import error_response

CLOSE = (b"connection", b"close")
REQUEST_ID_HEADER = b"x-request-id"
_SAFE = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first of that name (in small letters)."""
    return next((value for known, value in scope["headers"] if known == name), None)


def request_id(given: bytes | None) -> str:
    """The client's own if it can be shown everywhere, else a fresh one."""
    if given is not None and _SAFE.fullmatch(given):
        return given.decode("ascii")
    return f"req_{secrets.token_hex(16)}"


def request_id_headers(scope: Scope) -> list[tuple[bytes, bytes]]:
    """Return the headers of the request's id, by the names under which clients look for it."""
    value = state_of(scope)["request_id"].encode("ascii")
    names = (REQUEST_ID_HEADER, b"request-id") if is_of_messages(scope["path"]) else (REQUEST_ID_HEADER,)
    return [(name, value) for name in names]


def has_body(scope: Scope) -> bool:
    length = header(scope, b"content-length")
    return header(scope, b"transfer-encoding") is not None or (length is not None and length.strip(b"0") != b"")


def state_of(scope: Scope) -> dict[str, Any]:
    state: dict[str, Any] = scope.setdefault("state", {})
    return state


def is_gone(scope: Scope) -> bool:
    """Whether nobody is left to answer, as far as the connection knows."""
    gone: Callable[[], bool] | None = state_of(scope).get("is_gone")
    return gone is not None and gone()


def abandon(scope: Scope) -> None:
    """End the connection, whose client does not take the rest of its answer."""
    end: Callable[[], None] | None = state_of(scope).get("abandon")
    if end is not None:
        end()


def piece_seconds(scope: Scope) -> float:
    """Return the seconds that parsing the latest piece of the body took: few, unless it came in small chunks."""
    seconds: Callable[[], float] | None = state_of(scope).get("piece_seconds")
    return 0.0 if seconds is None else seconds()


async def refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the error. A body that nobody has read ends the connection: it might be of any size."""
    state_of(scope)["error"] = without_frames(error)

    async def closing(message: Message) -> None:
        if message["type"] == "http.response.start" and has_body(scope):
            message["headers"].append(CLOSE)
        await send(message)

    await error_response(error, scope)(scope, receive, closing)
