"""Schema of /v1/messages and /v1/messages/count_tokens: bodies, the blocks of their messages, and answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from inflight.server.common.bodies import BodyDecoder
from inflight.server.common.fields import (
    COMMON_HINTS,
    COMMON_NEUTRAL,
    MAX_MESSAGES,
    MAX_STOPS,
    Count,
    EngineSettings,
    JsonObject,
    Name,
    Positive,
    StopString,
    TemplateVariables,
    Text,
)
from inflight.server.common.tools import MAX_TOOLS


class TextBlock(Struct, tag_field="type", tag="text"):
    """A text; other fields of it (cache_control, citations) change no token."""

    text: Text


class ThinkingBlock(Struct, tag_field="type", tag="thinking"):
    """Reasoning of an earlier answer, whose signature is not read."""

    thinking: Text


class RedactedThinkingBlock(Struct, tag_field="type", tag="redacted_thinking"):
    """Reasoning that another server encrypted: it is not read, and no template would write it."""


class ToolUseBlock(Struct, tag_field="type", tag="tool_use"):
    id: Name
    name: Name
    input: JsonObject


class OnlyTextBlock(Struct):
    """A text where no other block may stand, so that its type may be left out."""

    text: Text
    type: Literal["text"] = "text"


TextContent = Text | Annotated[list[OnlyTextBlock], Meta(max_length=MAX_MESSAGES)]


class ToolResultBlock(Struct, tag_field="type", tag="tool_result"):
    tool_use_id: Name
    content: TextContent | None = None
    is_error: bool | None = None


Block = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock
Role = Literal["user", "assistant", "system"]


class InputMessage(Struct):
    role: Role
    content: Text | Annotated[list[Block], Meta(max_length=MAX_MESSAGES)]


class ClientTool(Struct, kw_only=True):
    """A tool that the client runs. strict: calls' input is valid under the schema; without a word of it, it is as the
    model writes it. defer_loading, allowed_callers, input_examples: have a value that means "not used". What else comes
    with it (cache_control, eager_input_streaming) changes no token."""

    type: Literal["custom"] | None = None
    name: Name
    input_schema: JsonObject
    description: Text | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    allowed_callers: Annotated[list[Name], Meta(max_length=16)] | None = None
    input_examples: Annotated[list[JsonObject], Meta(max_length=64)] | None = None


class AutoChoice(Struct, tag_field="type", tag="auto", forbid_unknown_fields=True):
    disable_parallel_tool_use: bool | None = None


class AnyChoice(Struct, tag_field="type", tag="any", forbid_unknown_fields=True):
    disable_parallel_tool_use: bool | None = None


class NamedChoice(Struct, tag_field="type", tag="tool", forbid_unknown_fields=True):
    """One call of this tool, whatever is said of parallel calls."""

    name: Name
    disable_parallel_tool_use: bool | None = None


class NoneChoice(Struct, tag_field="type", tag="none", forbid_unknown_fields=True):
    """No tool is called."""


ToolChoiceField = AutoChoice | AnyChoice | NamedChoice | NoneChoice
Display = Literal["summarized", "omitted"]


class EnabledThinking(Struct, tag_field="type", tag="enabled", forbid_unknown_fields=True):
    """budget_tokens: most tokens of the reasoning, which is ended then."""

    budget_tokens: Positive
    display: Display | None = None


class AdaptiveThinking(Struct, tag_field="type", tag="adaptive", forbid_unknown_fields=True):
    """As much as the model sees fit."""

    display: Display | None = None


class DisabledThinking(Struct, tag_field="type", tag="disabled", forbid_unknown_fields=True):
    """None, where the model's template can say so."""


ThinkingField = EnabledThinking | AdaptiveThinking | DisabledThinking


class OutputFormat(Struct, kw_only=True, forbid_unknown_fields=True, rename={"schema_": "schema"}):
    type: Literal["json_schema"]
    schema_: JsonObject


