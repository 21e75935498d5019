"""Schema of /v1/responses: bodies, the items of their input, what answers repeat of a body, and answers.

Items are read in two steps, since messages may come without a type.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from inflight.server.common.bodies import BodyDecoder
from inflight.server.common.fields import (
    COMMON_HINTS,
    COMMON_NEUTRAL,
    MAX_MESSAGES,
    Count,
    EngineSettings,
    JsonObject,
    Name,
    Positive,
    ReasoningEffort,
    Stops,
    StructuredOutputs,
    TemplateVariables,
    Text,
    Tier,
    TopLogprobs,
)
from inflight.server.common.tools import MAX_TOOLS

PREFIX = "resp_"  # of ids
LOGPROBS = "message.output_text.logprobs"
_ITEM = Meta(
    description="A message, function_call, function_call_output or reasoning; an item_reference where they are stored.",
    extra_json_schema={"type": "object"},
)
_PARTS = Meta(max_length=MAX_MESSAGES)


class Kind(Struct):
    """The first look at an item."""

    type: Name | None = None
    role: Name | None = None


class Part(Struct):
    """A part of a content. What else comes with it (annotations, log-probabilities) changes no token."""

    type: Name
    text: Text | None = None
    refusal: Text | None = None


Content = Text | Annotated[list[Part], _PARTS]


class MessageItem(Struct):
    """role assistant: an earlier answer, as it came or as text."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content


class FunctionCallItem(Struct):
    """arguments: JSON text."""

    call_id: Name
    name: Name
    arguments: Text


class FunctionCallOutputItem(Struct):
    call_id: Name
    output: Content


class ReasoningItem(Struct):
    """Reasoning of an earlier answer. content: the reasoning itself; without, its summary is read."""

    content: Annotated[list[Part], _PARTS] | None = None
    summary: Annotated[list[Part], _PARTS] | None = None


Item = MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem
ITEM_KINDS: dict[str, type[Item]] = {
    "message": MessageItem,
    "function_call": FunctionCallItem,
    "function_call_output": FunctionCallOutputItem,
    "reasoning": ReasoningItem,
}


class FunctionTool(Struct, kw_only=True, tag_field="type", tag="function", rename={"async_": "async"}):
    """strict: calls' arguments are valid under the schema; without a word of it they are as the model writes them.
    defer_loading, allowed_callers, output_schema, async: have a value that means "not used"."""

    name: Name
    description: Text | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    output_schema: JsonObject | None = None
    async_: bool | None = None
    allowed_callers: Annotated[list[Name], Meta(max_length=16)] | None = None


class NamedFunction(Struct, tag_field="type", tag="function", forbid_unknown_fields=True):
    name: Name


class AllowedFunctions(Struct, tag_field="type", tag="allowed_tools", forbid_unknown_fields=True):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedFunction], Meta(min_length=1, max_length=MAX_TOOLS)]


ToolChoiceField = Literal["none", "auto", "required"] | NamedFunction | AllowedFunctions


class PlainFormat(Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    """Any text."""


class ObjectFormat(Struct, tag_field="type", tag="json_object", forbid_unknown_fields=True):
    """A JSON object of any form."""


class SchemaFormat(Struct, kw_only=True, tag_field="type", tag="json_schema", rename={"schema_": "schema"}):
    """strict: the schema is kept in either way."""

    schema_: JsonObject
    name: Name | None = None
    description: Text | None = None
    strict: bool | None = None


class TextField(Struct, kw_only=True, forbid_unknown_fields=True):
    """verbosity: a hint; no model here was trained on it."""

    format: PlainFormat | ObjectFormat | SchemaFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningField(Struct, kw_only=True, forbid_unknown_fields=True):
    """summary auto: there is none, since the reasoning itself is shown. context, mode: one value of each is served."""

    effort: ReasoningEffort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: Name | None = None


class ResponseStreamOptions(Struct, forbid_unknown_fields=True):
    include_obfuscation: bool | None = None  # a hint: frames carry nothing but the answer


Metadata = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)
]


