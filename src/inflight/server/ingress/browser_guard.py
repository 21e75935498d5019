"""Where no keys are asked for, a browser must not lend another site's page its way to the server.

Knows the headers by which browsers tell where a call comes from: Host, Origin, Sec-Fetch-Site. Clients that are no
browsers send none but Host, and pass.
"""

from __future__ import annotations

from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from inflight.server.errors import ApiError
from inflight.server.ingress.answering import refuse
from inflight.server.ingress.hosts import Hosts

_HARMLESS = ("GET", "HEAD", "OPTIONS")  # they change nothing, and what they answer a page may not read


class BrowserGuard:
    def __init__(self, app: ASGIApp, hosts: Hosts, origins: Collection[str]):
        """origins: whose pages may call the server; "*" for all."""
        self._app = app
        self._hosts = hosts
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (error := self._wrong(scope)) is not None:
            return await refuse(error, scope, receive, send)
        await self._app(scope, receive, send)

    def _wrong(self, scope: Scope) -> ApiError | None:
        named = _all(scope, b"host")
        if len(named) > 1:
            return ApiError(400, "The request has two headers Host; send one.", code="bad_http")
        for host in named:
            if not self._hosts.knows(host):
                return ApiError(
                    403,
                    f"This server does not know itself as {host[:100]!r}; start it with --allowed-hosts and that name, "
                    "or with keys.",
                    code="unknown_host",
                )
        if scope["method"] in _HARMLESS or "*" in self._origins:
            return None
        origins = _all(scope, b"origin")
        own = {f"{scheme}://{host.lower()}" for scheme in ("http", "https") for host in named}
        if all(one.lower() in own or one in self._origins for one in origins) and (
            origins or not {"cross-site", "same-site"} & set(_all(scope, b"sec-fetch-site"))
        ):
            return None
        from_where = repr(origins[0][:100]) if origins else "another site"
        return ApiError(
            403,
            f"Pages of {from_where} may not call this server; start it with --cors-origin to let them, or with keys.",
            code="cross_origin",
        )


def _all(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for known, value in scope["headers"] if known == name]
