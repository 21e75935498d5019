"""A conversation: the body that all chat APIs become, its messages as chat templates read them, and its token ids.

Lengths of texts are checked before they are tokenized: megabytes would take seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, UnsetType

from inflight.counted import shortened
from inflight.frontend.parsers.generic import generic_messages
from inflight.frontend.prompts import PromptEncoder, PromptError
from inflight.server.common.fields import (
    MAX_MESSAGES,
    ChatSettings,
    Count,
    Name,
    ReasoningEffort,
    TemplateVariables,
    Text,
)
from inflight.server.common.prepared import Limits
from inflight.server.common.tools import CalledFunction, CalledTool, FunctionChoice, Functions, ToolChoiceSpec, Tools
from inflight.server.errors import clients_fault, invalid
from inflight.text import ChatTemplateError, Conversation, RenderedChat, TemplateVariableError, Tokenizer


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


# -- messages as templates read them -----------------------------------------------------------------------------------


def template_messages(messages: list[Message], arguments_as_text: bool) -> list[dict[str, Any]]:
    """Return the messages as the template reads them. arguments_as_text: of tool calls; else they are objects.

    Raises:
        ApiError: 400.
    """
    return [_plain(one, arguments_as_text, f"messages[{number}]") for number, one in enumerate(messages)]


def _plain(message: Message, as_text: bool, place: str) -> dict[str, Any]:
    calls = message.tool_calls
    if message.function_call is not None and not calls:
        calls = [CalledTool(message.function_call)]
    plain = {name: value for name, value in msgspec.to_builtins(message).items() if value is not None}
    plain.pop("function_call", None)
    if isinstance(message.content, list):
        plain["content"] = [{"type": "text", "text": _text_of(one)} for one in message.content]
    reasoning, refusal = plain.pop("reasoning", None), plain.pop("refusal", None)
    if message.role == "assistant" and not message.content:
        plain["content"] = refusal or ""  # templates look into it, whatever else the answer had
    if reasoning is not None:
        plain.setdefault("reasoning_content", reasoning)
    if calls is not None:
        plain["tool_calls"] = [_call(one, as_text, f"{place}.tool_calls[{number}]") for number, one in enumerate(calls)]
    plain["role"] = _ROLES.get(message.role, message.role)
    return plain


def _text_of(part: ContentPart) -> str:
    return part.refusal if isinstance(part, RefusalPart) else part.text


def _call(call: CalledTool, as_text: bool, place: str) -> dict[str, Any]:
    function = call.function
    if not isinstance(call.custom, UnsetType):  # templates know functions alone: its text is the one argument
        function = CalledFunction(call.custom.name, {"input": call.custom.input})
    if function is None:
        raise invalid(f"{place} has no {call.type}; give one.", f"{place}.{call.type}", "missing_field")
    arguments = arguments_of(function, as_text, f"{place}.function.arguments")
    plain: dict[str, Any] = {"type": "function", "function": {"name": function.name, "arguments": arguments}}
    return plain if call.id is None else {"id": call.id, **plain}


_ROLES = {"developer": "system", "function": "tool"}  # what templates call them


def arguments_of(called: CalledFunction, as_text: bool, place: str) -> Any:
    """Return a call's arguments as the template takes them: JSON text, or the object. Raises ApiError."""
    given = called.arguments
    if as_text:
        return given if isinstance(given, str) else msgspec.json.encode(given or {}).decode()
    if not isinstance(given, str):
        return given or {}
    if not given.strip():
        return {}
    try:
        return msgspec.json.decode(given, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise invalid(
            f"{place} is not a JSON object ({shortened(str(error))}), which this model's chat template needs; send the "
            "arguments of the call as valid JSON.",
            place,
            "invalid_value",
        ) from None


# -- token ids ---------------------------------------------------------------------------------------------------------

LONG_FOR_ITS_TOKENS = 6  # characters a token: English has four, and text beyond this seldom fits
COUNTED = 1 << 16  # characters of a text that are counted at once
CUT_TOKENS = 8  # more than a cut between two words can add
_THINKING = ("enable_thinking", "thinking")  # variables of templates: whether the model is to think


class Prompts:
    """Makes prompts, of conversations itself; of other inputs, those who read them.

    Attributes:
        encoder: Of the model. limits: Of bodies.
    """

    def __init__(
        self, encoder: PromptEncoder, tokenizer: Tokenizer | None, limits: Limits, generic_tools: bool = False
    ):
        """Make the prompts of one model. generic_tools: messages show tools in the generic form, not the template."""
        self.encoder, self._tokenizer, self.limits = encoder, tokenizer, limits
        self._generic_tools = generic_tools

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer. Raises ApiError where it has none."""
        if self._tokenizer is None:
            raise invalid("This model has no tokenizer; use token ids.", "model", "unsupported_task")
        return self._tokenizer

    @property
    def max_token_chars(self) -> int | None:
        """Return the characters that a token may stand for; None: unknown."""
        return None if self._tokenizer is None else self._tokenizer.longest_token

    @property
    def shows_tools(self) -> bool:
        return self._generic_tools or self.encoder.shows_tools

    def rendered(self, body: ChatBody, tools: tuple[dict[str, Any], ...]) -> RenderedChat:
        """Return what the model's template makes of the messages."""
        continues = bool(body.continue_final_message)
        if continues and body.add_generation_prompt:
            raise invalid(
                "continue_final_message and add_generation_prompt are both true, but a message is either continued or "
                "begun; set one.",
                "continue_final_message",
            )
        begins = not continues if body.add_generation_prompt is None else body.add_generation_prompt
        try:
            as_text = self._generic_tools or self.encoder.takes_arguments_as_text(bool(tools))
            messages: Sequence[dict[str, Any]] = template_messages(body.messages, as_text)
            if self._generic_tools:
                messages, tools = generic_messages(messages, tools, self.encoder.shows_system), ()
            conversation = Conversation(
                messages,
                self._variables(body),
                tools or None,
                add_generation_prompt=begins,
                continue_final_message=continues,
            )
            return self.encoder.render_chat(conversation)
        except TemplateVariableError as error:
            raise invalid(str(error), "chat_template_kwargs") from None
        except (PromptError, ChatTemplateError) as error:
            raise invalid(str(error), "messages") from None

    def of_chat(self, body: ChatBody, rendered: RenderedChat) -> tuple[int, ...]:
        """Return the tokens of what the model's template has made of the messages."""
        truncated = body.truncate_prompt_tokens
        self.check_length(rendered.text, "messages", truncated)
        return self.truncated(self.of_rendered(rendered, bool(body.add_special_tokens)), truncated)

    def of_rendered(self, rendered: RenderedChat, added: bool = False) -> tuple[int, ...]:
        """Return all tokens, as many as there are. added: with those that the tokenizer puts around a text."""
        tokens = clients_fault(lambda: self.encoder.chat_tokens(rendered), "messages")
        before, after = self.around() if added else ((), ())
        return (*before, *tokens, *after)

    def _variables(self, body: ChatBody) -> dict[str, Any]:
        """Return the template's variables. Some templates read an effort of reasoning; others have a switch alone."""
        ours: dict[str, Any] = {}
        effort, thinks, reads = body.reasoning_effort, body.enable_thinking, self.encoder.template_reads
        if thinks is None and effort is not None:
            thinks = effort not in ("none", "minimal")
        if thinks is not None:
            ours = {name: thinks for name in _THINKING if reads(name)}
        if effort is not None and reads("reasoning_effort"):
            ours["reasoning_effort"] = effort
        return {**ours, **(body.chat_template_kwargs or {})}

    def around(self) -> tuple[Sequence[int], Sequence[int]]:
        """Return the special tokens that the tokenizer puts before and after a text of its own."""
        tokenizer = self.tokenizer
        alone, whole = tokenizer.encode("a", add_special_tokens=False), tokenizer.encode("a")
        begin = next(n for n in range(len(whole)) if whole[n : n + len(alone)] == alone)
        return whole[:begin], whole[begin + len(alone) :]

    def truncated(self, tokens: tuple[int, ...], most: int | None) -> tuple[int, ...]:
        """Return the last `most` tokens; None: all; -1: as many as the model takes. Raises ApiError."""
        if most is None:
            return tokens
        most = (self.limits.max_model_len or len(tokens)) if most < 0 else most
        if most == 0:
            raise invalid(
                "truncate_prompt_tokens is 0, which leaves no prompt; give 1 or more.", "truncate_prompt_tokens"
            )
        return tokens[-most:]

    def text(self, token_ids: tuple[int, ...]) -> str:
        """Return token ids as text, for echo. Raises ApiError."""
        if self._tokenizer is None:
            raise invalid("echo needs text, but this model has no tokenizer; leave it out.", "echo")
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)

    def check_length(self, text: str, field: str, truncated: int | None) -> None:
        """Refuse text that cannot fit, however it is tokenized: megabytes would take seconds. Raises ApiError."""
        length = self.limits.max_model_len
        if self._tokenizer is None or length is None or truncated is not None or len(text) <= length:
            return
        longest = self._tokenizer.longest_token
        if longest is not None and len(text) > (most := length * longest):
            raise invalid(
                f"This model's maximum context length is {length} tokens, and the prompt is too long: it has "
                f"{len(text):,} characters, and a token has at most {longest}; shorten it below {most:,} characters.",
                field,
                "context_length_exceeded",
            )
        if len(text) > length * LONG_FOR_ITS_TOKENS:
            self._check_in_parts(self._tokenizer, text, length, field)

    def _check_in_parts(self, tokenizer: Tokenizer, text: str, length: int, field: str) -> None:
        """Count text that hardly fits part by part until it does not: tokenized at once, it would need memory for every
        token. Raises ApiError."""
        tokens = start = 0
        while start < len(text):
            end = text.find(" ", start + COUNTED) if len(text) - start > 2 * COUNTED else len(text)
            end = len(text) if end < 0 or end > start + 2 * COUNTED else end
            tokens += len(clients_fault(lambda part=text[start:end]: tokenizer.encode(part, False), field))  # type: ignore[misc]
            start, tokens = end, tokens - CUT_TOKENS
            if tokens > length:
                raise invalid(
                    f"This model's maximum context length is {length} tokens, and the prompt is too long: the first "
                    f"{end} of its {len(text)} characters are {tokens} tokens or more; shorten it.",
                    field,
                    "context_length_exceeded",
                )
