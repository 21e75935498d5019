"""/v1/chat/completions: its schema, its translation into an engine request, and its answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from msgspec import UNSET, Struct, UnsetType

from inflight.core.types.timings import Timings
from inflight.frontend.answers import ToolCall as ParsedCall
from inflight.frontend.outputs import OutputCollector
from inflight.frontend.parsers.answer_parser import ContentDelta, ReasoningDelta, ToolCallDelta, joined_deltas
from inflight.server.common.answers import (
    Change,
    Choice,
    CompletionTokensDetails,
    OpenAISerializer,
    PromptLogprobs,
    TokenUsage,
    Usage,
)
from inflight.server.common.bodies import BodyDecoder
from inflight.server.common.conversation import ChatBody
from inflight.server.common.endpoint import Endpoint, RenderedRequest
from inflight.server.common.fields import COMMON_HINTS, COMMON_NEUTRAL
from inflight.server.common.logprobs import TokenNames, chat_logprobs, prompt_logprobs
from inflight.server.common.prepared import Call, PreparedChat

if TYPE_CHECKING:
    from inflight.server.preprocessing.worker import Preprocessor

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


def prepare(preprocessor: Preprocessor, body: ChatBody, history: bytes | memoryview) -> PreparedChat:
    """Return the conversation's prompt, settings and tools. Raises ApiError."""
    return preprocessor.chat(body)


# -- answers -----------------------------------------------------------------------------------------------------------


class FunctionCall(Struct, kw_only=True):
    """arguments: JSON text, as the model wrote it."""

    name: str
    arguments: str


class ToolCall(Struct, kw_only=True):
    id: str
    type: Literal["function"]
    function: FunctionCall


