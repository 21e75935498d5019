"""The content of a message: blocks, and the events by which a stream tells of them.

Knows the order of events and what they hold; not how they are sent. A whole answer is the same blocks, folded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import Raw

from inflight.frontend.parsers.answer_parser import AnswerDelta, ReasoningDelta, ToolCallDelta

Json = dict[str, Any]
BlockKind = Literal["thinking", "text", "tool_use"]
SIGNATURE = "unsigned"  # reasoning is told as it is, and believed as it comes back; clients want some text
_IS_OBJECT = msgspec.json.Decoder(dict[str, Raw])


class Blocks:
    """Blocks so far, of which the last is open until the next begins. Keeps nothing of what they hold."""

    def __init__(self, shows_thinking: bool):
        """shows_thinking: the text of the reasoning is told; else only that there was some."""
        self.calls = 0  # blocks of tool_use so far
        self._shows_thinking = shows_thinking
        self._count = 0
        self._open: tuple[BlockKind, int] | None = None  # with which of the answer's calls it is

    def push(self, delta: AnswerDelta) -> list[Json]:
        """The events that tell of it."""
        added = _delta(delta)
        if added is None and not isinstance(delta, ToolCallDelta):
            return []
        events = self._opened(delta)
        if not added or (isinstance(delta, ReasoningDelta) and not self._shows_thinking):
            return events
        return [*events, {"type": "content_block_delta", "index": self._count - 1, "delta": added}]

    def finish(self) -> list[Json]:
        """No more comes."""
        if self._open is None:
            return []
        (kind, _), self._open, index = self._open, None, self._count - 1
        stop: Json = {"type": "content_block_stop", "index": index}
        if kind != "thinking":
            return [stop]
        signed = {"type": "signature_delta", "signature": SIGNATURE}
        return [{"type": "content_block_delta", "index": index, "delta": signed}, stop]

    def _opened(self, delta: AnswerDelta) -> list[Json]:
        is_call = isinstance(delta, ToolCallDelta)
        wanted = (_kind_of(delta), delta.index if isinstance(delta, ToolCallDelta) else 0)
        if self._open == wanted:
            return []
        events = self.finish()
        self._open, index = wanted, self._count
        self._count += 1
        self.calls += is_call
        return [*events, {"type": "content_block_start", "index": index, "content_block": _begun(delta)}]


def content_of(deltas: Sequence[AnswerDelta], shows_thinking: bool) -> list[Json]:
    """The blocks of a whole answer, of which each delta is one."""
    return [_whole(delta, shows_thinking) for delta in deltas]


def _kind_of(delta: AnswerDelta) -> BlockKind:
    if isinstance(delta, ReasoningDelta):
        return "thinking"
    return "tool_use" if isinstance(delta, ToolCallDelta) else "text"


def _begun(delta: AnswerDelta) -> Json:
    if isinstance(delta, ReasoningDelta):
        return {"type": "thinking", "thinking": "", "signature": ""}
    if isinstance(delta, ToolCallDelta):
        return {"type": "tool_use", "id": delta.call_id, "name": delta.name, "input": {}}
    return {"type": "text", "text": ""}


def _delta(delta: AnswerDelta) -> Json | None:
    """None where nothing is added."""
    if isinstance(delta, ToolCallDelta):
        return {"type": "input_json_delta", "partial_json": delta.arguments} if delta.arguments else None
    if not delta.text:
        return None
    if isinstance(delta, ReasoningDelta):
        return {"type": "thinking_delta", "thinking": delta.text}
    return {"type": "text_delta", "text": delta.text}


def _whole(delta: AnswerDelta, shows_thinking: bool) -> Json:
    if isinstance(delta, ReasoningDelta):
        return {"type": "thinking", "thinking": delta.text if shows_thinking else "", "signature": SIGNATURE}
    if isinstance(delta, ToolCallDelta):
        return {"type": "tool_use", "id": delta.call_id, "name": delta.name, "input": _input(delta.arguments)}
    return {"type": "text", "text": delta.text}  # and no citations, which some clients take as a list or not at all


def _input(arguments: str) -> Raw | Json:
    """An input is an object; what a model wrote that is none, or was cut off, is kept as the text that it is."""
    if not arguments.strip():
        return {}
    try:
        _IS_OBJECT.decode(arguments)
    except (msgspec.MsgspecError, RecursionError):
        return {"INVALID_JSON": arguments}
    return Raw(arguments.encode())
