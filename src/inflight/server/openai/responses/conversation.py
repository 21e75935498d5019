"""Items of an input as the messages of a conversation, and as they are stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from inflight.counted import shortened
from inflight.server.common.bodies import read_value
from inflight.server.common.conversation import ContentPart, Message, TextPart
from inflight.server.common.tools import CalledFunction, CalledTool
from inflight.server.errors import ApiError, invalid
from inflight.server.openai.responses.schema import (
    ITEM_KINDS,
    Content,
    FunctionCallItem,
    FunctionCallOutputItem,
    Item,
    Kind,
    MessageItem,
    Part,
    ReasoningItem,
)

_KIND = msgspec.json.Decoder(Kind)
_DECODERS = {name: msgspec.json.Decoder(kind) for name, kind in ITEM_KINDS.items()}
_IS_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_NOT_TEXT = {"input_image": "images", "input_file": "files", "input_audio": "sound"}
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_SYSTEM = ("system", "developer")


def items_of(given: str | Sequence[Raw]) -> list[Item]:
    """Return the items of an input; a text is a user's message. Raises ApiError."""
    if isinstance(given, str):
        return [MessageItem("user", given)]
    return [_item(raw, f"input[{number}]") for number, raw in enumerate(given)]


def messages_of(items: Sequence[Item], instructions: str | None = None, history: Sequence[Raw] = ()) -> list[Message]:
    """instructions: of the system, before everything. history: items of a stored response, before these. Raises
    ApiError."""
    turns = _Turns()
    if instructions:
        turns.add_message(MessageItem("system", instructions), "instructions")
    before = [(_item(raw, path), path) for raw in history for path in ("previous_response_id",)]
    for item, path in (*before, *((item, f"input[{number}]") for number, item in enumerate(items))):
        match item:
            case MessageItem():
                turns.add_message(item, path)
            case FunctionCallItem():
                turns.add_call(item, path)
            case FunctionCallOutputItem():
                turns.add_output(item, path)
            case ReasoningItem():
                turns.add_reasoning(item, path)
    if not turns.messages:
        raise invalid("input holds no message; give text, or at least one item.", "input")
    return turns.messages


class _Turns:
    """Messages so far. What the assistant thinks, says and calls in a row is one message, as templates have it."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._calls: set[str] = set()  # ids of all calls so far

    def add_message(self, item: MessageItem, path: str) -> None:
        texts = _texts(item.content, f"{path}.content")
        if item.role == "assistant":
            turn = self._turn(lambda last: last.content is None and not last.tool_calls)
            turn.content = "".join(texts)
        elif item.role == "user":
            parts: list[ContentPart] = [TextPart(one) for one in texts]
            self.messages.append(Message(role="user", content=parts if len(parts) > 1 else "".join(texts)))
        elif len(self.messages) == 1 and self.messages[0].role in _SYSTEM:
            # Templates take one system message, which comes first.
            self.messages[0].content = "\n\n".join([str(self.messages[0].content), *texts])
        else:
            self.messages.append(Message(role=item.role, content="\n".join(texts)))

    def add_reasoning(self, item: ReasoningItem, path: str) -> None:
        reasoning = "".join(_texts(item.content or item.summary or "", f"{path}.content"))
        if reasoning:
            turn = self._turn(lambda last: last.content is None and not last.tool_calls)
            turn.reasoning_content = (turn.reasoning_content or "") + reasoning

    def add_call(self, item: FunctionCallItem, path: str) -> None:
        _check_arguments(item.arguments, f"{path}.arguments")
        turn = self._turn(lambda last: True)
        call = CalledTool(CalledFunction(item.name, item.arguments), item.call_id)
        turn.tool_calls = [*(turn.tool_calls or ()), call]
        self._calls.add(item.call_id)

    def add_output(self, item: FunctionCallOutputItem, path: str) -> None:
        if item.call_id not in self._calls:
            raise invalid(
                f"{path} is the output of the call {shortened(item.call_id)!r}, which is none of the function_call "
                "items before it; send the call, too.",
                f"{path}.call_id",
                "invalid_value",
            )
        output = "\n".join(_texts(item.output, f"{path}.output"))
        self.messages.append(Message(role="tool", content=output, tool_call_id=item.call_id))

    def _turn(self, goes_on: Callable[[Message], bool]) -> Message:
        """Return the assistant's message that is being put together, if the next part may be of it; else a new one."""
        if not (self.messages and self.messages[-1].role == "assistant" and goes_on(self.messages[-1])):
            self.messages.append(Message(role="assistant"))
        return self.messages[-1]


def _item(raw: Raw, path: str) -> Item:
    read_value(path, _IS_OBJECT, raw)
    kind = read_value(path, _KIND, raw)
    name = kind.type or ("message" if kind.role is not None else None)
    if name is None:
        raise invalid(f"{path} has no type; give one of {', '.join(ITEM_KINDS)}.", f"{path}.type", "missing_field")
    if name not in _DECODERS:
        raise _not_served(name, path)
    item: Item = read_value(path, _DECODERS[name], raw)
    return item


def _not_served(name: str, path: str) -> ApiError:
    if name == "item_reference":
        return invalid(
            f"{path} names an item by its id, and responses are stored by a server with --store-responses only, and "
            "never of a job's lines; send the item itself, as clients do where store is false.",
            f"{path}.type",
            "unsupported_value",
        )
    return invalid(
        f"{path} is of the type {shortened(name)!r}, which is not supported; an input may hold "
        f"{', '.join(ITEM_KINDS)}.",
        f"{path}.type",
        "unsupported_value",
    )


def _texts(content: Content, path: str) -> list[str]:
    """Return the texts of all parts. Raises ApiError where one is not text."""
    if isinstance(content, str):
        return [content]
    return [_text_of(part, f"{path}[{number}]") for number, part in enumerate(content)]


def _text_of(part: Part, path: str) -> str:
    if part.type == "refusal":
        return part.refusal or ""
    if part.type not in _TEXT_PARTS:
        what = _NOT_TEXT.get(part.type)
        why = f"this model reads no {what}" if what else "it is not known here"
        raise invalid(
            f"{path} is of the type {shortened(part.type)!r}, but {why}; give parts "
            '{"type": "input_text", "text": "…"}.',
            f"{path}.type",
            "unsupported_value",
        )
    if part.text is None:
        raise invalid(f"{path} has no text; give one.", f"{path}.text", "missing_field")
    return part.text


def _check_arguments(arguments: str, path: str) -> None:
    """Templates that take objects are given what this text says."""
    if not arguments.strip():
        return
    try:
        _IS_OBJECT.decode(arguments)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise invalid(
            f"{path} is no JSON object ({shortened(str(error))}); send the call's arguments as valid JSON.",
            path,
            "invalid_value",
        ) from None


# -- items as they are listed and stored -------------------------------------------------------------------------------

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
            summary, content = ([_part(one) for one in parts or ()] for parts in (item.summary, item.content))
            return {"type": "reasoning", "status": "completed", "summary": summary, "content": content}


def _parts(content: Content, kind: str) -> list[Json]:
    if isinstance(content, str):
        return [_with_notes({"type": kind, "text": content})]
    return [_with_notes(_part(one)) for one in content]


def _part(part: Part) -> Json:
    given: Json = msgspec.to_builtins(part)
    return {name: value for name, value in given.items() if value is not None}


def _with_notes(part: Json) -> Json:
    return {**part, "annotations": []} if part["type"] == "output_text" else part
