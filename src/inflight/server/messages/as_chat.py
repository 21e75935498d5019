"""A body of /v1/messages as one of /v1/chat/completions, which is what is computed.

Knows what its fields are called there, and which of their values are not served; what chat's fields mean, others know.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw, structs

from inflight.counted import shortened
from inflight.server.bodies.as_chat import AsChat
from inflight.server.bodies.chat import ChatBody
from inflight.server.bodies.messages import (
    SAME_IN_CHAT,
    AnyChoice,
    ClientTool,
    DisabledThinking,
    EnabledThinking,
    Kind,
    MessagesBody,
    NamedChoice,
    NoneChoice,
    OutputFormat,
    PromptFields,
    ToolChoiceField,
)
from inflight.server.bodies.structured import JsonSchemaFormat, JsonSchemaInside
from inflight.server.bodies.tools import FunctionName, FunctionSpec, NamedTool, ToolChoiceSpec, ToolSpec
from inflight.server.bodies.values import read_value
from inflight.server.errors import invalid
from inflight.server.messages.conversation import goes_on, messages_of

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
_KIND = msgspec.json.Decoder(Kind)
_TOOL = msgspec.json.Decoder(ClientTool)


def as_chat(body: MessagesBody) -> AsChat:
    """Raises ApiError."""
    _check(body)
    thinking, metadata = body.thinking, body.metadata
    chat = structs.replace(
        _prompt(body),
        stop=body.stop_sequences,
        user=None if metadata is None else metadata.user_id,
        service_tier="default" if body.service_tier == "standard_only" else body.service_tier,
        thinking_token_budget=thinking.budget_tokens if isinstance(thinking, EnabledThinking) else None,
        include_reasoning=getattr(thinking, "display", None) != "omitted",
        **{name: getattr(body, name) for name in SAME_IN_CHAT},
    )
    return AsChat(body=chat)


def counted_as_chat(body: PromptFields) -> AsChat:
    """Return the conversation of /v1/messages/count_tokens. Raises ApiError."""
    return AsChat(body=_prompt(body))


def _prompt(body: PromptFields) -> ChatBody:
    messages = messages_of(body.messages, body.system)
    if not messages:
        raise invalid("messages holds no text; give at least one message with some.", "messages")
    tools = [_tool(raw, f"tools[{number}]") for number, raw in enumerate(body.tools or ())]
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


def _format(body: PromptFields) -> JsonSchemaFormat | None:
    asked: OutputFormat | None = None if body.output_config is None else body.output_config.format
    if asked is not None and body.output_format is not None:
        raise invalid(
            "output_config.format and output_format both say what the answer must be like; give output_config.format.",
            "output_format",
        )
    asked = asked or body.output_format
    return None if asked is None else JsonSchemaFormat(JsonSchemaInside(schema_=asked.schema_, strict=True))


# -- tools ------------------------------------------------------------------------------------------------------------


def _tool(raw: Raw, place: str) -> ToolSpec:
    kind = read_value(place, _KIND, raw).type
    if kind not in (None, "custom"):
        raise invalid(
            f"{place} is of the type {shortened(kind)!r}, which is not served: nothing is run here, and no tool is "
            "known by its type; give tools with a name and an input_schema, which the client runs.",
            f"{place}.type",
            "unsupported_value",
        )
    tool = read_value(place, _TOOL, raw)
    if tool.defer_loading:
        raise invalid(f"{place}.defer_loading is true, but all tools are shown to the model.", f"{place}.defer_loading")
    if tool.allowed_callers is not None and "direct" not in tool.allowed_callers:
        raise invalid(
            f"{place}.allowed_callers leaves out 'direct', and no program calls tools here.", f"{place}.allowed_callers"
        )
    if tool.input_examples:
        raise invalid(
            f"{place}.input_examples has {len(tool.input_examples)}, which no chat template shows to the model; put "
            "them into the description.",
            f"{place}.input_examples",
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
