"""Headers that a request may have once: a second one would be read by one program on the way and not by another.

Knows which headers say who asks, for whom, and what the body is; what they mean, those that read them know.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from inflight.server.errors import invalid
from inflight.server.ingress.answering import REQUEST_ID_HEADER, refuse
from inflight.server.ingress.authentication import CREDENTIALS
from inflight.server.router_hints import HINT_HEADERS

_BODY = (b"content-type", b"content-encoding", b"content-length")
SINGLE = frozenset((b"host", b"origin", REQUEST_ID_HEADER, *CREDENTIALS, *_BODY, *HINT_HEADERS))


class SingleHeaders:
    """Refuses a request that has one of these headers twice."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (name := _repeated(scope["headers"])) is not None:
            shown = name.decode("ascii").title()
            error = invalid(f"The request has two headers {shown}; send one.", shown.lower(), "duplicate_header")
            return await refuse(error, scope, receive, send)
        await self._app(scope, receive, send)


def _repeated(headers: list[tuple[bytes, bytes]]) -> bytes | None:
    """Return the first header that may stand once and stands twice. Names are in small letters."""
    seen: set[bytes] = set()
    for name, _ in headers:
        if name in SINGLE:
            if name in seen:
                return name
            seen.add(name)
    return None
