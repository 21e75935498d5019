"""How many requests of one address may be under way at once.

Directly connected clients are bounded by their connections; those behind a trusted proxy share its connections, and are
told apart by what the proxy says of them.
"""

from __future__ import annotations

from collections import Counter

from starlette.types import ASGIApp, Receive, Scope, Send

from inflight.counted import counted
from inflight.server.errors import ApiError
from inflight.server.ingress.addresses import address_key
from inflight.server.ingress.answering import refuse


class RequestShare:
    def __init__(self, app: ASGIApp, most: int):
        self._app = app
        self._most = most
        self._under_way: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        key = client_key(scope)
        if self._under_way[key] >= self._most:
            return await refuse(self._too_many(), scope, receive, send)
        self._under_way[key] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._under_way[key] -= 1
            if not self._under_way[key]:
                del self._under_way[key]

    def _too_many(self) -> ApiError:
        under_way = counted(self._most, "request of your address is", "requests of your address are")
        return ApiError(
            429,
            f"{under_way} under way, the most that it may have; try again in 1 s.",
            type="rate_limit_error",
            code="too_many_requests",
            retry_after=1.0,
        )


def client_key(scope: Scope) -> str:
    client = scope.get("client")
    return address_key(client[0] if client else "")
