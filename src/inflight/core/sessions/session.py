"""A session: turns of one conversation, as far as they have come.

Knows what was told of it; when it comes again, `gaps` guesses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Awaits = Literal["tool", "person", ""]  # what a session rests for; "": nobody has said


@dataclass(slots=True, eq=False)
class Session:
    """tenant: whose. is_named: by the client. turns: so far. rests_since: when its last turn ended; None: a turn is
    under way. tokens: at the end of its last turn, of which the last so many were answered. running: sequences of it
    that are alive. awaits: after its last turn. resting: blocks of its own that nobody holds, on the device and on the
    host."""

    tenant: str
    is_named: bool = False
    turns: int = 0
    rests_since: float | None = None
    tokens: int = 0
    answered: int = 0
    running: int = 0
    awaits: Awaits = ""
    cost: float = 1.0  # seconds to compute a block of it anew
    resting: int = 0
