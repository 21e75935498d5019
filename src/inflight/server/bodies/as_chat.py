"""A body of another endpoint in the words of chat: what its `as_chat` makes of it, and preprocessing computes."""

from __future__ import annotations

from dataclasses import dataclass

from inflight.server.bodies.chat import ChatBody


@dataclass(frozen=True, slots=True, kw_only=True)
class AsChat:
    """repeated: JSON, what the endpoint's answer repeats of its body. kept_items: JSON, the items that the answer is
    stored with; none where it is not stored. may_begin: indexes of messages with which the
    conversation may begin instead, behind its system message, where it is too long; none: it is refused then."""

    body: ChatBody
    repeated: bytes = b""
    kept_items: bytes = b""
    may_begin: tuple[int, ...] = ()
