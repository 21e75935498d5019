"""Items of an input as the messages of a conversation.

Knows kinds of items and parts, and which of them make one turn of the assistant; not how templates write messages.
Whatever is not served is refused by its kind and place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Raw

from inflight.counted import shortened
from inflight.server.bodies.chat import ContentPart, Message, TextPart
from inflight.server.bodies.responses import (
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
from inflight.server.bodies.tools import CalledFunction, CalledTool
from inflight.server.bodies.values import read_value
from inflight.server.errors import ApiError, invalid

_KIND = msgspec.json.Decoder(Kind)
_DECODERS = {name: msgspec.json.Decoder(kind) for name, kind in ITEM_KINDS.items()}
_IS_OBJECT = msgspec.json.Decoder(dict[str, Raw])
_NOT_TEXT = {"input_image": "images", "input_file": "files", "input_audio": "sound"}
_TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")
_SYSTEM = ("system", "developer")


def items_of(given: str | Sequence[Raw]) -> list[Item]:
    """The items of an input; a text is a user's message. Raises ApiError."""
    if isinstance(given, str):
        return [MessageItem("user", given)]
    return [_item(raw, f"input[{number}]") for number, raw in enumerate(given)]


def messages_of(items: Sequence[Item], instructions: str | None = None, history: Sequence[Raw] = ()) -> list[Message]:
    """instructions: of the system, before everything. history: items of a stored response, before these. Raises
    ApiError."""
    turns = _Turns()
    if instructions:
        turns.add_message(MessageItem("system", instructions), "instructions")
    before = [(_item(raw, place), place) for raw in history for place in ("previous_response_id",)]
    for item, place in (*before, *((item, f"input[{number}]") for number, item in enumerate(items))):
        match item:
            case MessageItem():
                turns.add_message(item, place)
            case FunctionCallItem():
                turns.add_call(item, place)
            case FunctionCallOutputItem():
                turns.add_output(item, place)
            case ReasoningItem():
                turns.add_reasoning(item, place)
    if not turns.messages:
        raise invalid("input holds no message; give text, or at least one item.", "input")
    return turns.messages


class _Turns:
    """Messages so far. What the assistant thinks, says and calls in a row is one message, as templates have it."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._calls: set[str] = set()  # ids of all calls so far

    def add_message(self, item: MessageItem, place: str) -> None:
        texts = _texts(item.content, f"{place}.content")
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

    def add_reasoning(self, item: ReasoningItem, place: str) -> None:
        reasoning = "".join(_texts(item.content or item.summary or "", f"{place}.content"))
        if reasoning:
            turn = self._turn(lambda last: last.content is None and not last.tool_calls)
            turn.reasoning_content = (turn.reasoning_content or "") + reasoning

    def add_call(self, item: FunctionCallItem, place: str) -> None:
        _check_arguments(item.arguments, f"{place}.arguments")
        turn = self._turn(lambda last: True)
        call = CalledTool(CalledFunction(item.name, item.arguments), item.call_id)
        turn.tool_calls = [*(turn.tool_calls or ()), call]
        self._calls.add(item.call_id)

    def add_output(self, item: FunctionCallOutputItem, place: str) -> None:
        if item.call_id not in self._calls:
            raise invalid(
                f"{place} is the output of the call {shortened(item.call_id)!r}, which is none of the function_call "
                "items before it; send the call, too.",
                f"{place}.call_id",
                "invalid_value",
            )
        output = "\n".join(_texts(item.output, f"{place}.output"))
        self.messages.append(Message(role="tool", content=output, tool_call_id=item.call_id))

    def _turn(self, goes_on: Callable[[Message], bool]) -> Message:
        """The assistant's message that is being put together, if what comes can be of it; else a new one."""
        if not (self.messages and self.messages[-1].role == "assistant" and goes_on(self.messages[-1])):
            self.messages.append(Message(role="assistant"))
        return self.messages[-1]


def _item(raw: Raw, place: str) -> Item:
    read_value(place, _IS_OBJECT, raw)
    kind = read_value(place, _KIND, raw)
    name = kind.type or ("message" if kind.role is not None else None)
    if name is None:
        raise invalid(f"{place} has no type; give one of {', '.join(ITEM_KINDS)}.", f"{place}.type", "missing_field")
    if name not in _DECODERS:
        raise _not_served(name, place)
    item: Item = read_value(place, _DECODERS[name], raw)
    return item


def _not_served(name: str, place: str) -> ApiError:
    if name == "item_reference":
        return invalid(
            f"{place} names an item by its id, and responses are stored by a server with --store-responses only, and "
            "never of a job's lines; send the item itself, as clients do where store is false.",
            f"{place}.type",
            "unsupported_value",
        )
    return invalid(
        f"{place} is of the type {shortened(name)!r}, which is not served; an input may hold {', '.join(ITEM_KINDS)}.",
        f"{place}.type",
        "unsupported_value",
    )


def _texts(content: Content, place: str) -> list[str]:
    """Of all parts. Raises ApiError where one is something else."""
    if isinstance(content, str):
        return [content]
    return [_text_of(part, f"{place}[{number}]") for number, part in enumerate(content)]


def _text_of(part: Part, place: str) -> str:
    if part.type == "refusal":
        return part.refusal or ""
    if part.type not in _TEXT_PARTS:
        what = _NOT_TEXT.get(part.type)
        why = f"this model reads no {what}" if what else "it is not known here"
        raise invalid(
            f"{place} is of the type {shortened(part.type)!r}, but {why}; give parts "
            '{"type": "input_text", "text": "…"}.',
            f"{place}.type",
            "unsupported_value",
        )
    if part.text is None:
        raise invalid(f"{place} has no text; give one.", f"{place}.text", "missing_field")
    return part.text


def _check_arguments(arguments: str, place: str) -> None:
    """Templates that take objects are given what this text says."""
    if not arguments.strip():
        return
    try:
        _IS_OBJECT.decode(arguments)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise invalid(
            f"{place} is no JSON object ({shortened(str(error))}); send the call's arguments as valid JSON.",
            place,
            "invalid_value",
        ) from None