class ChatMessage(Struct, kw_only=True):
    """content: null where tools are called and nothing is said. reasoning: the same as reasoning_content."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    tool_calls: list[ToolCall] | UnsetType = UNSET
    function_call: FunctionCall | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET


class ChatChoice(Struct, kw_only=True):
    index: int
    message: ChatMessage
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"] | None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    service_tier: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    kv_transfer_params: dict[str, Any] | UnsetType = UNSET


class FunctionDelta(Struct, kw_only=True, gc=False):
    """arguments: the next part of the JSON text."""

    name: str | UnsetType = UNSET
    arguments: str


class ToolCallChunk(Struct, kw_only=True, gc=False):
    index: int
    id: str | UnsetType | None = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta


class ChatDelta(Struct, kw_only=True, gc=False):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    refusal: str | UnsetType | None = UNSET
    tool_calls: list[ToolCallChunk] | UnsetType = UNSET
    function_call: FunctionDelta | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET


class ChunkChoice(Struct, gc=False):
    """A choice of a frame."""

    index: int
    delta: ChatDelta
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None
    token_ids: list[int] | UnsetType = UNSET
    stop_reason: str | int | UnsetType | None = UNSET


class ChatSerializer(OpenAISerializer):
    answer, name, frame_name = ChatCompletion, "chat.completion", "chat.completion.chunk"

    def __init__(self, call: Call, collectors: Sequence[OutputCollector], names: TokenNames):
        super().__init__(call, collectors, names)
        self._calling: set[int] = set()  # choices that have called a tool

    def whole_choice(self, choice: Choice) -> ChatChoice:
        call, output, answer = self._call, choice.output, choice.answer
        assert answer is not None, "a conversation's answers are parsed"
        message = ChatMessage(role="assistant", content=answer.content, refusal=None)
        if answer.calls:
            message.content = answer.content or None
            self._add_calls(message, answer.calls)
        if answer.reasoning and call.include_reasoning:
            message.reasoning_content = message.reasoning = answer.reasoning
        shows_logprobs = call.logprobs is not None
        return ChatChoice(
            index=choice.index,
            message=message,
            logprobs=chat_logprobs(output.token_logprobs or (), self._names) if shows_logprobs else None,
            finish_reason=self._finish_reason(output.finish_reason, bool(answer.calls)),
            stop_reason=output.stop_reason,
            token_ids=output.token_ids if call.return_token_ids else UNSET,
        )

    def _add_calls(self, message: ChatMessage, calls: Sequence[ParsedCall]) -> None:
        functions = [FunctionCall(name=one.name, arguments=one.arguments) for one in calls]
        if self._call.old_functions:
            message.function_call = functions[0]
            return
        message.tool_calls = [
            ToolCall(id=one.call_id, type="function", function=function)
            for one, function in zip(calls, functions, strict=True)
        ]

    def extras(self) -> dict[str, Any]:
        """Return what chat shows of the prompt, beside its choices."""
        extras, collector = dict[str, Any](), self._collectors[0]
        if self._call.prompt_logprobs:
            extras["prompt_logprobs"] = prompt_logprobs(collector.prompt_scores, self._names)
        if self._call.return_token_ids:
            extras["prompt_token_ids"] = list(collector.request.prompt_token_ids)
        return extras

    def usage(self, usage: TokenUsage) -> Usage:
        shown = super().usage(usage)
        shown.completion_tokens_details = CompletionTokensDetails(reasoning_tokens=usage.reasoning_tokens)
        return shown

    def frame_choices(self, change: Change) -> tuple[list[ChunkChoice], list[ChunkChoice]]:
        first = []
        if change.begins:
            first.append(ChunkChoice(change.index, ChatDelta(role="assistant", content="", refusal=None)))
        call, deltas = self._call, self._deltas(change)
        shows_tokens = (call.logprobs is not None and change.logprobs) or call.return_token_ids
        if not deltas and (change.finish is not None or shows_tokens):
            deltas = [ChatDelta() if change.finish is not None else ChatDelta(content="")]
        if change.finish is not None and _calls(deltas[-1]):
            deltas.append(ChatDelta())  # clients' helpers take a call for ended at a reason that comes behind it
        choices = [ChunkChoice(change.index, delta) for delta in deltas]
        if choices:
            self._add_tokens(choices[-1], change)
        if change.finish is not None:
            choices[-1].finish_reason = self._finish_reason(change.finish.reason, change.index in self._calling)
            choices[-1].stop_reason = change.finish.stopped_by
        return first, choices

    def _add_tokens(self, choice: ChunkChoice, change: Change) -> None:
        """Show log-probabilities and ids with the last of the frames that a step's tokens make."""
        if self._call.logprobs is not None and change.logprobs:
            choice.logprobs = chat_logprobs(change.logprobs, self._names)
        if self._call.return_token_ids:
            choice.token_ids = change.token_ids

    def _deltas(self, change: Change) -> list[ChatDelta]:
        """Return OpenAI's deltas: neighbours of one kind are joined."""
        deltas: list[ChatDelta] = []
        shown = change.deltas
        if not self._call.include_reasoning:
            shown = [one for one in shown if not isinstance(one, ReasoningDelta)]
        for one in joined_deltas(shown):
            if isinstance(one, ToolCallDelta):
                self._calling.add(change.index)
                deltas.append(self._call_delta(one))
            elif isinstance(one, ContentDelta):
                deltas.append(ChatDelta(content=one.text))
            else:
                deltas.append(ChatDelta(reasoning_content=one.text, reasoning=one.text))
        return deltas

    def _call_delta(self, delta: ToolCallDelta) -> ChatDelta:
        function = FunctionDelta(arguments=delta.arguments)
        call = ToolCallChunk(index=delta.index, function=function)
        if delta.name is not None:
            function.name, call.id, call.type = delta.name, delta.call_id, "function"
        return ChatDelta(function_call=function) if self._call.old_functions else ChatDelta(tool_calls=[call])

    def _finish_reason(self, reason: str | None, calls: bool) -> Any:
        """Return the reason; a call that was cut off by its length ends with that."""
        if reason != "stop" or not calls:
            return reason
        return "function_call" if self._call.old_functions else "tool_calls"


def _calls(delta: ChatDelta) -> bool:
    return delta.tool_calls is not UNSET or delta.function_call is not UNSET


CHAT_ENDPOINT = Endpoint(
    name="chat",
    path="/v1/chat/completions",
    body=CHAT,
    prepare=prepare,
    result=ChatCompletion,
    serializer=ChatSerializer,
    prompt_field="messages",
    call_prefix="chatcmpl-",
    operation="chat",
    about="Answer a conversation.",
)
CHAT_RENDER = Endpoint(
    name="chat_render",
    path="/v1/chat/completions/render",
    body=CHAT,
    prepare=prepare,
    result=RenderedRequest,
    renders="chat",
    operation="chat_render",
    about="What /v1/chat/completions asks of the engine for such a body. vLLM's endpoint.",
)
