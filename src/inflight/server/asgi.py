"""Shared by ASGI layers and endpoints: JSON answers and errors, the request's ids, notices in headers, closing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inflight.counted import LONGEST_SHOWN
from inflight.server.common.prepared import Call
from inflight.server.errors import (
    ApiError,
    is_of_messages,
    is_of_ollama,
    messages_error,
    messages_status,
    ollama_status,
    without_frames,
)

PIECE_BYTES = 1 << 16  # of an answer that are sent at once
CLOSE = (b"connection", b"close")
DRAIN_SECONDS = 2.0  # for a client to read an answer that comes before its body was read
PAUSE_SECONDS = 0.02  # between two pieces that are ignored: some MB/s of each client, however many they are
REQUEST_ID_HEADER = b"x-request-id"
IGNORED_FIELDS = "X-Inflight-Ignored-Fields"
MAX_TOKENS = "X-Inflight-Max-Tokens"
_NOTICES = "notice_headers"  # in the request's state
_SAFE = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_NOT_IN_CALLS = re.compile(r"[/+=@]")  # signs of a request's id that no id of a call has, since paths hold those


class UnderPath:
    """Takes the path of a proxy off requests that have it, before any other layer reads their path."""

    def __init__(self, app: ASGIApp, root_path: str):
        self._app, self._root_path = app, root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (scope["path"] + "/").startswith(self._root_path + "/"):
            scope["path"] = scope["path"].removeprefix(self._root_path) or "/"
        await self._app(scope, receive, send)


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return the first header of that name (in small letters)."""
    return next((value for known, value in scope["headers"] if known == name), None)


def request_ids(given: bytes | None) -> tuple[str, str]:
    """Return the id of a request, and the id of its call, from which the ids of its answer and of the engine's requests
    are made.

    Args:
        given: The client's own id, which is taken where it can be shown everywhere; calls of the same id differ by what
            is added to theirs.
    """
    if given is not None and _SAFE.fullmatch(given):
        shown = given.decode("ascii")
        return shown, call_id_of(shown)
    fresh = secrets.token_hex(16)
    return f"req_{fresh}", fresh


def call_id_of(name: str) -> str:
    """Return the id of a call that is called after something: it begins with that, and no other one is the same."""
    return f"{_NOT_IN_CALLS.sub('-', name)}-{secrets.token_hex(4)}"


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


class JsonResponse(JSONResponse):
    """ASCII, because a client's text may hold half a surrogate pair, which UTF-8 cannot."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, separators=(",", ":"), allow_nan=False).encode("ascii")


def json_of(answer: msgspec.Struct, status: int = 200) -> Response:
    """Return the response that holds a struct."""
    return Response(msgspec.json.encode(answer), status, media_type="application/json")


async def body_bytes(request: Request) -> bytes:
    """Return the body, which the ingress gives in one piece, and once, so that only the caller keeps it."""
    content: bytes = (await request.receive()).get("body", b"")
    return content


def error_response(error: ApiError, scope: Scope) -> JsonResponse:
    """Return the response to a request that fails. scope: of the request."""
    status, body = error_body(error, scope["path"], scope.get("state", {}).get("request_id"))
    return JsonResponse(body, status, error.headers)


def error_body(error: ApiError, path: str, request_id: str | None = None) -> tuple[int, dict[str, Any]]:
    """Return status and body, in the form of the API that the path belongs to."""
    if is_of_messages(path):
        return messages_status(error), messages_error(error, request_id)
    if is_of_ollama(path):
        return ollama_status(error), {"error": error.message}
    return error.status, error.body


def note_ignored(scope: Scope, names: Sequence[str]) -> None:
    """Have the answer name the ignored fields, percent-encoded where a header needs it: in a kilobyte at most, since
    proxies refuse long headers. Bodies of answers stay as their APIs have them: strict clients refuse other fields."""
    if names:
        _note(scope, IGNORED_FIELDS, ", ".join(quote(one, safe="[]. ")[:LONGEST_SHOWN] for one in names))


def note_max_tokens(scope: Scope, call: Call, max_model_len: int) -> None:
    """Have the answer say how many tokens it may have, where the context has no room for as many as were asked for.
    Of several prompts the longest counts."""
    asked = [
        max(one.params.max_tokens or 0, one.params.min_tokens, one.forced_output_tokens or 0)
        for one in call.requests
        if one.pooling is None
    ]
    room = max_model_len - max((len(one.prompt_token_ids) for one in call.requests), default=0)
    if asked and max(asked) > room > 0:
        _note(scope, MAX_TOKENS, str(room))


def notice_headers(scope: Scope) -> list[tuple[bytes, bytes]]:
    headers: list[tuple[bytes, bytes]] = state_of(scope).get(_NOTICES, [])
    return headers


def _note(scope: Scope, name: str, value: str) -> None:
    state_of(scope).setdefault(_NOTICES, []).append((name.lower().encode(), value.encode("ascii")))


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


def file_pieces(file: BinaryIO, nbytes: int) -> Iterator[bytes]:
    """Read the first bytes of a file piece by piece, and close it. nbytes: as the answer's Content-Length has it; what
    is written behind them meanwhile is left out."""
    with file:
        while piece := file.read(min(PIECE_BYTES, nbytes)):
            nbytes -= len(piece)
            yield piece