class OutputConfig(Struct, kw_only=True, forbid_unknown_fields=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class Metadata(Struct, forbid_unknown_fields=True):
    user_id: Name | None = None


class MessagesBody(EngineSettings, kw_only=True, forbid_unknown_fields=True):
    """output_format: an older place of output_config.format."""

    messages: Annotated[list[InputMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    system: TextContent | None = None
    tools: Annotated[list[ClientTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoiceField | None = None
    thinking: ThinkingField | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    chat_template_kwargs: TemplateVariables | None = None
    max_tokens: Count
    stop_sequences: Annotated[list[StopString], Meta(max_length=MAX_STOPS)] | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None


class CountTokensBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """A body of /v1/messages may be sent as it is: its other fields change no token of the prompt."""

    model: Name | None = None
    messages: Annotated[list[InputMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    system: TextContent | None = None
    tools: Annotated[list[ClientTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoiceField | None = None
    thinking: ThinkingField | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    chat_template_kwargs: TemplateVariables | None = None


SAME_IN_CHAT = (*EngineSettings.__struct_fields__, "max_tokens")
_KEEPS_ALL = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
_BILLS_SELF = {"type": "billing_policy", "bill_to": "self"}
_NEUTRAL = {
    **COMMON_NEUTRAL,
    "container": ((), "nothing is run here."),
    "context_management": (({}, {"edits": []}, _KEEPS_ALL), "nothing is cleared or compacted; send fewer messages."),
    "mcp_servers": (([],), "this server asks no other one; run the tools at the client."),
    "compaction": ((), "nothing is compacted; send fewer messages."),
    "fallbacks": (([], "default"), "fallback models are not supported."),
    "fallback_credit_token": ((), "nothing is paid for."),
    "billing_policy": ((_BILLS_SELF, {"bill_to": "self"}), "nothing is paid for."),
    "betas": (([],), "betas are named in the header anthropic-beta, and change nothing."),
    "diagnostics": ((), "requests are not compared; usage shows how many tokens were cached."),
    "inference_geo": ((), "the server has one location."),
    "speed": (("standard",), "there is one speed."),
    "thread": ((), "no conversation is kept; send all its messages."),
    "n": ((1,), "there is one message to a call; /v1/chat/completions has n."),
    "stop": ((), "it is given as stop_sequences."),
    "max_completion_tokens": ((), "the limit is max_tokens."),
    "response_format": ((), "the form of an answer is given as output_config.format."),
    "reasoning_effort": ((), "it is given as output_config.effort."),
    "thinking_token_budget": ((), "it is given as thinking.budget_tokens."),
    "user": ((), "it is given as metadata.user_id."),
}
_HINTS = COMMON_HINTS | {"cache_control", "user_profile_id", "workspace_id"}
_CONTENT = {"messages", "system", "tools"}
MESSAGES = BodyDecoder(MessagesBody, neutral=_NEUTRAL, hints=_HINTS, content=_CONTENT)
_OF_THE_ANSWER = {*MessagesBody.__struct_fields__} - {*CountTokensBody.__struct_fields__}
COUNT_TOKENS = BodyDecoder(CountTokensBody, neutral=_NEUTRAL, hints=_HINTS | _OF_THE_ANSWER, content=_CONTENT)


# -- answers -----------------------------------------------------------------------------------------------------------


class ThinkingTokens(Struct, kw_only=True):
    thinking_tokens: int


class MessageUsage(Struct, kw_only=True):
    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokens
    server_tool_use: None = None
    cache_creation: UnsetType | None = UNSET
    inference_geo: UnsetType | None = UNSET
    service_tier: Literal["standard", "batch"] | UnsetType = UNSET


class DirectCaller(Struct, kw_only=True):
    """The caller of each tool: the model, since the server runs no programs that call tools."""

    type: Literal["direct"] = "direct"


class MessageContent(Struct, kw_only=True):
    """A block; which of the fields it has depends on its type."""

    type: Literal["text", "thinking", "tool_use"]
    thinking: str | UnsetType = UNSET
    signature: str | UnsetType = UNSET
    id: str | UnsetType | None = UNSET
    name: str | UnsetType | None = UNSET
    input: dict[str, Any] | UnsetType = UNSET
    caller: DirectCaller | UnsetType = UNSET
    text: str | UnsetType = UNSET


StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class MessagesAnswer(Struct, kw_only=True):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[MessageContent]
    stop_reason: StopReason | None
    stop_sequence: str | None
    stop_details: None
    container: None
    usage: MessageUsage


class CountedTokens(Struct, kw_only=True):
    input_tokens: int
