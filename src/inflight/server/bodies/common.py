"""What completions and chat share: the fields about sampling, scheduling and streaming, and others that pass.

Knows names and types; `SamplingParams` knows what values mean, `decoding` how a body becomes one of these. A field
that is not here is unknown, and a 400 that names it, unless leaving it out changes no token: then it is a hint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from inflight.server.bodies.kv_transfer import KVTransferParams
from inflight.server.bodies.structured import (
    Choices,
    ResponseFormat,
    Schema,
    StructuredOutputs,
)
from inflight.server.bodies.types import (
    Count,
    FewTokenIds,
    Int32,
    LogitBias,
    Milliseconds,
    Name,
    Positive,
    RepetitionPenalty,
    Samples,
    Seed,
    Stops,
    Temperature,
    Text,
    TokenIds,
    TopLogprobs,
    Words,
)

Neutral = Mapping[str, tuple[tuple[Any, ...], str]]  # field → values that mean "not used", and why others are refused


class StreamOptions(Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None  # a hint: frames carry nothing but the answer


class Slo(Struct, forbid_unknown_fields=True):
    """Targets of one request, in milliseconds."""

    ttft_ms: Milliseconds | None = None
    itl_ms: Milliseconds | None = None


class CallSettings(Struct, kw_only=True, forbid_unknown_fields=True):
    """What any call of the engine may say of itself: whom it is for, and when it is to be served. null means "not set",
    everywhere."""

    model: Name | None = None
    user: Name | None = None
    service_tier: Literal["auto", "default", "priority", "fast", "flex", "scale"] | None = None
    priority: Int32 | None = None
    slo: Slo | None = None
    cache_salt: Name | None = None
    timings: bool | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, lt=2**31)] | None = None
    add_special_tokens: bool | None = None
    request_id: Annotated[str, Meta(max_length=128, pattern="^[A-Za-z0-9_.:-]*$")] | None = None

    @property
    def named_user(self) -> str | None:
        """Whom the body says that it is for."""
        return self.user

    @property
    def named_session(self) -> str:
        """Of which conversation the body says that it is, or with which it shares cached prompts; "": nothing."""
        return ""


class GenerationSettings(CallSettings, kw_only=True, forbid_unknown_fields=True):
    """Fields of a call beside its prompt."""

    session_id: Name | None = None
    prompt_cache_key: Name | None = None
    n: Samples | None = None
    temperature: Temperature | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    repetition_penalty: RepetitionPenalty | None = None
    logit_bias: LogitBias | None = None
    allowed_token_ids: TokenIds | None = None
    bad_words: Words | None = None
    min_tokens: Count | None = None
    stop: Stops | None = None
    stop_token_ids: FewTokenIds | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    seed: Seed | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    output_tokens: Positive | None = None
    prompt_logprobs: TopLogprobs | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: Text | None = None
    guided_choice: Choices | None = None
    guided_grammar: Text | None = None
    kv_transfer_params: KVTransferParams | None = None

    @property
    def named_session(self) -> str:
        return self.session_id or self.prompt_cache_key or ""


# What vLLM's clients send with its defaults, and what routers add on the way.
COMMON_NEUTRAL: Neutral = {
    "length_penalty": ((1, 1.0), "there is no beam search."),
    "use_beam_search": ((False,), "there is no beam search."),
    "early_stopping": ((False,), "there is no beam search."),
    "spaces_between_special_tokens": ((True,), "text is as the tokenizer decodes it."),
    "detokenize": ((True,), "answers have text; return_token_ids adds the ids."),
    "return_hidden_states": ((False,), "hidden states are not returned."),
    "no_stop_trim": ((False,), "use include_stop_str_in_output."),
    "logits_processors": (([],), "no code is taken from clients."),
    "guided_whitespace_pattern": ((), "where JSON may have spaces is not to be chosen."),
    "prompt_embeds": ((), "prompts are text or token ids."),
    "lora_path": ((), "an adapter is named as the model."),
}
COMMON_HINTS = frozenset(
    {
        *("metadata", "store", "prompt_cache_key", "prompt_cache_retention", "safety_identifier"),
        *("kv_transfer_params", "vllm_xargs", "data_parallel_rank", "bootstrap_host", "bootstrap_port"),
        *("drop_params", "caching", "extra_body", "vllm_request_id", "guided_decoding_backend", "prompt_cache_options"),
        *("bootstrap_room", "rid", "session_id", "session_params", "return_cached_tokens_details"),
    }
)
