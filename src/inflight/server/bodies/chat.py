"""The body of /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from inflight.server.bodies.common import COMMON_HINTS, COMMON_NEUTRAL, GenerationSettings
from inflight.server.bodies.decoding import BodyDecoder
from inflight.server.bodies.types import (
    MOST_MESSAGES,
    Count,
    JsonObject,
    Name,
    TemplateVariables,
    Text,
    TopLogprobs,
)


class TextPart(Struct):
    """A part of a message's content. What else clients write into it (cache_control) changes no token."""

    type: Literal["text"]
    text: Text


class Message(Struct, kw_only=True):
    """One message. What a template makes of name, tool_calls and the like is the model's; fields that no template
    reads (annotations, refusal, …) come back with clients' histories and are passed over."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | Annotated[list[TextPart], Meta(max_length=MOST_MESSAGES)] | None = None
    name: Name | None = None
    tool_calls: Annotated[list[JsonObject], Meta(max_length=1024)] | None = None
    tool_call_id: Name | None = None
    reasoning_content: Text | None = None


Messages = Annotated[list[Message], Meta(min_length=1, max_length=MOST_MESSAGES)]


class ResponseFormat(Struct, forbid_unknown_fields=True):
    """Text; grammars and JSON schemas are not enforced."""

    type: Literal["text"]


class ChatSettings(GenerationSettings, kw_only=True, forbid_unknown_fields=True):
    max_completion_tokens: Count | UnsetType | None = UNSET
    max_tokens: Count | UnsetType | None = UNSET
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    response_format: ResponseFormat | None = None
    safety_identifier: Name | None = None

    @property
    def named_user(self) -> str | None:
        return self.safety_identifier if self.user is None else self.user


class ChatBody(ChatSettings, kw_only=True, forbid_unknown_fields=True):
    messages: Messages
    chat_template_kwargs: TemplateVariables | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


_ONLY_TEXT = "only text is served."
_NO_TOOLS = "tools are not served; describe them in a message if the model knows how to use them."
CHAT = BodyDecoder(
    ChatBody,
    neutral={
        **COMMON_NEUTRAL,
        "tools": (([],), _NO_TOOLS),
        "tool_choice": (("none", "auto"), _NO_TOOLS),
        "functions": (([],), _NO_TOOLS),
        "function_call": (("none", "auto"), _NO_TOOLS),
        "modalities": ((["text"],), _ONLY_TEXT),
        "audio": ((), _ONLY_TEXT),
        "prediction": ((), "predicted outputs are not used."),
        "web_search_options": ((), "there is no search."),
        "echo": ((False,), "a chat's answer does not repeat its prompt; /v1/completions has echo."),
        "best_of": ((1,), "use n, or best_of of /v1/completions."),
        "documents": (([],), "give them as chat_template_kwargs, if the model's template reads them."),
        "chat_template": ((), "the model's own template is used."),
        "chat_template_content_format": (("auto",), "the form is read from the template."),
    },
    hints=COMMON_HINTS | {"parallel_tool_calls", "reasoning_effort", "verbosity"},
)
