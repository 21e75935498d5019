"""Notices beside an answer: response headers about what became of the body, and a log of ignored fields.

Bodies of answers stay as their APIs have them, since strict clients refuse fields that they do not know.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from urllib.parse import quote

from starlette.types import Scope

from inflight.core.types.request import Request
from inflight.counted import LONGEST_SHOWN, counted
from inflight.server.bodies.unknown_fields import nearest
from inflight.server.call import Call, EndpointName
from inflight.server.endpoints.registry import ENDPOINTS
from inflight.server.ingress.answering import state_of

IGNORED_FIELDS = "X-Inflight-Ignored-Fields"
MAX_TOKENS = "X-Inflight-Max-Tokens"
REPORT_SECONDS = 600.0  # in which the log names a field once
MAX_REPORTED = 256  # names that are remembered

_HEADERS = "notice_headers"  # in the request's state
_log = logging.getLogger("inflight.server")


def note_ignored(scope: Scope, names: Sequence[str]) -> None:
    """Have the answer name the ignored fields, percent-encoded where a header needs it: in a kilobyte at most, since
    proxies refuse long headers."""
    if names:
        _note(scope, IGNORED_FIELDS, ", ".join(quote(one, safe="[]. ")[:LONGEST_SHOWN] for one in names))


def note_max_tokens(scope: Scope, call: Call, max_model_len: int) -> None:
    """Have the answer say how many tokens it may have, where the context has no room for as many as were asked for.
    Of several prompts the longest counts."""
    asked = [_asked_tokens(one) for one in call.requests if one.pooling is None]
    room = max_model_len - max((len(one.prompt_token_ids) for one in call.requests), default=0)
    if asked and max(asked) > room > 0:
        _note(scope, MAX_TOKENS, str(room))


def _asked_tokens(request: Request) -> int:
    params = request.params
    return max(params.max_tokens or 0, params.min_tokens, request.forced_output_tokens or 0)


def notice_headers(scope: Scope) -> list[tuple[bytes, bytes]]:
    headers: list[tuple[bytes, bytes]] = state_of(scope).get(_HEADERS, [])
    return headers


def _note(scope: Scope, name: str, value: str) -> None:
    state_of(scope).setdefault(_HEADERS, []).append((name.lower().encode(), value.encode("ascii")))


class IgnoredFieldLog:
    """Logs the names of ignored fields: each at most once in ten minutes, and of a bounded number of names."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._reported: dict[str, float] = {}  # by name, in the order of their times

    def note(self, endpoint: EndpointName, names: Sequence[str]) -> None:
        if new := [name for name in names if self._is_news(name)]:
            known = ENDPOINTS[endpoint].body.names
            shown = ", ".join(_with_hint(name, nearest(name, known)) for name in new)
            _log.warning(
                f"{counted(len(new), 'unknown field')} of a body for {ENDPOINTS[endpoint].path} ignored: {shown} (each "
                f"is reported once in {REPORT_SECONDS / 60:g} min; --unknown-fields says what becomes of them)."
            )

    def _is_news(self, name: str) -> bool:
        now = self._clock()
        for old, reported in tuple(self._reported.items()):
            if now - reported < REPORT_SECONDS:
                break
            del self._reported[old]
        if name in self._reported or len(self._reported) >= MAX_REPORTED:
            return False
        self._reported[name] = now
        return True


def _with_hint(name: str, near: str | None) -> str:
    return repr(name) if near is None else f"{name!r} (did you mean {near!r}?)"
