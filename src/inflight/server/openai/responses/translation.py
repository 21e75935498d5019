"""A body of /v1/responses as one of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from inflight.counted import shortened
from inflight.server.common.conversation import ChatBody
from inflight.server.common.fields import (
    MAX_MESSAGES,
    JsonObjectFormat,
    JsonSchemaFormat,
    JsonSchemaInside,
    ResponseFormat,
)
from inflight.server.common.prepared import PreparedChat, max_tokens_of
from inflight.server.common.tools import (
    AllowedTool,
    AllowedTools,
    AllowedToolsInside,
    FunctionName,
    FunctionSpec,
    NamedTool,
    ToolChoiceSpec,
    ToolSpec,
    check_offered,
)
from inflight.server.errors import ApiError, invalid
from inflight.server.openai.responses.conversation import items_of, messages_of, written
from inflight.server.openai.responses.schema import (
    LOGPROBS,
    SAME_IN_CHAT,
    AllowedFunctions,
    EchoedFields,
    EchoedReasoning,
    EchoedText,
    FunctionTool,
    NamedFunction,
    ObjectFormat,
    ReasoningField,
    ResponsesBody,
    SchemaFormat,
    ToolChoiceField,
    encode_echoed,
)

if TYPE_CHECKING:
    from inflight.server.preprocessing.worker import Preprocessor

FIELD_NAMES = {  # chat's → this endpoint's
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "n": "input",
    ".function.": ".",
    ".function": "",
}
_RAW_ITEMS = msgspec.json.Decoder(list[Raw])
_INCLUDES = (LOGPROBS, "reasoning.encrypted_content")
_SAME = (
    *("instructions", "max_output_tokens", "max_tool_calls", "metadata", "parallel_tool_calls", "prompt_cache_key"),
    *("previous_response_id", "safety_identifier", "top_logprobs", "truncation", "user"),
)
_encode = msgspec.json.Encoder().encode


class Translated(NamedTuple):
    """A body as one of chat.

    Attributes:
        echoed: JSON, what the answer repeats of the body.
        stored_items: JSON, the items that the answer is stored with; empty where it is not stored.
        may_begin: Indexes of messages with which the conversation may begin instead, behind its system message, where
            it is too long.
    """

    body: ChatBody
    echoed: bytes
    stored_items: bytes
    may_begin: tuple[int, ...]


def prepare(preprocessor: Preprocessor, body: ResponsesBody, history: bytes | memoryview) -> PreparedChat:
    """Return the conversation's prompt, settings and tools. Raises ApiError."""
    chat, echoed, stored_items, may_begin = translated(body, history)

    def prepared(chat: ChatBody) -> PreparedChat:
        return preprocessor.chat(chat, "responses", echoed, stored_items)

    max_model_len = preprocessor.limits.max_model_len
    if not may_begin or max_model_len is None:
        return prepared(chat)
    return _fitting(chat, may_begin, max_model_len, max_tokens_of(chat) or 1, prepared)


def _fitting(
    body: ChatBody,
    may_begin: Sequence[int],
    max_tokens: int,
    room: int,
    prepare: Callable[[ChatBody], PreparedChat],
) -> PreparedChat:
    """Prepare as much of a conversation as fits, cut at its beginning.

    Args:
        may_begin: Indexes of messages with which it may begin instead, behind its system message.
        max_tokens: Of prompt and answer.
        room: Tokens that are left to the answer.

    Raises:
        ApiError: Where nothing fits, of the shortest.
    """
    kept = body.messages[: may_begin[0]]

    def prepared(number: int) -> PreparedChat:
        return prepare(replace(body, messages=kept + body.messages[may_begin[number] :]))

    def fits(number: int) -> PreparedChat | None:
        try:
            found = prepared(number)
        except ApiError as error:
            if error.code == "context_length_exceeded":
                return None
            raise
        tokens = sum(prompt.num_tokens for prompt in found.prompts)
        return found if tokens + room <= max_tokens else None

    first = fits(0)
    if first is not None:
        return first
    low, high, best = 1, len(may_begin), None  # what is cut further is shorter
    while low < high:
        middle = (low + high) // 2
        found = fits(middle)
        if found is None:
            low = middle + 1
        else:
            high, best = middle, found
    return best or prepared(len(may_begin) - 1)


def translated(body: ResponsesBody, history: bytes | memoryview = b"") -> Translated:
    """Translate a body.

    Args:
        history: Items before the input, as JSON; empty where no responses are stored.

    Raises:
        ApiError: 400.
    """
    items = items_of(body.input)
    before = _stored_items(body, history, len(items))
    _check(body)
    is_stored = bool(history) and body.store is not False
    messages = messages_of(items, body.instructions, before)
    tools = body.tools or []
    for number, tool in enumerate(tools):
        _check_tool(tool, f"tools[{number}]")
    chat = ChatBody(
        messages=messages,
        tools=[_written(one) for one in tools] or None,
        tool_choice=_tool_choice(body.tool_choice),
        reasoning_effort=None if body.reasoning is None else body.reasoning.effort,
        response_format=_format(body),
        logprobs=LOGPROBS in (body.include or ()) or None,
        max_completion_tokens=body.max_output_tokens,
        **{name: getattr(body, name) for name in SAME_IN_CHAT},
    )
    cuts = body.truncation == "auto"
    return Translated(
        chat,
        encode_echoed(_echoed(body, tools, is_stored)),
        _encode([*before, *written(items)]) if is_stored else b"",
        tuple(number for number, one in enumerate(messages) if one.role == "user") if cuts else (),
    )


