"""The body of /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from inflight.server.bodies.common import COMMON_HINTS, COMMON_NEUTRAL, GenerationSettings
from inflight.server.bodies.decoding import BodyDecoder
from inflight.server.bodies.tools import CalledFunction, CalledTool, FunctionChoice, Functions, ToolChoiceSpec, Tools
from inflight.server.bodies.types import (
    MAX_MESSAGES,
    Count,
    Name,
    ReasoningEffort,
    TemplateVariables,
    Text,
    TopLogprobs,
)


class TextPart(Struct, tag_field="type", tag="text"):
    """A part of a message's content. What else clients write into it (cache_control) changes no token."""

    text: Text


class InputTextPart(TextPart, tag="input_text"):
    """The same by the name that /v1/responses has for it."""


class OutputTextPart(TextPart, tag="output_text"):
    """The same in an earlier answer of /v1/responses."""


class RefusalPart(Struct, tag_field="type", tag="refusal"):
    """The text by which an earlier answer declined."""

    refusal: Text


ContentPart = TextPart | InputTextPart | OutputTextPart | RefusalPart


class Message(Struct, kw_only=True):
    """One message. What a template makes of name, tool_calls and the like is the model's; fields that no template
    reads (annotations, …) come back with clients' histories and are passed over. refusal: the text of an earlier answer
    that declined, and has no content. function_call, and the role function: from before there were tools. reasoning:
    another name of reasoning_content. audio: an answer that was spoken, which is refused."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Text | Annotated[list[ContentPart], Meta(max_length=MAX_MESSAGES)] | None = None
    name: Name | None = None
    tool_calls: Annotated[list[CalledTool], Meta(max_length=1024)] | None = None
    tool_call_id: Name | None = None
    function_call: CalledFunction | None = None
    reasoning_content: Text | None = None
    reasoning: Text | None = None
    refusal: Text | None = None
    audio: None = None


Messages = Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]


class ChatSettings(GenerationSettings, kw_only=True, forbid_unknown_fields=True):
    max_completion_tokens: Count | UnsetType | None = UNSET
    max_tokens: Count | UnsetType | None = UNSET
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    include_reasoning: bool | None = None
    safety_identifier: Name | None = None

    @property
    def named_user(self) -> str | None:
        return self.safety_identifier if self.user is None else self.user


class ChatBody(ChatSettings, kw_only=True, forbid_unknown_fields=True):
    """enable_thinking: whether the model is to reason, where its template has a switch for that. thinking_token_budget:
    most tokens of the reasoning, which is ended then."""

    messages: Messages
    tools: Tools | None = None
    tool_choice: ToolChoiceSpec | None = None
    parallel_tool_calls: bool | None = None
    functions: Functions | None = None
    function_call: FunctionChoice | None = None
    reasoning_effort: ReasoningEffort | None = None
    enable_thinking: bool | None = None
    thinking_token_budget: Count | None = None
    chat_template_kwargs: TemplateVariables | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


_ONLY_TEXT = "only text is served."
CHAT = BodyDecoder(
    ChatBody,
    neutral={
        **COMMON_NEUTRAL,
        "modalities": ((["text"],), _ONLY_TEXT),
        "audio": ((), _ONLY_TEXT),
        "prediction": ((), "predicted outputs are not used."),
        "web_search_options": ((), "there is no search."),
        "moderation": ((), "nothing is moderated."),
        "echo": ((False,), "a chat's answer does not repeat its prompt; /v1/completions has echo."),
        "best_of": ((1,), "use n, or best_of of /v1/completions."),
        "documents": (([],), "give them as chat_template_kwargs, if the model's template reads them."),
        "chat_template": ((), "the model's own template is used."),
        "chat_template_content_format": (("auto",), "the form is read from the template."),
        # SGLang's, which vllm-router writes into every conversation that it passes on.
        "separate_reasoning": ((True,), "reasoning is never part of the content; include_reasoning leaves it out."),
        "stream_reasoning": ((True,), "reasoning is streamed as it comes; include_reasoning leaves it out."),
    },
    hints=COMMON_HINTS | {"verbosity"},
)
