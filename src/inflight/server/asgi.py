"""Refusals of the ASGI layers, and what they look up in a request's headers."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import Callable
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from inflight.server.errors import ApiError, is_of_messages, without_frames
from inflight.server.json import error_response

CLOSE = (b"connection", b"close")
DRAIN_SECONDS = 2.0  # for a client to read an answer that comes before its body was read
PAUSE_SECONDS = 0.02  # between two pieces that are ignored: some MB/s of each client, however many they are
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


def abandon(scope: Scope) -> None:
    """End the connection, whose client does not take the rest of its answer."""
    end: Callable[[], None] | None = state_of(scope).get("abandon")
    if end is not None:
        end()


async def refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the error. A body that has not been read ends the connection: it might be of any size."""
    state_of(scope)["error"] = without_frames(error)
    is_read = not has_body(scope)
    await error_response(error, scope)(scope, receive, closing(receive, send, lambda: is_read))


def closing(receive: Receive, send: Send, is_read: Callable[[], bool]) -> Send:
    """Return a `send` that ends the connection with the answer, unless the body has been read by then.

    A server that closed at once, with bytes unread, would reset the connection, and the client might not read the
    answer: what still comes is read and ignored for a while.
    """

    async def closing_send(message: Message) -> None:
        if is_read():
            return await send(message)
        if message["type"] == "http.response.start":
            message["headers"].append(CLOSE)
            return await send(message)
        is_last = not message.get("more_body", False)
        await send({**message, "more_body": True})
        if is_last:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_SECONDS):
                    while (await receive()).get("more_body", False):
                        await asyncio.sleep(PAUSE_SECONDS)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    return closing_send