class ResponsesBody(EngineSettings, kw_only=True, forbid_unknown_fields=True):
    """max_tool_calls: of tools that a server runs, of which there are none: any number is kept to."""

    input: Text | Annotated[list[Annotated[Raw, _ITEM]], Meta(max_length=MAX_MESSAGES)]
    instructions: Text | None = None
    previous_response_id: Name | None = None
    store: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    max_output_tokens: Positive | None = None
    include: Annotated[list[Name], Meta(max_length=16)] | None = None
    top_logprobs: TopLogprobs | None = None
    text: TextField | None = None
    reasoning: ReasoningField | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoiceField | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Positive | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: Metadata | None = None
    user: Name | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None
    service_tier: Tier | None = None
    stop: Stops | None = None
    structured_outputs: StructuredOutputs | None = None
    enable_thinking: bool | None = None
    thinking_token_budget: Count | None = None
    chat_template_kwargs: TemplateVariables | None = None


SAME_IN_CHAT = (
    *EngineSettings.__struct_fields__,
    *("top_logprobs", "parallel_tool_calls", "user", "safety_identifier", "prompt_cache_key", "service_tier", "stop"),
    *("structured_outputs", "enable_thinking", "thinking_token_budget", "chat_template_kwargs"),
)
RESPONSES = BodyDecoder(
    ResponsesBody,
    neutral={
        **COMMON_NEUTRAL,
        "background": (
            (False,),
            "an answer is given while its call is open; a batch job needs no connection.",
        ),
        "background_options": (({},), "an answer is given while its call is open."),
        "conversation": ((), "conversations are not kept; send their items as input."),
        "prompt": ((), "prompts are not kept; send the text."),
        "context_management": (([],), "nothing is compacted; send fewer items, or truncation auto."),
        "moderation": ((), "nothing is moderated."),
        "access_programs": (({},), "hosted programs are not run."),
        "image": (({}, {"context_compression": "auto"}), "only text is served."),
        "n": ((1,), "there is one response to a call; /v1/chat/completions has n."),
        "messages": ((), "the conversation is given as input."),
        "max_tokens": ((), "the limit is max_output_tokens."),
        "max_completion_tokens": ((), "the limit is max_output_tokens."),
        "response_format": ((), "the form of an answer is given as text.format."),
        "reasoning_effort": ((), "it is given as reasoning.effort."),
        "logprobs": ((False,), f"log-probabilities come with include: [{LOGPROBS!r}]."),
    },
    hints=COMMON_HINTS,
    content={"tools"},
)


# -- what an answer repeats of its body --------------------------------------------------------------------------------

_NONE = Raw(b"[]")


class EchoedText(Struct, frozen=True):
    """The field `text`: the form of the answer."""

    format: Raw = Raw(b'{"type":"text"}')
    verbosity: str = "medium"


class EchoedReasoning(Struct, frozen=True):
    effort: str | None = None
    summary: str | None = None


class EchoedFields(Struct, frozen=True, kw_only=True):
    """store: whether it is stored."""

    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] = {}
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    reasoning: EchoedReasoning = EchoedReasoning()
    safety_identifier: str | None = None
    store: bool = False
    text: EchoedText = EchoedText()
    tool_choice: Raw = Raw(b'"auto"')
    tools: Raw = _NONE
    top_logprobs: int = 0
    truncation: str = "disabled"
    user: str | None = None


_DECODER = msgspec.json.Decoder(EchoedFields)
encode_echoed = msgspec.json.Encoder().encode


def decode_echoed(content: bytes) -> EchoedFields:
    return _DECODER.decode(content) if content else EchoedFields()


# -- answers -----------------------------------------------------------------------------------------------------------


class CachedTokens(Struct, kw_only=True):
    cached_tokens: int
    cache_write_tokens: int


class ReasoningTokens(Struct, kw_only=True):
    reasoning_tokens: int


class ResponseUsage(Struct, kw_only=True):
    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class ResponseOutputItem(Struct, kw_only=True):
    """Other fields depend on the type."""

    id: str
    type: Literal["message", "function_call", "reasoning"]
    status: Literal["in_progress", "completed", "incomplete"]


class IncompleteDetails(Struct, kw_only=True):
    reason: Literal["max_output_tokens"]


State = Literal["in_progress", "completed", "incomplete", "failed"]


class Response(Struct, kw_only=True):
    """An answer, and within a stream's events its state; with what it repeats of the body."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: State
    background: bool
    error: dict[str, Any] | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[ResponseOutputItem]
    service_tier: str
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    usage: ResponseUsage | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    store: bool
    text: dict[str, Any]
    tool_choice: Any
    tools: list[Any]
    top_logprobs: int
    truncation: str
    user: str | None
