"""Requests that are refused by their headers alone, before a byte of the body is read: who asks, and from which page.

Where no keys are asked for, no other site's page may call the server through a browser. Browsers show where a
call comes from by Host, Origin and Sec-Fetch-Site; clients that are no browsers send none but Host, and pass. A page of
another site can have its own name point at this server (DNS rebinding) and then call it as its own origin. It needs a
name with a dot for that: addresses and plain names are no danger, any other name must be known.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Collection, Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from inflight.server.asgi import REQUEST_ID_HEADER, header, refuse, state_of
from inflight.server.errors import ApiError, invalid
from inflight.server.router_hints import HINT_HEADERS
from inflight.server.tenants import Tenants

CREDENTIALS = (b"authorization", b"x-api-key")  # headers, the first before the other
# Headers that may stand once: a second one would be read by one program on the way and not by another.
_BODY = (b"content-type", b"content-encoding", b"content-length")
SINGLE = frozenset((b"host", b"origin", REQUEST_ID_HEADER, *CREDENTIALS, *_BODY, *HINT_HEADERS))
# Of probes; /ping, which SageMaker asks for, is vLLM's, and /v1/health llama-server's.
HEALTH = ("/health", "/readyz", "/healthz", "/v1/health", "/ping")
# Probes and scrapers call these by any name; no text of a request is in the answers.
_PROBED = frozenset((*HEALTH, "/livez", "/metrics", "/load"))
_OPEN = _PROBED | {"/", "/playground", "/version", "/docs", "/openapi.json"}
_OPEN_FOLDERS = ("/ui/",)  # what the live page is made of
_HARMLESS = ("GET", "HEAD", "OPTIONS")  # they change nothing, and what they answer a page may not read

log = logging.getLogger("inflight.ingress")


class Authentication:
    """Puts the tenant into the request's state, where the routes find it. Refuses headers that stand twice."""

    def __init__(self, app: ASGIApp, tenants: Tenants):
        self._app, self._tenants = app, tenants

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                _check_single(scope["headers"])
                if not is_open(scope["path"]):
                    state_of(scope)["tenant"] = self._tenants.of(_authorization(scope))
            except ApiError as error:
                return await refuse(error, scope, receive, send)
        await self._app(scope, receive, send)


def is_open(path: str) -> bool:
    """Return whether a path needs no key: those for operators, and the documentation."""
    return path in _OPEN or path.startswith(_OPEN_FOLDERS)


def _authorization(scope: Scope) -> str | None:
    """As Anthropic's clients have it, a key may also come alone."""
    bearer, key = (header(scope, name) for name in CREDENTIALS)
    if bearer is None and key is not None:
        bearer = b"Bearer " + key
    return None if bearer is None else bearer.decode("latin-1")


def _check_single(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raises ApiError for a header that may stand once and stands twice."""
    seen: set[bytes] = set()
    for name, _ in headers:
        if name in seen and name in SINGLE:
            shown = name.decode("ascii").title()
            raise invalid(
                f"The header {shown} is there more than once; send it once.", shown.lower(), "duplicate_header"
            )
        seen.add(name)


class BrowserGuard:
    def __init__(self, app: ASGIApp, hosts: Iterable[str], origins: Collection[str], *, refuse_hosts: bool = True):
        """Wrap `app`.

        Args:
            app: The application behind the guard.
            hosts: Names by which the server may be called, with "*.NAME" for all below NAME, "*" for any.
            origins: Origins whose pages may call the server; "*" for all.
            refuse_hosts: Refuse other names. False: serve them, and log a warning for the first.
        """
        self._app = app
        self._hosts = frozenset(name.lower().rstrip(".") for name in hosts)
        self._endings = (".localhost", *(name[1:] for name in self._hosts if name.startswith("*.")))
        self._origins = frozenset(origins)
        self._refuse_hosts = refuse_hosts
        self._has_warned = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._check(scope)
            except ApiError as error:
                return await refuse(error, scope, receive, send)
        await self._app(scope, receive, send)

    def knows(self, host: str) -> bool:
        """Return whether the server may be called by a header Host, with or without a port."""
        name = _without_port(host).lower().rstrip(".")
        known = "*" in self._hosts or name in self._hosts or name.endswith(self._endings)
        return known or "." not in name or _is_address(name)

    def _check(self, scope: Scope) -> None:
        """Raises ApiError 403."""
        host, origin = _text(scope, b"host"), _text(scope, b"origin")
        if host is not None and scope["path"] not in _PROBED and not self.knows(host):
            self._unknown(ascii(_without_port(host))[1:-1][:100])
        if scope["method"] in _HARMLESS or "*" in self._origins or origin in self._origins:
            return
        own = {f"{scheme}://{(host or '').lower()}" for scheme in ("http", "https")}
        if origin is None and _text(scope, b"sec-fetch-site") not in ("cross-site", "same-site"):
            return
        if origin is not None and origin.lower() in own:
            return
        from_where = "another site" if origin is None else repr(origin[:100])
        shown = "ORIGIN" if origin is None else origin[:100]
        raise ApiError(
            403,
            f"Requests from pages of {from_where} are not allowed; add --cors-origin {shown}, or start with keys.",
            code="cross_origin",
        )

    def _unknown(self, name: str) -> None:
        if self._refuse_hosts:
            raise ApiError(
                403,
                f"Host '{name}' is not allowed; add --allowed-hosts {name}, or start with keys.",
                code="unknown_host",
            )
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                f"A request with the unknown host '{name}' was served. To refuse unknown hosts, start with "
                f"--allowed-hosts {name}, or with keys. (Logged for the first host only.)"
            )


def _text(scope: Scope, name: bytes) -> str | None:
    value = header(scope, name)
    return None if value is None else value.decode("latin-1")


def _without_port(host: str) -> str:
    """Brackets of an IPv6 address go too."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0] if host.count(":") <= 1 else host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
