"""The id of an HTTP request: the client's own if it can be shown everywhere, else a fresh one."""

from __future__ import annotations

import re
import secrets

HEADER = b"x-request-id"
_SAFE = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


def request_id(given: bytes | None) -> str:
    if given is not None and _SAFE.fullmatch(given):
        return given.decode("ascii")
    return f"req_{secrets.token_hex(16)}"
