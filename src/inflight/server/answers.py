"""Shapes of answers, as the OpenAPI document shows them and tests hold them to. Answers themselves are plain objects:
building them through models would cost more than making the tokens of a small model."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from inflight.core.types.timings import Timings
from inflight.server.call import EndpointName


class ErrorInside(Struct, kw_only=True):
    message: str
    type: str
    param: str | None
    code: str | None
    retry_after_s: float | UnsetType = UNSET


class Error(Struct, kw_only=True):
    """Every error, in answers and in streams."""

    error: ErrorInside


class PromptTokensDetails(Struct, kw_only=True):
    cached_tokens: int


class CompletionTokensDetails(Struct, kw_only=True):
    reasoning_tokens: int


class Usage(Struct, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


PromptLogprobs = list[dict[str, dict[str, Any]] | None]


class CompletionLogprobs(Struct, kw_only=True):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Struct, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: str | int | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class Completion(Struct, kw_only=True):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    service_tier: str
    choices: list[CompletionChoice]
    usage: Usage
    timings: Timings | list[Timings] | UnsetType = UNSET


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
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET
    function_call: FunctionCall | UnsetType = UNSET


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
    timings: Timings | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


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
    """What else it has depends on its type."""

    id: str
    type: Literal["message", "function_call", "reasoning"]
    status: Literal["completed", "incomplete"]


class IncompleteDetails(Struct, kw_only=True):
    reason: Literal["max_output_tokens"]


class Response(Struct, kw_only=True):
    """Repeats the body's instructions, tools, metadata and the like, too."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["completed", "incomplete"]
    error: None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[ResponseOutputItem]
    service_tier: str
    usage: ResponseUsage


class MessageContent(Struct, kw_only=True):
    """What else it has depends on its type."""

    type: Literal["text", "thinking", "tool_use"]


class ThinkingTokens(Struct, kw_only=True):
    thinking_tokens: int


class MessageUsage(Struct, kw_only=True):
    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokens
    service_tier: Literal["standard", "batch"]


class MessagesAnswer(Struct, kw_only=True):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[MessageContent]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]
    stop_sequence: str | None
    usage: MessageUsage


class CountedTokens(Struct, kw_only=True):
    input_tokens: int


class MessagesErrorDetails(Struct, kw_only=True):
    error_code: str | UnsetType = UNSET
    param: str | UnsetType = UNSET


class MessagesErrorInside(Struct, kw_only=True):
    type: str
    message: str
    details: MessagesErrorDetails | UnsetType = UNSET


class MessagesError(Struct, kw_only=True):
    """Every error of /v1/messages, in answers and in streams."""

    type: Literal["error"]
    error: MessagesErrorInside
    request_id: str | None


class Capabilities(Struct, kw_only=True):
    """What a model's answers may be asked to be."""

    completions: bool
    chat: bool
    tools: bool
    reasoning: bool
    structured_output: bool
    embeddings: bool
    scores: bool
    classes: bool


class Residency(Struct, kw_only=True):
    """Of one of several models: what it takes, or would take; calls that it has, and that wait for it."""

    memory_bytes: int
    pinned: bool
    calls: int
    waiting: int
    seconds_until_loaded: float | None
    error: str | None


class ModelLane(Struct, kw_only=True):
    """background: it has what others leave. takes_priority: a request may name one there. `service_tier: "flex"` asks
    for the lane batch; the header x-llm-d-inference-objective for any."""

    name: str
    background: bool
    takes_priority: bool


class Model(Struct, kw_only=True):
    """max_model_len, capabilities, lanes: null where the model is not in memory."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int | None
    capabilities: Capabilities | None
    lanes: list[ModelLane] | None
    state: Literal["unloaded", "loading", "loaded", "draining", "unloading", "failed"]
    residency: Residency | UnsetType = UNSET


class ModelState(Residency, kw_only=True):
    success: bool
    model: str
    state: Literal["unloaded", "loading", "loaded", "draining", "unloading", "failed"]


class Models(Struct, kw_only=True):
    object: Literal["list"]
    data: list[Model]


class Tokenized(Struct, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class RenderedRequest(Struct, kw_only=True):
    """sampling_params: by vLLM's names; max_tokens: what the context leaves of those asked for."""

    request_id: str
    token_ids: list[int]
    sampling_params: dict[str, Any]
    model: str
    stream: bool
    stream_options: dict[str, Any] | None
    cache_salt: str | None
    priority: int


class TokenizerInfo(Struct, kw_only=True):
    """And whatever other special tokens the model's settings name."""

    tokenizer_class: str
    vocab_size: int
    model_max_length: int
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None


class Detokenized(Struct, kw_only=True):
    prompt: str


class TextUsage(Struct, kw_only=True):
    prompt_tokens: int
    total_tokens: int


class Embedding(Struct, kw_only=True):
    """embedding: numbers, or in base64 as float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class TextAnswer(Struct, kw_only=True):
    """About whole texts."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    usage: TextUsage
    timings: Timings | list[Timings] | UnsetType = UNSET


class Embeddings(TextAnswer, kw_only=True):
    data: list[Embedding]


class PairScore(Struct, kw_only=True):
    object: Literal["score"]
    index: int
    score: float


class Scores(TextAnswer, kw_only=True):
    data: list[PairScore]


class TextClass(Struct, kw_only=True):
    """probs: of all labels, in their order."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class Classes(TextAnswer, kw_only=True):
    data: list[TextClass]


class RankedDocumentText(Struct, kw_only=True):
    text: str


class RankedDocument(Struct, kw_only=True):
    index: int
    document: RankedDocumentText | UnsetType = UNSET
    relevance_score: float


class Ranking(Struct, kw_only=True):
    """The best first."""

    id: str
    model: str
    usage: TextUsage
    results: list[RankedDocument]
    timings: Timings | list[Timings] | UnsetType = UNSET


class RankedText(Struct, kw_only=True):
    index: int
    score: float
    text: str | UnsetType = UNSET


ANSWERS: dict[EndpointName, Any] = {
    "completion": Completion,
    "chat": ChatCompletion,
    "completion_render": list[RenderedRequest],
    "chat_render": RenderedRequest,
    "responses": Response,
    "messages": MessagesAnswer,
    "count_tokens": CountedTokens,
    "tokenize": Tokenized,
    "detokenize": Detokenized,
    "embeddings": Embeddings,
    "score": Scores,
    "score_v1": Scores,
    "rerank": Ranking,
    "rerank_v2": Ranking,
    "classify": Classes,
    "embed": list[list[float]],
    "text_rerank": list[RankedText],
}


class Health(Struct, kw_only=True):
    """status: loading, ready, draining or failed; detail says what is being done, or why."""

    status: str
    detail: str


class Version(Struct, kw_only=True):
    version: str
