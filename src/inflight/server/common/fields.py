"""Fields that bodies of several APIs share: their types with bounds, structs of settings, tools and answer forms.

Every list and every text has a bound, so that checking a body costs no more than its bytes. A field that is in no
struct is unknown, unless it is neutral (one value of it means "not used") or a hint (it changes no token).
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from inflight.core.types.sampling import MAX_TEMPERATURE, MIN_REPETITION_PENALTY
from inflight.counted import MAX_MILLISECONDS

MAX_TEXT_CHARS = 1 << 24  # characters of a prompt or message; the limit of bodies is usually lower
MAX_TOKEN_IDS = 1 << 20  # of one prompt
MAX_MESSAGES = 4096
MAX_STOPS = 32
MAX_STOP_CHARS = 512

Text = Annotated[str, Meta(max_length=MAX_TEXT_CHARS)]
Name = Annotated[str, Meta(max_length=512)]
Int32 = Annotated[int, Meta(ge=-(2**31), lt=2**31)]
Count = Annotated[int, Meta(ge=0, lt=2**31)]
Positive = Annotated[int, Meta(ge=1, lt=2**31)]
Seed = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
TokenIds = Annotated[list[TokenId], Meta(max_length=MAX_TOKEN_IDS)]
Samples = Annotated[int, Meta(ge=1, le=1024)]
TopLogprobs = Annotated[int, Meta(ge=0, le=20)]
Temperature = Annotated[float, Meta(ge=0, le=MAX_TEMPERATURE)]
RepetitionPenalty = Annotated[float, Meta(ge=MIN_REPETITION_PENALTY, le=100)]
Milliseconds = Annotated[float, Meta(gt=0, le=MAX_MILLISECONDS)]
StopString = Annotated[str, Meta(max_length=MAX_STOP_CHARS)]
Stops = StopString | Annotated[list[StopString], Meta(max_length=MAX_STOPS)]
Words = Annotated[list[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(max_length=256)]
FewTokenIds = Annotated[list[TokenId], Meta(max_length=1024)]
LogitBias = Annotated[
    dict[Annotated[str, Meta(max_length=20)], Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=300)
]
TemplateVariables = Annotated[dict[Annotated[str, Meta(max_length=256)], Any], Meta(max_length=64)]
JsonObject = dict[str, Any]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Neutral = Mapping[str, tuple[tuple[Any, ...], str]]  # field → values that mean "not used", and why others are refused


# -- the form of an answer ---------------------------------------------------------------------------------------------

MAX_CHOICES = 4096

Schema = JsonObject | Text  # vLLM takes a schema as JSON text, too
Choices = Annotated[list[Annotated[str, Meta(max_length=1 << 16)]], Meta(min_length=1, max_length=MAX_CHOICES)]


class TextFormat(Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    """Any text."""


class JsonObjectFormat(Struct, tag_field="type", tag="json_object", forbid_unknown_fields=True):
    """A JSON object of any form."""


class JsonSchemaInside(Struct, kw_only=True, forbid_unknown_fields=True):
    """strict: kept in either way; a schema that cannot be kept is refused."""

    name: Name | None = None
    description: Text | None = None
    schema_: JsonObject | UnsetType = field(default=UNSET, name="schema")
    strict: bool | None = None


class JsonSchemaFormat(Struct, tag_field="type", tag="json_schema", forbid_unknown_fields=True):
    json_schema: JsonSchemaInside


class StructuralTagFormat(Struct, tag_field="type", tag="structural_tag", forbid_unknown_fields=True):
    """In vLLM's form: `structures` and `triggers`, or a `format`."""

    structures: Annotated[list[JsonObject], Meta(max_length=1024)] | None = None
    triggers: Annotated[list[Annotated[str, Meta(max_length=512)]], Meta(max_length=1024)] | None = None
    format: JsonObject | None = None


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat | StructuralTagFormat


