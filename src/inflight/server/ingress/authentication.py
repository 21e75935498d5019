"""Who asks, told from the headers alone, before a byte of the body is read."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from inflight.server.errors import ApiError
from inflight.server.ingress.answering import header, refuse, state_of
from inflight.server.tenants import Tenants

CREDENTIALS = (b"authorization", b"x-api-key")  # headers, the first before the other
_OPEN = frozenset(
    ("/", "/playground", "/health", "/livez", "/readyz", "/version", "/metrics", "/docs", "/openapi.json")
)
_OPEN_FOLDERS = ("/ui/",)  # what the live page is made of


class Authentication:
    """Puts the tenant into the request's state, where the routes find it."""

    def __init__(self, app: ASGIApp, tenants: Tenants):
        self._app = app
        self._tenants = tenants

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_open(scope["path"]):
            try:
                tenant = self._tenants.of(_authorization(scope))
            except ApiError as error:
                return await refuse(error, scope, receive, send)
            state_of(scope)["tenant"] = tenant
        await self._app(scope, receive, send)


def _authorization(scope: Scope) -> str | None:
    """As Anthropic's clients have it, a key may also come alone."""
    bearer, key = (header(scope, name) for name in CREDENTIALS)
    if bearer is None and key is not None:
        bearer = b"Bearer " + key
    return None if bearer is None else bearer.decode("latin-1")


def is_open(path: str) -> bool:
    """For those who run the server, and the documentation: nothing that tells of what is asked."""
    return path in _OPEN or path.startswith(_OPEN_FOLDERS)
