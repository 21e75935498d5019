"""The body of /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from inflight.server.bodies.common import Body, GenerationBody, Refused


class TextPart(Body):
    type: Literal["text"]
    text: str


class Message(Body):
    """One message. What a template makes of name, tool_calls and tool_call_id is the model's."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    refused: ClassVar[Refused] = {
        "refusal": ((), "the models here do not refuse by themselves; leave it out."),
        "audio": ((), "only text is served."),
        "function_call": ((), "use tool_calls."),
        "annotations": (([],), "only text is served."),
    }


class ResponseFormat(Body):
    """Text; grammars and JSON schemas are not enforced."""

    type: Literal["text"]


_ONLY_TEXT = "only text is served."
_NO_TOOLS = "tools are not served; describe them in a message if the model knows how to use them."


class ChatBody(GenerationBody):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    max_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    safety_identifier: str | None = None
    refused: ClassVar[Refused] = {
        "tools": (([],), _NO_TOOLS),
        "tool_choice": (("none", "auto"), _NO_TOOLS),
        "parallel_tool_calls": ((True, False), _NO_TOOLS),
        "functions": (([],), _NO_TOOLS),
        "function_call": (("none", "auto"), _NO_TOOLS),
        "modalities": ((["text"],), _ONLY_TEXT),
        "audio": ((), _ONLY_TEXT),
        "prediction": ((), "predicted outputs are not used."),
        "web_search_options": ((), "there is no search."),
        "store": ((False,), "nothing is stored."),
        "metadata": (({},), "nothing is stored, so that it would be lost."),
        "reasoning_effort": ((), "the models here have no such control; chat_template_kwargs may have one."),
        "verbosity": ((), "the models here have no such control; use max_completion_tokens."),
        "prompt_cache_key": ((), "cached prefixes are found by themselves; use cache_salt to keep them apart."),
        "prompt_cache_retention": ((), "cached prefixes are kept while there is room."),
    }

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def named_user(self) -> str | None:
        return self.safety_identifier if self.user is None else self.user