class StructuredOutputs(Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's; one of the first six. A choice of implementation is none here, so that others pass as "not used"."""

    json: Schema | None = None
    regex: Text | None = None
    choice: Choices | None = None
    grammar: Text | None = None
    json_object: bool | None = None
    structural_tag: Text | None = None
    disable_fallback: bool | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: Text | None = None


FORM_FIELDS = (
    *("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
)


# -- calls -------------------------------------------------------------------------------------------------------------

_Short = Annotated[str, Meta(max_length=256)]
_Blocks = Annotated[list[Any], Meta(max_length=MAX_TOKEN_IDS)]  # numbers, or lists of them, as the other engine has it


class KVTransferParams(Struct, omit_defaults=False, kw_only=True):
    """do_remote_decode: another engine goes on with the prompt; do_remote_prefill: another has computed it, which
    the others name. remote_block_ids: of the prompt's blocks there; they are asked for by their content here. Fields
    that are not here are passed over."""

    do_remote_decode: bool | None = None
    do_remote_prefill: bool | None = None
    remote_engine_id: _Short | None = None
    remote_block_ids: _Blocks | None = None
    remote_host: _Short | None = None
    remote_port: Annotated[int, Meta(ge=0, lt=65536)] | None = None
    remote_request_id: _Short | None = None
    tp_size: Annotated[int, Meta(ge=0, lt=2**31)] | None = None


class StreamOptions(Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None  # a hint: frames carry nothing but the answer


class Slo(Struct, forbid_unknown_fields=True):
    """Targets of one request, in milliseconds."""

    ttft_ms: Milliseconds | None = None
    itl_ms: Milliseconds | None = None
    tpot_ms: Milliseconds | None = None


class CommonSettings(Struct, kw_only=True, forbid_unknown_fields=True):
    """Settings of any call of the engine. null means "not set"."""

    model: Name | None = None
    priority: Int32 | None = None
    slo: Slo | None = None
    cache_salt: Name | None = None
    request_id: Annotated[str, Meta(max_length=128, pattern="^[A-Za-z0-9_.:-]*$")] | None = None


class EngineSettings(CommonSettings, kw_only=True, forbid_unknown_fields=True):
    """Settings that the bodies of all APIs that generate have by these names."""

    stream: bool | None = None
    temperature: Temperature | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    repetition_penalty: RepetitionPenalty | None = None
    logit_bias: LogitBias | None = None
    min_tokens: Count | None = None
    stop_token_ids: FewTokenIds | None = None
    ignore_eos: bool | None = None
    seed: Seed | None = None


Tier = Literal["auto", "default", "priority", "fast", "flex", "scale"]
MaxPromptTokens = Annotated[int, Meta(ge=-1, lt=2**31)]


class CallSettings(CommonSettings, kw_only=True, forbid_unknown_fields=True):
    """Settings of a call that generates no text."""

    user: Name | None = None
    service_tier: Tier | None = None
    timings: bool | None = None
    truncate_prompt_tokens: MaxPromptTokens | None = None
    add_special_tokens: bool | None = None

    @property
    def named_user(self) -> str | None:
        return self.user

    @property
    def named_session(self) -> str:
        """Return the conversation that the body names, or the key by which it shares cached prompts; "": none."""
        return ""

    @property
    def named_program(self) -> str:
        """Return the program that the body names; "": none."""
        return ""


class GenerationSettings(EngineSettings, kw_only=True, forbid_unknown_fields=True):
    """Settings of a call of /v1/completions or /v1/chat/completions beside its prompt."""

    user: Name | None = None
    service_tier: Tier | None = None
    timings: bool | None = None
    truncate_prompt_tokens: MaxPromptTokens | None = None
    add_special_tokens: bool | None = None
    session_id: Name | None = None
    program_id: Name | None = None
    prompt_cache_key: Name | None = None
    n: Samples | None = None
    allowed_token_ids: TokenIds | None = None
    bad_words: Words | None = None
    stop: Stops | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
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
    def named_user(self) -> str | None:
        return self.user

    @property
    def named_session(self) -> str:
        if self.session_id is not None or not self.prompt_cache_key:
            return self.session_id or ""
        key = self.prompt_cache_key  # OpenAI's, which may be any text
        return key if key.isprintable() else sha256(key.encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def named_program(self) -> str:
        return self.program_id or ""


class CompletionSettings(GenerationSettings, kw_only=True, forbid_unknown_fields=True):
    """logprobs: alternatives beside the token's own. max_tokens: 16 where left out; null: what there is room for."""

    max_tokens: Count | UnsetType | None = UNSET
    best_of: Samples | None = None
    echo: bool | None = None
    logprobs: TopLogprobs | None = None


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


class TextSettings(CallSettings, kw_only=True, forbid_unknown_fields=True):
    """dimensions, normalize: of vectors. prompt_name: of the model's own prompts, which is put before each text.
    truncate: what is longer than the model takes is cut at its end."""

    dimensions: int | None = None
    normalize: bool | None = None
    prompt_name: str | None = None
    truncate: bool | None = None


class TextForm(Struct, frozen=True):
    """The form of answers about texts. base64: vectors as float32 numbers. raw: scores without the usual activation.
    top_n: results of a ranking; documents: that it shows, where it does."""

    base64: bool = False
    raw: bool = False
    top_n: int | None = None
    documents: tuple[str, ...] = ()


PLAIN_FORM = TextForm()


# What vLLM's clients send with its defaults, and what routers add on the way.
COMMON_NEUTRAL: Neutral = {
    "length_penalty": ((1, 1.0), "there is no beam search."),
    "use_beam_search": ((False,), "there is no beam search."),
    "early_stopping": ((False,), "there is no beam search."),
    "spaces_between_special_tokens": ((True,), "text is as the tokenizer decodes it."),
    "detokenize": ((True,), "answers have text; return_token_ids adds the ids."),
    "return_hidden_states": ((False,), "hidden states are not returned."),
    "no_stop_trim": ((False,), "use include_stop_str_in_output."),
    "logits_processors": (([],), "code from clients is not executed."),
    "guided_whitespace_pattern": ((), "white space in JSON cannot be configured."),
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