def _stored_items(body: ResponsesBody, history: bytes | memoryview, num_items: int) -> list[Raw]:
    """Return the items before the input. Raises ApiError where there are too many, or where none are stored."""
    if history:
        before = _RAW_ITEMS.decode(history)
        if len(before) + num_items > MAX_MESSAGES:
            raise invalid(
                f"The conversation has {len(before) + num_items:,} items with those of the previous response, and "
                f"{MAX_MESSAGES:,} are allowed; begin a new one.",
                "previous_response_id",
            )
        return before
    for name in ("previous_response_id", "store"):
        if value := getattr(body, name):
            shown = shortened(value) if isinstance(value, str) else "true"
            raise invalid(
                f"{name} is {shown}, but responses are stored by a server with --store-responses only, and never of a "
                "job's lines; send the whole conversation as input, with the items of earlier answers.",
                name,
                "unsupported_value",
            )
    return []


# -- what is not served -----------------------------------------------------------------------------------------------


def _check(body: ResponsesBody) -> None:
    for one in body.include or ():
        if one not in _INCLUDES:
            raise invalid(
                f"include names {shortened(one)!r}, which no answer of this server has; known are "
                f"{' and '.join(_INCLUDES)}.",
                "include",
                "unsupported_value",
            )
    if body.top_logprobs and LOGPROBS not in (body.include or ()):
        raise invalid(
            f"top_logprobs is {body.top_logprobs}, but log-probabilities are not included; add {LOGPROBS!r} to "
            "include.",
            "top_logprobs",
        )
    if body.reasoning is not None:
        _check_reasoning(body.reasoning)


def _check_reasoning(asked: ReasoningField) -> None:
    for name in ("summary", "generate_summary"):
        if getattr(asked, name) in ("concise", "detailed"):
            raise invalid(
                f"reasoning.{name} {getattr(asked, name)!r} is not supported: reasoning is returned unsummarized; give "
                "'auto', or leave it out.",
                f"reasoning.{name}",
                "unsupported_value",
            )
    if asked.context not in (None, "auto"):
        raise invalid(
            f"reasoning.context {asked.context!r} is not supported: the chat template decides which reasoning is "
            "included; give 'auto', or leave it out.",
            "reasoning.context",
            "unsupported_value",
        )
    if asked.mode not in (None, "standard"):
        raise invalid(
            f"reasoning.mode is {shortened(asked.mode)!r}, but there is only 'standard'; leave it out.",
            "reasoning.mode",
            "unsupported_value",
        )


# -- tools ------------------------------------------------------------------------------------------------------------


def _check_tool(tool: FunctionTool, path: str) -> None:
    check_offered(path, tool.defer_loading, tool.allowed_callers)
    if tool.output_schema:
        raise invalid(
            f"{path}.output_schema is given, which no chat template shows to the model; put it into the description.",
            f"{path}.output_schema",
        )
    if tool.async_:
        raise invalid(
            f"{path}.async is true, but an answer ends with its calls; send what came of them in the next.",
            f"{path}.async",
        )


def _written(tool: FunctionTool) -> ToolSpec:
    function = FunctionSpec(
        name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
    )
    return ToolSpec(type="function", function=function)


def _tool_choice(asked: ToolChoiceField | None) -> ToolChoiceSpec | None:
    match asked:
        case NamedFunction():
            return NamedTool(FunctionName(asked.name))
        case AllowedFunctions():
            allowed = [AllowedTool(FunctionName(one.name)) for one in asked.tools]
            return AllowedTools(AllowedToolsInside(asked.mode, allowed))
        case _:
            return asked


# -- the form of the answer -------------------------------------------------------------------------------------------


def _format(body: ResponsesBody) -> ResponseFormat | None:
    asked = None if body.text is None else body.text.format
    match asked:
        case ObjectFormat():
            return JsonObjectFormat()
        case SchemaFormat():
            inside = JsonSchemaInside(
                name=asked.name, description=asked.description, schema_=asked.schema_, strict=asked.strict
            )
            return JsonSchemaFormat(inside)
        case _:
            return None


# -- what the answer repeats ------------------------------------------------------------------------------------------


def _echoed(body: ResponsesBody, tools: list[FunctionTool], stores: bool) -> EchoedFields:
    text, reasoning = body.text, body.reasoning
    given = {name: value for name in _SAME if (value := getattr(body, name)) is not None}
    given["store"] = stores
    if text is not None:
        plain = EchoedText()
        shown = plain.format if text.format is None else Raw(_encode(text.format))
        given["text"] = EchoedText(shown, text.verbosity or plain.verbosity)
    if reasoning is not None:
        given["reasoning"] = EchoedReasoning(reasoning.effort, reasoning.summary or reasoning.generate_summary)
    if body.tool_choice is not None:
        given["tool_choice"] = Raw(_encode(body.tool_choice))
    if tools:
        given["tools"] = Raw(_encode([_shown(one) for one in tools]))
    return EchoedFields(**given)


def _shown(tool: FunctionTool) -> dict[str, object]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": bool(tool.strict),
    }
