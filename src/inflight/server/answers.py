"""Shapes of answers, as the OpenAPI document shows them and tests hold them to. Answers themselves are plain objects:
building them through models would cost more than making the tokens of a small model."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, RootModel

from inflight.core.types.timings import Timings
from inflight.server.call import EndpointName


class ErrorInside(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None
    retry_after_s: float | None = None


class Error(BaseModel):
    """Every error, in answers and in streams."""

    error: ErrorInside


class PromptTokensDetails(BaseModel):
    cached_tokens: int


class CompletionTokensDetails(BaseModel):
    reasoning_tokens: int


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | None = None


PromptLogprobs = list[dict[str, dict[str, Any]] | None]


class CompletionLogprobs(BaseModel):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    stop_reason: str | int | None = None
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None


class Completion(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    service_tier: str
    choices: list[CompletionChoice]
    usage: Usage
    timings: Timings | list[Timings] | None = None


class CalledFunction(BaseModel):
    """arguments: JSON text, as the model wrote it."""

    name: str
    arguments: str


class ToolCall(BaseModel):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(BaseModel):
    """content: null where tools are called and nothing is said. reasoning: the same as reasoning_content."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: CalledFunction | None = None


class ChatChoice(BaseModel):
    index: int
    message: ChatMessage
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"] | None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    service_tier: str
    choices: list[ChatChoice]
    usage: Usage
    timings: Timings | None = None
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None


class CachedTokens(BaseModel):
    cached_tokens: int
    cache_write_tokens: int


class ReasoningTokens(BaseModel):
    reasoning_tokens: int


class ResponseUsage(BaseModel):
    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class ResponseOutputItem(BaseModel):
    """What else it has depends on its type."""

    model_config = ConfigDict(extra="allow")

    id: str
    type: Literal["message", "function_call", "reasoning"]
    status: Literal["completed", "incomplete"]


class IncompleteDetails(BaseModel):
    reason: Literal["max_output_tokens"]


class Response(BaseModel):
    """Repeats the body's instructions, tools, metadata and the like, too."""

    model_config = ConfigDict(extra="allow")

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


class MessageContent(BaseModel):
    """What else it has depends on its type."""

    model_config = ConfigDict(extra="allow")

    type: Literal["text", "thinking", "tool_use"]


class ThinkingTokens(BaseModel):
    thinking_tokens: int


class MessageUsage(BaseModel):
    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokens
    service_tier: Literal["standard", "batch"]


class Message(BaseModel):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[MessageContent]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]
    stop_sequence: str | None
    usage: MessageUsage


class CountedTokens(BaseModel):
    input_tokens: int


class MessagesErrorDetails(BaseModel):
    error_code: str | None = None
    param: str | None = None


class MessagesErrorInside(BaseModel):
    type: str
    message: str
    details: MessagesErrorDetails | None = None


class MessagesError(BaseModel):
    """Every error of /v1/messages, in answers and in streams."""

    type: Literal["error"]
    error: MessagesErrorInside
    request_id: str | None


class Capabilities(BaseModel):
    """What a model's answers may be asked to be."""

    completions: bool
    chat: bool
    tools: bool
    reasoning: bool
    structured_output: bool
    embeddings: bool
    scores: bool
    classes: bool


class Residency(BaseModel):
    """Of one of several models: what it takes, or would take; calls that it has, and that wait for it."""

    memory_bytes: int
    pinned: bool
    calls: int
    waiting: int
    seconds_until_loaded: float | None
    error: str | None


class ModelLane(BaseModel):
    """background: it has what others leave. takes_priority: a request may name one there. `service_tier: "flex"` asks
    for the lane batch; the header x-llm-d-inference-objective for any."""

    name: str
    background: bool
    takes_priority: bool


class Model(BaseModel):
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
    residency: Residency | None = None


class ModelState(Residency):
    success: bool
    model: str
    state: Literal["unloaded", "loading", "loaded", "draining", "unloading", "failed"]


class Models(BaseModel):
    object: Literal["list"]
    data: list[Model]


class Tokenized(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class RenderedRequest(BaseModel):
    """sampling_params: by vLLM's names; max_tokens: what the context leaves of those asked for."""

    request_id: str
    token_ids: list[int]
    sampling_params: dict[str, Any]
    model: str
    stream: bool
    stream_options: dict[str, Any] | None
    cache_salt: str | None
    priority: int


class RenderedRequests(RootModel[list[RenderedRequest]]):
    """One for each prompt."""


class TokenizerInfo(BaseModel):
    """And whatever other special tokens the model's settings name."""

    tokenizer_class: str
    vocab_size: int
    model_max_length: int
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None


class Detokenized(BaseModel):
    prompt: str


class TextUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class Embedding(BaseModel):
    """embedding: numbers, or in base64 as float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class TextAnswer(BaseModel):
    """About whole texts."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    usage: TextUsage
    timings: Timings | list[Timings] | None = None


class Embeddings(TextAnswer):
    data: list[Embedding]


class PairScore(BaseModel):
    object: Literal["score"]
    index: int
    score: float


class Scores(TextAnswer):
    data: list[PairScore]


class TextClass(BaseModel):
    """probs: of all labels, in their order."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class Classes(TextAnswer):
    data: list[TextClass]


class RankedDocumentText(BaseModel):
    text: str


class RankedDocument(BaseModel):
    index: int
    document: RankedDocumentText | None = None
    relevance_score: float


class Ranking(BaseModel):
    """The best first."""

    id: str
    model: str
    usage: TextUsage
    results: list[RankedDocument]
    timings: Timings | list[Timings] | None = None


class Vectors(RootModel[list[list[float]]]):
    """One for each text."""


class RankedText(BaseModel):
    index: int
    score: float
    text: str | None = None


class RankedTexts(RootModel[list[RankedText]]):
    """The best first."""


ANSWERS: dict[EndpointName, type[BaseModel]] = {
    "completion": Completion,
    "chat": ChatCompletion,
    "completion_render": RenderedRequests,
    "chat_render": RenderedRequest,
    "responses": Response,
    "messages": Message,
    "count_tokens": CountedTokens,
    "tokenize": Tokenized,
    "detokenize": Detokenized,
    "embeddings": Embeddings,
    "score": Scores,
    "score_v1": Scores,
    "rerank": Ranking,
    "rerank_v2": Ranking,
    "classify": Classes,
    "embed": Vectors,
    "text_rerank": RankedTexts,
}


class Health(BaseModel):
    """status: loading, ready, draining or failed; detail says what is being done, or why."""

    status: str
    detail: str


class Version(BaseModel):
    version: str
