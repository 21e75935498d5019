"""/infill and /completion in llama-server's form: fields, translation into engine requests, and answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from inflight.core.types.sampling import SamplingParams
from inflight.frontend.outputs import OutputCollector
from inflight.server.common.answer_forms import form_field
from inflight.server.common.answers import ALIVE, Change, Choice, TokenUsage, frame
from inflight.server.common.bodies import BodyDecoder
from inflight.server.common.endpoint import Endpoint
from inflight.server.common.fields import (
    COMMON_HINTS,
    COMMON_NEUTRAL,
    CompletionSettings,
    Count,
    Name,
    Neutral,
    Text,
    TokenIds,
)
from inflight.server.common.gaps import filled
from inflight.server.common.logprobs import TokenNames, encode
from inflight.server.common.prepared import (
    Call,
    EndpointName,
    PreparedCompletion,
    Prompt,
    check_samples,
    packed,
)
from inflight.server.errors import ApiError, clients_fault, invalid
from inflight.server.openai.completions import stop_token_ids
from inflight.text.fill_in_middle import ContextFile

if TYPE_CHECKING:
    from inflight.server.preprocessing.worker import Preprocessor

MAX_FILES = 1024
MAX_RESPONSE_FIELDS = 64
MIN_ROOM = 64  # tokens left for what fills the gap, where the body has no limit

_NEUTRAL: Neutral = {
    **COMMON_NEUTRAL,
    "mirostat": ((0,), "it is not implemented; use temperature and top_p."),
    "typical_p": ((1, 1.0), "it is not implemented; use top_p."),
    "dynatemp_range": ((0, 0.0), "the temperature is fixed."),
    "dry_multiplier": ((0, 0.0), "it is not implemented; use repeat_penalty."),
    "xtc_probability": ((0, 0.0), "it is not implemented; use top_p."),
    "top_n_sigma": ((-1, -1.0), "it is not implemented; use min_p."),
    "n_probs": ((0,), "ask /v1/completions with logprobs."),
    "lora": (([],), "an adapter is named as the model."),
}
# Those of slots and caches have no counterpart here: any request slot has every cached prefix.
_HINTS = COMMON_HINTS | {
    *("cache_prompt", "id_slot", "n_keep", "n_discard", "n_indent", "n_cache_reuse", "samplers", "min_keep"),
    *("t_max_prompt_ms", "timings_per_token", "return_progress", "post_sampling_probs"),
    *("repeat_last_n", "penalize_nl", "sse_ping_interval", "mirostat_tau", "mirostat_eta", "dynatemp_exponent"),
    *("dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers", "xtc_threshold"),
}


class LlamaSettings(CompletionSettings, kw_only=True, forbid_unknown_fields=True):
    """t_max_predict_ms: from the first token, after which the answer ends once it has a whole line; 0: it does not.
    response_fields: those of the answer that are wanted, `timings/prompt_n` for one within another. return_tokens: the
    answer has the token ids too."""

    t_max_predict_ms: Count | None = None
    response_fields: Annotated[list[Name], Meta(max_length=MAX_RESPONSE_FIELDS)] | None = None
    return_tokens: bool | None = None


class LlamaCompletionBody(LlamaSettings, kw_only=True, forbid_unknown_fields=True):
    """prompt: text, or token ids. max_tokens is n_predict by its name here; without it, or below 0, the context is the
    limit."""

    prompt: Text | TokenIds


class ExtraFile(Struct, kw_only=True, forbid_unknown_fields=True):
    """time: when an editor took the text; not used."""

    text: Text
    filename: Name | None = None
    time: Any = None


class InfillBody(LlamaSettings, kw_only=True, forbid_unknown_fields=True):
    """input_prefix, input_suffix: texts around the gap. input_extra: other files, the most relevant last. prompt: goes
    on from input_prefix; editors have the current line there."""

    input_prefix: Text = ""
    input_suffix: Text = ""
    input_extra: Annotated[list[ExtraFile], Meta(max_length=MAX_FILES)] | None = None
    prompt: Text | None = None


class _Echoed(Struct, frozen=True):
    """Fields of a body that its answer needs. truncated: the prompt was cut to fit."""

    response_fields: list[str] = []
    return_tokens: bool = False
    truncated: bool = False


_read_echoed = msgspec.json.Decoder(_Echoed).decode


def prepare_infill(preprocessor: Preprocessor, body: InfillBody, history: bytes | memoryview) -> PreparedCompletion:
    """Return the prompt around the gap. It is cut to the context, as editors expect. Raises ApiError."""
    preprocessor.check_generates(body.model)
    settings, limit = _settings(preprocessor, body, fills_gap=True), preprocessor.limits.max_model_len
    files = [ContextFile(one.filename or "file", one.text) for one in body.input_extra or ()]
    asked = MIN_ROOM if settings.max_tokens in (None, UNSET) else settings.max_tokens
    assert isinstance(asked, int)
    room = None if limit is None else max(limit // 2, limit - asked)
    prefix = body.input_prefix + (body.prompt or "")
    found = filled(preprocessor.prompts, prefix, body.input_suffix, "input_suffix", files, room)
    return _prepared(preprocessor, "infill", body, settings, found.token_ids, found.truncated)


def prepare_completion(
    preprocessor: Preprocessor, body: LlamaCompletionBody, history: bytes | memoryview
) -> PreparedCompletion:
    """Return the prompt. Raises ApiError."""
    preprocessor.check_generates(body.model)
    settings, prompts, prompt = _settings(preprocessor, body), preprocessor.prompts, body.prompt
    if isinstance(prompt, str):
        prompts.check_length(prompt, "prompt", None)
    tokens = clients_fault(lambda: prompts.encoder.tokens(prompt), "prompt")
    limit = preprocessor.limits.max_model_len
    if limit is not None and len(tokens) > limit:
        raise invalid(
            f"This model's maximum context length is {limit} tokens, and the prompt has {len(tokens)}; shorten it.",
            "prompt",
            "context_length_exceeded",
        )
    return _prepared(preprocessor, "llama_completion", body, settings, tokens, False)


def _settings(preprocessor: Preprocessor, body: LlamaSettings, fills_gap: bool = False) -> CompletionSettings:
    settings = preprocessor.settings_of(body, CompletionSettings)
    if isinstance(settings.max_tokens, UnsetType):
        settings.max_tokens = None
    if settings.seed is not None and settings.seed < 0:  # llama-server's word for "random"
        settings.seed = None
    check_samples(preprocessor.limits, 1, body.best_of or body.n or 1)
    settings.stop_token_ids = stop_token_ids(preprocessor.prompts, settings, fills_gap)
    return settings


def _prepared(
    preprocessor: Preprocessor,
    kind: EndpointName,
    body: LlamaSettings,
    settings: CompletionSettings,
    tokens: tuple[int, ...],
    truncated: bool,
) -> PreparedCompletion:
    echoed = _Echoed(body.response_fields or [], bool(body.return_tokens), truncated)
    return PreparedCompletion(
        settings,
        (Prompt(packed(tokens)),),
        kind=kind,
        grammar=preprocessor.forms.of_body(body),
        form_field=form_field(body),
        echoed=encode(echoed),
        line_seconds=body.t_max_predict_ms / 1e3 if body.t_max_predict_ms else None,
    )


# -- answers -----------------------------------------------------------------------------------------------------------


class LlamaTimings(Struct, kw_only=True):
    """cache_n: tokens of the prompt that were cached; prompt_n: that were computed."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class LlamaPart(Struct, kw_only=True):
    """A piece of a stream. tokens: ids of the content. response_fields may leave any field out."""

    index: int = 0
    content: str = ""
    tokens: list[int] = []
    stop: bool = False
    id_slot: int = -1
    tokens_predicted: int = 0
    tokens_evaluated: int = 0


