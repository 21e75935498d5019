"""Router hints: what a router in front of the server says of a request in headers, as the Gateway API's inference
extension and llm-d name them; and the session and the program, as routers and agents do.

Each header has several spellings, the first of which goes first: llm-d's and the extension's; of sessions those of
vLLM's router, Dynamo, Claude Code and Codex. An agent's session that has a parent is one of several of the parent's
program. `translating` uses them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from inflight.counted import MAX_MILLISECONDS
from inflight.server.errors import ApiError, invalid

_TTFT = (b"x-llm-d-slo-ttft-ms", b"x-slo-ttft-ms")
_TPOT = (b"x-llm-d-slo-tpot-ms", b"x-slo-tpot-ms")
_FAIRNESS = (b"x-llm-d-inference-fairness-id", b"x-gateway-inference-fairness-id")
_OBJECTIVE = (b"x-llm-d-inference-objective", b"x-gateway-inference-objective")
_SESSION = (
    *(b"x-session-id", b"x-dynamo-session-id", b"x-claude-code-agent-id", b"x-claude-code-session-id", b"session-id"),
)
_PROGRAM = (*(b"x-program-id", b"x-dynamo-parent-session-id", b"x-parent-session-id", b"x-claude-code-session-id"),)
HINT_HEADERS = frozenset((*_TTFT, *_TPOT, *_FAIRNESS, *_OBJECTIVE, *_SESSION, *_PROGRAM))
LONGEST_NAME = 512  # characters, as of a user in a body


@dataclass(frozen=True, slots=True)
class RouterHints:
    """ttft, tpot: targets in seconds. fairness_id: among whose requests it counts. objective: a lane's name, perhaps.
    session: of which conversation it is. program: of which program. Nothing: not said."""

    ttft: float | None = None
    tpot: float | None = None
    fairness_id: str = ""
    objective: str = ""
    session: str = ""
    program: str = ""


NO_HINTS = RouterHints()


def hints_of(headers: Iterable[tuple[bytes, bytes]]) -> RouterHints:
    """Names are in small letters. Raises ApiError 400."""
    given = {name: value.decode("latin-1").strip() for name, value in headers if name in HINT_HEADERS}
    if not given:
        return NO_HINTS
    return RouterHints(
        _seconds(given, _TTFT),
        _seconds(given, _TPOT),
        _name(given, _FAIRNESS),
        _name(given, _OBJECTIVE),
        _name(given, _SESSION),
        _name(given, _PROGRAM),
    )


def _seconds(given: dict[bytes, str], names: tuple[bytes, ...]) -> float | None:
    name = _first(given, names)
    if name is None:
        return None
    try:
        milliseconds = float(given[name])
    except ValueError:
        milliseconds = math.nan
    if not 0 < milliseconds <= MAX_MILLISECONDS:
        raise _wrong(
            name, given[name], f"give milliseconds, a number above 0 and up to {MAX_MILLISECONDS:g}, or leave it out"
        )
    return milliseconds / 1e3


def _name(given: dict[bytes, str], names: tuple[bytes, ...]) -> str:
    name = _first(given, names)
    if name is None:
        return ""
    if len(given[name]) > LONGEST_NAME:
        raise _wrong(name, given[name], f"its {len(given[name])} characters are more than {LONGEST_NAME}; shorten it")
    return given[name]


def _first(given: dict[bytes, str], names: tuple[bytes, ...]) -> bytes | None:
    return next((name for name in names if name in given), None)


def _wrong(name: bytes, value: str, what: str) -> ApiError:
    header, shown = name.decode("ascii"), value if len(value) <= 40 else value[:39] + "…"
    return invalid(f"The header {header} is {shown!r}; {what}.", header, "invalid_header")
