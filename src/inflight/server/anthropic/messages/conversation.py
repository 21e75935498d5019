"""A body of /v1/messages as a conversation of chat: blocks become messages, and fields get chat's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from inflight.counted import shortened
from inflight.server.anthropic.messages.schema import (
    SAME_IN_CHAT,
    AnyChoice,
    Block,
    ClientTool,
    CountedTokens,
    CountTokensBody,
    DisabledThinking,
    EnabledThinking,
    InputMessage,
    MessagesBody,
    NamedChoice,
    NoneChoice,
    OutputFormat,
    RedactedThinkingBlock,
    Role,
    TextBlock,
    TextContent,
    ThinkingBlock,
    ToolChoiceField,
    ToolResultBlock,
    ToolUseBlock,
)
from inflight.server.common.conversation import ChatBody, Message
from inflight.server.common.fields import JsonSchemaFormat, JsonSchemaInside
from inflight.server.common.prepared import PreparedAnswer, PreparedChat, check_model
from inflight.server.common.tools import (
    CalledFunction,
    CalledTool,
    FunctionName,
    FunctionSpec,
    NamedTool,
    ToolChoiceSpec,
    ToolSpec,
    check_offered,
)
from inflight.server.errors import invalid

if TYPE_CHECKING:
    from inflight.server.preprocessing.worker import Preprocessor

FIELD_NAMES = {  # chat's → this endpoint's
    "stop": "stop_sequences",
    "user": "metadata.user_id",
    "response_format.json_schema": "output_config.format",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "thinking_token_budget": "thinking.budget_tokens",
    ".function.parameters": ".input_schema",
    ".function": "",
}


AnyBody = MessagesBody | CountTokensBody


def prepare(preprocessor: Preprocessor, body: MessagesBody, history: bytes | memoryview) -> PreparedChat:
    """Return the conversation's prompt, settings and tools. Raises ApiError."""
    return preprocessor.chat(to_chat(body), "messages")


def prepare_count(preprocessor: Preprocessor, body: AnyBody, history: bytes | memoryview) -> PreparedAnswer:
    """Return the number of tokens of the prompt that `prepare` makes. Raises ApiError."""
    chat = prompt_of(body)
    check_model(chat.model, preprocessor.limits.models)
    rendered = preprocessor.prompts.rendered(chat, preprocessor.forms.tools(chat).shown)
    count = CountedTokens(input_tokens=len(preprocessor.prompts.of_rendered(rendered)))
    return PreparedAnswer(msgspec.json.encode(count))


def to_chat(body: MessagesBody) -> ChatBody:
    """Return the same call as a body of /v1/chat/completions. Raises ApiError."""
    _check(body)
    thinking, metadata = body.thinking, body.metadata
    return structs.replace(
        prompt_of(body),
        stop=body.stop_sequences,
        user=None if metadata is None else metadata.user_id,
        service_tier="default" if body.service_tier == "standard_only" else body.service_tier,
        thinking_token_budget=thinking.budget_tokens if isinstance(thinking, EnabledThinking) else None,
        include_reasoning=getattr(thinking, "display", None) != "omitted",
        **{name: getattr(body, name) for name in SAME_IN_CHAT},
    )


def prompt_of(body: AnyBody) -> ChatBody:
    messages = messages_of(body.messages, body.system)
    if not messages:
        raise invalid("messages holds no text; give at least one message with some.", "messages")
    tools = [_tool(one, f"tools[{number}]") for number, one in enumerate(body.tools or ())]
    return ChatBody(
        model=body.model,
        messages=messages,
        continue_final_message=goes_on(messages) or None,
        tools=tools or None,
        tool_choice=_tool_choice(body.tool_choice),
        parallel_tool_calls=False if getattr(body.tool_choice, "disable_parallel_tool_use", None) else None,
        reasoning_effort=None if body.output_config is None else body.output_config.effort,
        response_format=_format(body),
        enable_thinking=None if body.thinking is None else not isinstance(body.thinking, DisabledThinking),
        chat_template_kwargs=body.chat_template_kwargs,
    )


def _check(body: MessagesBody) -> None:
    thinking = body.thinking
    if isinstance(thinking, EnabledThinking) and thinking.budget_tokens >= body.max_tokens:
        raise invalid(
            f"thinking.budget_tokens is {thinking.budget_tokens}, and max_tokens is {body.max_tokens}, which counts "
            "the thinking, too; raise max_tokens, so that some are left for the answer.",
            "thinking.budget_tokens",
        )
    if body.stop_sequences and "" in body.stop_sequences:
        raise invalid(
            f"stop_sequences holds an empty text at {body.stop_sequences.index('')}; leave it out.", "stop_sequences"
        )


