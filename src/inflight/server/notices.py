"""Notices beside an answer: response headers about what became of the body. The log has `ignored_field_log`.

Bodies of answers stay as their APIs have them, since strict clients refuse fields that they do not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from starlette.types import Scope

from inflight.core.types.request import Request
from inflight.counted import LONGEST_SHOWN
from inflight.server.asgi import state_of
from inflight.server.call import Call

IGNORED_FIELDS = "X-Inflight-Ignored-Fields"
MAX_TOKENS = "X-Inflight-Max-Tokens"

_HEADERS = "notice_headers"  # in the request's state


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