class LlamaCompletion(LlamaPart, kw_only=True):
    """A whole answer, or the last piece of a stream. stop_type: eos, word or limit. prompt: never shown. tokens_cached:
    of the prompt."""

    model: str = ""
    generation_settings: dict[str, Any] = {}
    prompt: str = ""
    has_new_line: bool = False
    truncated: bool = False
    stop_type: str = ""
    stopping_word: str = ""
    tokens_cached: int = 0
    timings: LlamaTimings | UnsetType = UNSET


class _Drawn(Struct):
    """A choice so far. stopped_by: a stop string, or a token's id."""

    tokens: int = 0
    has_new_line: bool = False
    reason: str | None = None
    stopped_by: str | int | None = None


class LlamaSerializer:
    """An `AnswerSerializer`. A stream ends with the last piece, without a mark behind it."""

    alive, shows_usage = ALIVE, False

    def __init__(self, call: Call, collectors: Sequence[OutputCollector], names: TokenNames):
        self._call, self._collectors = call, collectors
        self._echoed = _read_echoed(call.echoed)
        self._drawn: dict[int, _Drawn] = {}

    def whole(self, choices: Sequence[Choice], usage: TokenUsage) -> bytes:
        shown = []
        for one in choices:
            output = one.output
            drawn = _Drawn(len(output.token_ids), "\n" in output.text, output.finish_reason, output.stop_reason)
            shown.append(
                self._final(one.index, drawn, output.text, output.token_ids if self._echoed.return_tokens else [])
            )
        return encode(shown[0] if len(shown) == 1 else shown)

    def frames(self, changes: Sequence[Change], before: TokenUsage, after: TokenUsage, ended: bool) -> bytes:
        pieces = []
        for change in changes:
            drawn = self._drawn.setdefault(change.index, _Drawn())
            drawn.tokens += len(change.token_ids)
            drawn.has_new_line |= "\n" in change.text
            if change.finish is not None:
                drawn.reason, drawn.stopped_by = change.finish.reason, change.finish.stopped_by
            if change.text:
                counts = self._counts(change.index, drawn)
                pieces.append(frame(LlamaPart(content=change.text, tokens=change.token_ids, stop=False, **counts)))
        return b"".join(pieces)

    def end(self, usage: TokenUsage) -> bytes:
        return b"".join([frame(self._final(index, drawn, "", [])) for index, drawn in sorted(self._drawn.items())])

    def failed(self, error: ApiError) -> bytes:
        return frame(error.body)

    def _counts(self, index: int, drawn: _Drawn) -> dict[str, Any]:
        prompt = len(self._collectors[0].request.prompt_token_ids)
        return {"index": index, "id_slot": -1, "tokens_predicted": drawn.tokens, "tokens_evaluated": prompt}

    def _final(self, index: int, drawn: _Drawn, text: str, ids: list[int]) -> Any:
        by, collector = drawn.stopped_by, self._collectors[0]
        stopped = "limit" if drawn.reason != "stop" else "word" if isinstance(by, str) else "eos"
        answer = LlamaCompletion(
            content=text,
            tokens=ids,
            stop=True,
            model=self._call.model,
            generation_settings=shown_settings(collector.request.params, collector.request.seed),
            prompt="",
            has_new_line=drawn.has_new_line,
            truncated=self._echoed.truncated,
            stop_type=stopped,
            stopping_word=by if isinstance(by, str) else "",
            tokens_cached=collector.cached_tokens,
            timings=_timings(collector, drawn.tokens),
            **self._counts(index, drawn),
        )
        wanted = self._echoed.response_fields
        return _selected(msgspec.to_builtins(answer), wanted) if wanted else answer