def _format(body: AnyBody) -> JsonSchemaFormat | None:
    asked: OutputFormat | None = None if body.output_config is None else body.output_config.format
    if asked is not None and body.output_format is not None:
        raise invalid(
            "output_config.format and output_format both constrain the answer; give output_config.format.",
            "output_format",
        )
    asked = asked or body.output_format
    return None if asked is None else JsonSchemaFormat(JsonSchemaInside(schema_=asked.schema_, strict=True))


# -- tools ------------------------------------------------------------------------------------------------------------


def _tool(tool: ClientTool, path: str) -> ToolSpec:
    check_offered(path, tool.defer_loading, tool.allowed_callers)
    if tool.input_examples:
        raise invalid(
            f"{path}.input_examples has {len(tool.input_examples)}, which no chat template shows to the model; put "
            "them into the description.",
            f"{path}.input_examples",
        )
    function = FunctionSpec(
        name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict
    )
    return ToolSpec(type="function", function=function)


def _tool_choice(asked: ToolChoiceField | None) -> ToolChoiceSpec | None:
    match asked:
        case None:
            return None
        case AnyChoice():
            return "required"
        case NamedChoice():
            return NamedTool(FunctionName(asked.name))
        case NoneChoice():
            return "none"
        case _:
            return "auto"


# -- messages ----------------------------------------------------------------------------------------------------------

_SAID_BY: dict[Role, tuple[type[Block], ...]] = {
    "user": (TextBlock, ToolResultBlock),
    "assistant": (TextBlock, ThinkingBlock, RedactedThinkingBlock, ToolUseBlock),
    "system": (TextBlock,),
}


def messages_of(given: Sequence[InputMessage], system: TextContent | None = None) -> list[Message]:
    """Return the messages of a conversation. system: before everything. Raises ApiError."""
    turns = _Turns()
    if system:
        turns.add_system(_texts(system))
    for number, message in enumerate(given):
        path, content = f"messages[{number}].content", message.content
        blocks: Sequence[Block] = [TextBlock(content)] if isinstance(content, str) else content
        paths = [path if isinstance(content, str) else f"{path}[{index}]" for index in range(len(blocks))]
        for block, where in zip(blocks, paths, strict=True):
            _check_role(block, message.role, where)
        if message.role == "system":
            turns.add_system([block.text for block in blocks if isinstance(block, TextBlock)])
            continue
        turn = turns.begin(message.role)
        for block, where in zip(blocks, paths, strict=True):
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
        """Return the message that goes on, or a new one; only an assistant's turn leaves a trace where it is empty."""
        if self.messages and self.messages[-1].role == role:
            return self.messages[-1]
        message = Message(role=role, content="" if role == "assistant" else None)
        if role == "assistant":
            self.messages.append(message)
        return message

    def add(self, turn: Message, block: Block, path: str) -> Message:
        """Add a block, and return the message that the next block of the turn goes to."""
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
                self._add_result(block, path)
                return Message(role="user")  # what the user says next comes behind the result
            case RedactedThinkingBlock():
                pass
        return turn

    def _add_result(self, block: ToolResultBlock, path: str) -> None:
        if block.tool_use_id not in self._calls:
            raise invalid(
                f"{path} is the result of {shortened(block.tool_use_id)!r}, which is none of the tool_use blocks "
                "before it; send the call, too.",
                f"{path}.tool_use_id",
                "invalid_value",
            )
        content = "\n".join(_texts(block.content or ""))
        if block.is_error:  # which templates have no place for
            content = f"Error: {content}" if content else "Error"
        self.messages.append(Message(role="tool", content=content, tool_call_id=block.tool_use_id))


def _texts(content: TextContent) -> list[str]:
    return [content] if isinstance(content, str) else [block.text for block in content]


def _check_role(block: Block, role: Role, path: str) -> None:
    """Refuse a block that is not of this role's messages. Raises ApiError."""
    if not isinstance(block, _SAID_BY[role]):
        may = ", ".join(str(one.__struct_config__.tag) for one in _SAID_BY[role])
        raise invalid(
            f"{path}.type is {block.__struct_config__.tag!r}, which has no place here; in messages of the role {role} "
            f"it may be one of: {may}.",
            f"{path}.type",
            "unsupported_value",
        )
