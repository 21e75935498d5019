"""Messages of blocks as the messages of a conversation.

Knows kinds of blocks, who may say them, and which of them make one turn; not how templates write messages. Whatever is
not served is refused by its kind and place.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Raw

from inflight.counted import shortened
from inflight.server.bodies.chat import Message
from inflight.server.bodies.messages import (
    BLOCK_KINDS,
    Block,
    Content,
    InputMessage,
    Kind,
    RedactedThinkingBlock,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from inflight.server.bodies.tools import CalledFunction, CalledTool
from inflight.server.bodies.values import read_value
from inflight.server.errors import ApiError, invalid

_KIND = msgspec.json.Decoder(Kind)
_DECODERS: dict[str, msgspec.json.Decoder[Block]] = {
    name: msgspec.json.Decoder(kind) for name, kind in BLOCK_KINDS.items()
}
_SAID_BY: dict[Role, tuple[str, ...]] = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
    "system": ("text",),
}
_NOT_TEXT = {"image": "images", "document": "documents", "search_result": "search results"}


def messages_of(given: Sequence[InputMessage], system: Content | None = None) -> list[Message]:
    """system: before everything. Raises ApiError."""
    turns = _Turns()
    if system:
        turns.add_system(_texts(system, "system"))
    for number, message in enumerate(given):
        place = f"messages[{number}].content"
        if message.role == "system":
            turns.add_system(_texts(message.content, place))
            continue
        turn = turns.begin(message.role)
        for where, block in _blocks(message.content, message.role, place):
            turn = turns.add(turn, block, where)
    return turns.messages


def goes_on(messages: Sequence[Message]) -> bool:
    """Whether the answer goes on with the assistant's last words. Raises ApiError where the last turn is one that
    nothing can follow."""
    last = messages[-1]
    if last.role != "assistant":
        return False
    if last.tool_calls:
        raise invalid(
            f"messages ends with {len(last.tool_calls)} tool_use without their results; send a tool_result for each.",
            "messages",
        )
    if not last.content:
        raise invalid(
            "messages ends with an assistant's message without text, with which no answer can go on; leave it out.",
            "messages",
        )
    return True


class _Turns:
    """Messages so far. What one side says in a row is one message, as templates have it; results of tools are each a
    message of their own."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._calls: set[str] = set()  # ids of all calls so far

    def add_system(self, texts: list[str]) -> None:
        text = "\n".join(texts)
        if len(self.messages) == 1 and self.messages[0].role == "system":
            self.messages[0].content = f"{self.messages[0].content}\n{text}"  # templates take one, which comes first
        else:
            self.messages.append(Message(role="system", content=text))

    def begin(self, role: Role) -> Message:
        """The message that goes on, or a new one that is still none: empty turns leave no trace but the assistant's."""
        if self.messages and self.messages[-1].role == role:
            return self.messages[-1]
        message = Message(role=role, content="" if role == "assistant" else None)
        if role == "assistant":
            self.messages.append(message)
        return message

    def add(self, turn: Message, block: Block, place: str) -> Message:
        """The message that the next block of the turn goes to."""
        match block:
            case TextBlock() if turn.role == "user":
                if turn.content is None:
                    self.messages.append(turn)
                turn.content = block.text if turn.content is None else f"{turn.content}\n{block.text}"
            case TextBlock():
                turn.content = f"{turn.content}{block.text}"
            case ThinkingBlock():
                turn.reasoning_content = (turn.reasoning_content or "") + block.thinking
            case ToolUseBlock():
                call = CalledTool(CalledFunction(block.name, block.input), block.id)
                turn.tool_calls = [*(turn.tool_calls or ()), call]
                self._calls.add(block.id)
            case ToolResultBlock():
                self._add_result(block, place)
                return Message(role="user")  # what the user says next comes behind the result
            case RedactedThinkingBlock():
                pass
        return turn

    def _add_result(self, block: ToolResultBlock, place: str) -> None:
        if block.tool_use_id not in self._calls:
            raise invalid(
                f"{place} is the result of {shortened(block.tool_use_id)!r}, which is none of the tool_use blocks "
                "before it; send the call, too.",
                f"{place}.tool_use_id",
                "invalid_value",
            )
        content = "\n".join(_texts(block.content or "", f"{place}.content"))
        if block.is_error:  # which templates have no place for
            content = f"Error: {content}" if content else "Error"
        self.messages.append(Message(role="tool", content=content, tool_call_id=block.tool_use_id))


def _blocks(content: Content, role: Role, place: str) -> list[tuple[str, Block]]:
    """With the place of each."""
    if isinstance(content, str):
        return [(place, TextBlock(content))]
    places = [f"{place}[{number}]" for number in range(len(content))]
    return [(where, _block(raw, role, where)) for where, raw in zip(places, content, strict=True)]


def _texts(content: Content, place: str) -> list[str]:
    """Of content that may hold nothing else. Raises ApiError."""
    blocks = _blocks(content, "system", place)
    return [block.text for _, block in blocks if isinstance(block, TextBlock)]


def _block(raw: Raw, role: Role, place: str) -> Block:
    kind = read_value(place, _KIND, raw).type
    if kind is None:
        raise invalid(
            f"{place} has no type; give one of {', '.join(_SAID_BY[role])}.", f"{place}.type", "missing_field"
        )
    if kind not in _SAID_BY[role]:
        raise _not_served(kind, role, place)
    return read_value(place, _DECODERS[kind], raw)


def _not_served(kind: str, role: Role, place: str) -> ApiError:
    may = ", ".join(_SAID_BY[role])
    if kind in _NOT_TEXT:
        why = f"this server reads no {_NOT_TEXT[kind]}"
    elif kind in BLOCK_KINDS:
        why = "it has no place here"
    else:
        why = "it is not served"
    return invalid(
        f"{place} is of the type {shortened(kind)!r}, but {why}; give blocks of the type {may}.",
        f"{place}.type",
        "unsupported_value",
    )