def _selected(answer: dict[str, Any], wanted: Sequence[str]) -> dict[str, Any]:
    """Return the wanted fields by their paths, those that there are."""
    found: dict[str, Any] = {}
    for path in wanted:
        value: Any = answer
        for name in path.split("/"):
            value = value.get(name, UNSET) if isinstance(value, dict) else UNSET
        if value is not UNSET:
            found[path] = value
    return found


def shown_settings(params: SamplingParams, seed: int) -> dict[str, Any]:
    """Return sampling settings by llama-server's names."""
    return {
        "n_predict": -1 if params.max_tokens is None else params.max_tokens,
        "seed": seed,
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "repeat_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "stop": list(params.stop),
        "ignore_eos": params.ignore_eos,
    }


def _timings(collector: OutputCollector, predicted: int) -> LlamaTimings:
    timings = collector.timings
    prompt_ms, predicted_ms = (0.0, 0.0) if timings is None else (timings.prefill_ms, timings.decode_ms)
    computed = len(collector.request.prompt_token_ids) - collector.cached_tokens
    return LlamaTimings(
        cache_n=collector.cached_tokens,
        prompt_n=computed,
        prompt_ms=round(prompt_ms, 3),
        prompt_per_token_ms=round(prompt_ms / max(1, computed), 3),
        prompt_per_second=_rate(computed, prompt_ms),
        predicted_n=predicted,
        predicted_ms=round(predicted_ms, 3),
        predicted_per_token_ms=round(predicted_ms / max(1, predicted), 3),
        predicted_per_second=_rate(predicted, predicted_ms),
    )


def _rate(tokens: int, ms: float) -> float:
    return round(1e3 * tokens / ms, 3) if ms > 0 else 0.0


INFILL_ENDPOINT = Endpoint(
    name="infill",
    path="/infill",
    body=BodyDecoder(InfillBody, neutral=_NEUTRAL, hints=_HINTS),
    prepare=prepare_infill,
    result=LlamaCompletion,
    serializer=LlamaSerializer,
    prompt_field="input_prefix",
    call_prefix="infill-",
    operation="infill",
    about="Fill the gap between two texts, by the model's fill-in-the-middle tokens. llama-server's endpoint.",
)
LLAMA_COMPLETION_ENDPOINT = Endpoint(
    name="llama_completion",
    path="/completion",
    body=BodyDecoder(LlamaCompletionBody, neutral=_NEUTRAL, hints=_HINTS),
    prepare=prepare_completion,
    result=LlamaCompletion,
    serializer=LlamaSerializer,
    prompt_field="prompt",
    call_prefix="completion-",
    operation="llama_completion",
    about="Continue text. llama-server's own form of it.",
)
