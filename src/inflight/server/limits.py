"""The most that a body may hold, checked while it arrives, so that no client can fill the memory."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inflight.server.errors import ApiError
from inflight.server.json import error_response

UPLOADS = "/v1/files"  # files go to the disk as they come, and have a limit of their own


class BodyLimit:
    def __init__(self, app: ASGIApp, most: int):
        """most: bytes."""
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].rstrip("/") == UPLOADS:
            return await self._app(scope, receive, send)
        told = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        if told.isdigit() and int(told) > self._most:
            return await self._refuse(int(told))(scope, receive, send)
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            if message["type"] == "http.request":
                taken += len(message.get("body", b""))
                if taken > self._most:
                    raise self._too_large(taken)
            return message

        await self._app(scope, counted, send)

    def _refuse(self, size: int) -> ASGIApp:
        return error_response(self._too_large(size))

    def _too_large(self, size: int) -> ApiError:
        return ApiError(
            413,
            f"The body has {size:,} bytes or more, and {self._most:,} are allowed (--max-body-mb); send less.",
            code="body_too_large",
        )
