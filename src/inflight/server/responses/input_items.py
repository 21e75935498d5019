"""Items of an input as they are listed and kept: each with its type, and its content in parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from inflight.server.bodies.responses import (
    Content,
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    MessageItem,
    Part,
    ReasoningItem,
)

Json = dict[str, Any]


def written(items: Sequence[Item]) -> list[Json]:
    return [_written(one) for one in items]


def _written(item: Item) -> Json:
    match item:
        case MessageItem():
            kind = "output_text" if item.role == "assistant" else "input_text"
            content = _parts(item.content, kind)
            return {"type": "message", "role": item.role, "status": "completed", "content": content}
        case FunctionCallItem():
            call = {"call_id": item.call_id, "name": item.name, "arguments": item.arguments}
            return {"type": "function_call", "status": "completed", **call}
        case FunctionCallOutputItem():
            output = item.output if isinstance(item.output, str) else _parts(item.output, "input_text")
            return {
                "type": "function_call_output",
                "status": "completed",
                "call_id": item.call_id,
                "output": output,
            }
        case ReasoningItem():
            told = [[_part(one) for one in parts or ()] for parts in (item.summary, item.content)]
            return {"type": "reasoning", "status": "completed", "summary": told[0], "content": told[1]}


def _parts(content: Content, kind: str) -> list[Json]:
    if isinstance(content, str):
        return [_with_notes({"type": kind, "text": content})]
    return [_with_notes(_part(one)) for one in content]


def _part(part: Part) -> Json:
    told: Json = msgspec.to_builtins(part)
    return {name: value for name, value in told.items() if value is not None}


def _with_notes(part: Json) -> Json:
    return {**part, "annotations": []} if part["type"] == "output_text" else part
