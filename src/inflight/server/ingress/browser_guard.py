"""Where no keys are asked for, a browser must not lend another site's page its way to the server.

Knows the headers by which browsers tell where a call comes from: Host, Origin, Sec-Fetch-Site. Clients that are no
browsers send none but Host, and pass.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from inflight.server.errors import ApiError
from inflight.server.ingress.answering import refuse
from inflight.server.ingress.hosts import Hosts, without_port

_HARMLESS = ("GET", "HEAD", "OPTIONS")  # they change nothing, and what they answer a page may not read
# Probes and scrapers call these by any name; no text of a request is in the answers.
_PROBED = ("/health", "/livez", "/readyz", "/metrics")

_log = logging.getLogger("inflight.ingress")


class BrowserGuard:
    def __init__(self, app: ASGIApp, hosts: Hosts, origins: Collection[str], *, refuse_hosts: bool = True):
        """Wrap `app`.

        Args:
            app: The application behind the guard.
            hosts: Names by which the server may be called.
            origins: Origins whose pages may call the server; "*" for all.
            refuse_hosts: Refuse other names. False: serve them, and log a warning for the first.
        """
        self._app = app
        self._hosts = hosts
        self._origins = frozenset(origins)
        self._refuse_hosts = refuse_hosts
        self._has_warned = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (error := self._wrong(scope)) is not None:
            return await refuse(error, scope, receive, send)
        await self._app(scope, receive, send)

    def _wrong(self, scope: Scope) -> ApiError | None:
        named = _all(scope, b"host")
        if scope["path"] not in _PROBED:
            for host in named:
                if (
                    not self._hosts.knows(host)
                    and (error := self._unknown(ascii(without_port(host))[1:-1][:100])) is not None
                ):
                    return error
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

    def _unknown(self, name: str) -> ApiError | None:
        if self._refuse_hosts:
            return ApiError(
                403,
                f"Host '{name}' is not allowed; add --allowed-hosts {name}, or start with keys.",
                code="unknown_host",
            )
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                f"Requests call this server '{name}', and are served. To serve known names only, start it with "
                f"--allowed-hosts {name}, or with keys. (Logged for the first name only.)"
            )
        return None


def _all(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for known, value in scope["headers"] if known == name]
