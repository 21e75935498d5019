"""The output of a response: items, and the events by which a stream tells of them.

Knows the order of events and what they hold; not their numbers or how they are sent. A whole answer is the same items
with nobody listening to the events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Raw, Struct

from inflight.frontend.parsers.answer_parser import AnswerDelta, ContentDelta, ReasoningDelta, ToolCallDelta

Json = dict[str, Any]
ItemKind = Literal["reasoning", "message", "function_call"]
Status = Literal["in_progress", "completed", "incomplete"]
_PREFIXES: dict[ItemKind, str] = {"reasoning": "rs", "message": "msg", "function_call": "fc"}
_EVENTS: dict[ItemKind, str] = {  # of a kind of item: what its text's events are called
    "reasoning": "response.reasoning_text",
    "message": "response.output_text",
    "function_call": "response.function_call_arguments",
}


class OutputItem(Struct):
    """text: so far; of a call its arguments. logprobs: JSON, of a message's tokens. call: which of the answer's calls
    it is."""

    kind: ItemKind
    id: str
    index: int
    pieces: list[str] = []
    logprobs: list[Raw] = []
    call: int = 0
    call_id: str = ""
    name: str = ""

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def part(self, text: str, logprobs: Sequence[Raw] = ()) -> Json:
        """The one part of its content."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(logprobs)}

    def shown(self, status: Status) -> Json:
        """As it stands in the output. One that is in progress has nothing in it: what comes, events tell."""
        begun: Json = {"id": self.id, "type": self.kind, "status": status}
        has_begun = status == "in_progress"
        if self.kind == "function_call":
            arguments = "" if has_begun else self.text
            return begun | {"call_id": self.call_id, "name": self.name, "arguments": arguments}
        content = [] if has_begun else [self.part(self.text, self.logprobs)]
        if self.kind == "reasoning":
            return begun | {"summary": [], "content": content}
        return begun | {"role": "assistant", "content": content}


class Output:
    """Items so far. The last one is open until the next begins."""

    def __init__(self, own_id: str):
        """own_id: of the response, without its prefix; items are called after it."""
        self._own_id = own_id
        self._items: list[OutputItem] = []
        self._open: OutputItem | None = None
        self._last_status: Status = "completed"

    def push(self, delta: AnswerDelta, logprobs: Sequence[Raw] = ()) -> list[Json]:
        """The events that tell of it. logprobs: of tokens of the content."""
        events, item = self._item_of(delta)
        added = delta.arguments if isinstance(delta, ToolCallDelta) else delta.text
        if not added and not logprobs:
            return events
        item.pieces.append(added)
        told: Json = {"type": f"{_EVENTS[item.kind]}.delta", **_place(item), "delta": added}
        if item.kind == "message":
            item.logprobs += logprobs
            told["logprobs"] = list(logprobs)
        return [*events, told]

    def finish(self, cut_off: bool) -> list[Json]:
        """No more comes. cut_off: the last item is not whole. An answer that says nothing is an empty message."""
        events: list[Json] = []
        if not cut_off and all(item.kind == "reasoning" for item in self._items):
            events += self._item_of(ContentDelta(""))[0]
        self._last_status = "incomplete" if cut_off else "completed"
        return events + self._close(self._last_status)

    def shown(self) -> list[Json]:
        """All items, once it is finished."""
        statuses: list[Status] = ["completed"] * len(self._items)
        if statuses:
            statuses[-1] = self._last_status
        return [item.shown(status) for item, status in zip(self._items, statuses, strict=True)]

    def _item_of(self, delta: AnswerDelta) -> tuple[list[Json], OutputItem]:
        kind, item = _kind_of(delta), self._open
        if item is not None and item.kind == kind and item.call == _call_of(delta):
            return [], item
        events = self._close("completed")
        item = self._new(kind, delta)
        events.append(
            {"type": "response.output_item.added", "output_index": item.index, "item": item.shown("in_progress")}
        )
        if kind != "function_call":
            events.append({"type": "response.content_part.added", **_place(item), "part": item.part("")})
        return events, item

    def _new(self, kind: ItemKind, delta: AnswerDelta) -> OutputItem:
        index = len(self._items)
        item = OutputItem(kind, f"{_PREFIXES[kind]}_{self._own_id}_{index}", index)
        if isinstance(delta, ToolCallDelta):
            item.call, item.call_id, item.name = delta.index, delta.call_id or item.id, delta.name or ""
        self._items.append(item)
        self._open = item
        return item

    def _close(self, status: Status) -> list[Json]:
        item, self._open = self._open, None
        if item is None:
            return []
        done: Json = {"type": f"{_EVENTS[item.kind]}.done", **_place(item)}
        events = [done]
        if item.kind == "function_call":
            done |= {"name": item.name, "arguments": item.text}
        else:
            done["text"] = item.text
            if item.kind == "message":
                done["logprobs"] = item.logprobs
            part = item.part(item.text, item.logprobs)
            events.append({"type": "response.content_part.done", **_place(item), "part": part})
        events.append({"type": "response.output_item.done", "output_index": item.index, "item": item.shown(status)})
        return events


def _kind_of(delta: AnswerDelta) -> ItemKind:
    if isinstance(delta, ReasoningDelta):
        return "reasoning"
    return "function_call" if isinstance(delta, ToolCallDelta) else "message"


def _place(item: OutputItem) -> Json:
    place: Json = {"item_id": item.id, "output_index": item.index}
    return place if item.kind == "function_call" else {**place, "content_index": 0}


def _call_of(delta: AnswerDelta) -> int:
    return delta.index if isinstance(delta, ToolCallDelta) else 0
