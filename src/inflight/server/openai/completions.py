"""/v1/completions: its schema, its translation into engine requests, and its answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from inflight.core.types.request import Request
from inflight.core.types.sampling import TokenLogprob
from inflight.core.types.timings import Timings
from inflight.frontend.logprobs import finite
from inflight.frontend.outputs import OutputCollector
from inflight.server.common.answer_forms import form_field
from inflight.server.common.answers import Change, Choice, OpenAISerializer, PromptLogprobs, Usage
from inflight.server.common.bodies import BodyDecoder
from inflight.server.common.conversation import Prompts
from inflight.server.common.endpoint import Endpoint, RenderedRequest
from inflight.server.common.fields import (
    COMMON_HINTS,
    COMMON_NEUTRAL,
    MAX_TOKEN_IDS,
    CompletionSettings,
    Text,
    TokenId,
    TokenIds,
)
from inflight.server.common.gaps import fill_stop_token_ids, filled
from inflight.server.common.logprobs import TokenNames, encode, prompt_logprobs
from inflight.server.common.prepared import (
    Call,
    PreparedCompletion,
    check_logprobs,
    check_samples,
    max_tokens_of,
    packed,
)
from inflight.server.common.prepared import Prompt as PreparedPrompt
from inflight.server.common.texts import listed
from inflight.server.errors import clients_fault, invalid
from inflight.text import IncrementalDetokenizer

if TYPE_CHECKING:
    from inflight.server.preprocessing.worker import Preprocessor

FEW_PROMPTS = 8  # that are tokenized in place
# A list holds texts only, token ids only, or lists of token ids only; which, is looked at when it is tokenized.
Prompt = Text | Annotated[list[TokenId | Text | TokenIds], Meta(max_length=MAX_TOKEN_IDS)]


class CompletionBody(CompletionSettings, kw_only=True, forbid_unknown_fields=True):
    """prompt: text, texts, token ids, or several lists of token ids. suffix: text behind the gap that the answer
    fills."""

    prompt: Prompt
    suffix: Text | None = None


COMPLETION = BodyDecoder(CompletionBody, neutral=COMMON_NEUTRAL, hints=COMMON_HINTS)


def prepare(preprocessor: Preprocessor, body: CompletionBody, history: bytes | memoryview) -> PreparedCompletion:
    """Return the prompts and settings. Raises ApiError."""
    limits = preprocessor.limits
    preprocessor.check_generates(body.model)
    samples = body.best_of or body.n or 1
    prompts = _listed(body.prompt, limits.max_prompts)
    check_samples(limits, len(prompts), samples)
    prepared = [_prompt(preprocessor.prompts, one, body) for one in prompts]
    shown = None if body.logprobs is None else max_tokens_of(body)
    scored = body.logprobs if body.echo and body.logprobs is not None else body.prompt_logprobs
    tokens = sum(one.num_tokens for one in prepared)
    check_logprobs(limits, shown, samples * len(prompts), body.logprobs, tokens, scored)
    settings = preprocessor.settings_of(body, CompletionSettings)
    settings.stop_token_ids = stop_token_ids(preprocessor.prompts, settings, bool(body.suffix))
    return PreparedCompletion(
        settings, tuple(prepared), grammar=preprocessor.forms.of_body(body), form_field=form_field(body)
    )


def _listed(given: str | list[Any], max_prompts: int) -> list[str | list[int]]:
    """Return one prompt, or several. Raises ApiError."""
    prompts: list[str | list[int]] = listed(given, "prompt") if given else [given]
    if len(prompts) > max_prompts:
        limit = f"the maximum is {max_prompts:,} (--max-prompts)"
        raise invalid(f"The call has {len(prompts):,} prompts, and {limit}; send several calls.", "prompt")
    return prompts


def _prompt(prompts: Prompts, given: str | list[int], body: CompletionBody) -> PreparedPrompt:
    """Return a prompt to be continued; its text, too, where the answer repeats it. Raises ApiError."""
    if body.suffix:
        tokens = _around_gap(prompts, given, body.suffix, body)
    else:
        if isinstance(given, str):
            prompts.check_length(given, "prompt", body.truncate_prompt_tokens)
        added = body.add_special_tokens is not False  # those that the model expects around a text
        tokens = clients_fault(lambda: prompts.encoder.tokens(given, add_special_tokens=added), "prompt")
    kept, length = prompts.truncated(tokens, body.truncate_prompt_tokens), prompts.limits.max_model_len
    if length is not None and len(kept) > length:
        raise invalid(
            f"This model's maximum context length is {length} tokens, and the prompt is too long: it has "
            f"{len(kept)} tokens; shorten it.",
            "prompt",
            "context_length_exceeded",
        )
    if not body.echo:
        return PreparedPrompt(packed(kept))
    if isinstance(given, str) and len(kept) == len(tokens):
        return PreparedPrompt(packed(kept), given)
    return PreparedPrompt(packed(kept), prompts.text(kept))


def _around_gap(prompts: Prompts, prefix: str | list[int], suffix: str, body: CompletionBody) -> tuple[int, ...]:
    """Return the tokens of the texts around a gap. Raises ApiError."""
    if not isinstance(prefix, str):
        raise invalid("The prompt is token ids, but suffix needs one that is text; send text, or no suffix.", "suffix")
    if body.echo:
        raise invalid("echo repeats a prompt, which is in two parts with a suffix; leave one of them out.", "echo")
    most = body.truncate_prompt_tokens
    return filled(
        prompts, prefix, suffix, "suffix", max_tokens=most if most is None or most > 0 else prompts.limits.max_model_len
    ).token_ids


def stop_token_ids(prompts: Prompts, settings: CompletionSettings, fills_gap: bool) -> list[int] | None:
    """Return the token ids that end an answer: those that the body names; stop strings that are special tokens, which
    outputs leave out; and where it fills a gap, the model's ends of gaps."""
    found = list(settings.stop_token_ids or ())
    if settings.stop and settings.skip_special_tokens is not False:
        found += prompts.encoder.special_ids([settings.stop] if isinstance(settings.stop, str) else settings.stop)
    if fills_gap and not settings.ignore_eos:
        found += fill_stop_token_ids(prompts)
    return found or settings.stop_token_ids


def is_little(body: CompletionBody) -> bool:
    """Whether a short body asks for little work too: many prompts are tokenized one by one."""
    if body.suffix:
        return False
    return isinstance(body.prompt, str) or len(body.prompt) <= FEW_PROMPTS or isinstance(body.prompt[0], int)


# -- answers -----------------------------------------------------------------------------------------------------------


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
    kv_transfer_params: dict[str, Any] | UnsetType = UNSET


class CompletionSerializer(OpenAISerializer):
    answer = Completion
    name = frame_name = "text_completion"

    def __init__(self, call: Call, collectors: Sequence[OutputCollector], names: TokenNames):
        super().__init__(call, collectors, names)
        self._shapes: dict[int, _ChoiceShape] = {}  # of the choices that have a frame

    def whole_choice(self, choice: Choice) -> CompletionChoice:
        output, shape = choice.output, _ChoiceShape(self._call, choice.collector, self._names)
        return CompletionChoice(
            index=choice.index,
            text=shape.echoed + output.text,
            logprobs=shape.logprobs(output.token_logprobs or ()),
            finish_reason=_reason(output.finish_reason),
            stop_reason=output.stop_reason,
            token_ids=output.token_ids if self._call.return_token_ids else UNSET,
            **shape.prompt_extras(),
        )

    def frame_choices(self, change: Change) -> tuple[list[CompletionChoice], list[CompletionChoice]]:
        first: list[CompletionChoice] = []
        if change.begins:
            shape = self._shapes[change.index] = _ChoiceShape(self._call, change.collector, self._names)
            if (opening := shape.first(change.index)) is not None:
                first = [opening]
        call = self._call
        shown = change.text or change.finish or call.logprobs is not None or call.return_token_ids
        return first, [self._part(change)] if shown else []

    def _part(self, change: Change) -> CompletionChoice:
        finish = change.finish
        return CompletionChoice(
            index=change.index,
            text=change.text,
            logprobs=self._shapes[change.index].added_logprobs(change.logprobs),
            finish_reason=None if finish is None else _reason(finish.reason),
            stop_reason=UNSET if finish is None else finish.stopped_by,
            token_ids=change.token_ids if self._call.return_token_ids else UNSET,
        )


def _reason(reason: str | None) -> Any:
    return reason


class _ChoiceShape:
    """One choice, which belongs to one prompt: what it shows of that, and its log-probabilities piece by piece."""

    def __init__(self, call: Call, collector: OutputCollector, names: TokenNames):
        self._call, self._collector, self._names = call, collector, names
        self._logprobs = LogprobPieces(names, collector.request)

    @property
    def echoed(self) -> str:
        return (self._collector.prompt or "") if self._call.echo else ""

    def first(self, index: int) -> CompletionChoice | None:
        """Return the frame before any token: with echo the prompt is the beginning of the text."""
        extras = self.prompt_extras()
        if not (self._call.echo or extras):
            return None
        scored = self._scored()
        logprobs = scored[0] if scored else None
        return CompletionChoice(index=index, text=self.echoed, logprobs=logprobs, finish_reason=None, **extras)

    def logprobs(self, entries: Sequence[TokenLogprob]) -> Any:
        """Return the log-probabilities of everything that is shown."""
        if self._call.logprobs is None:
            return None
        return _joined([*self._scored(), self._logprobs.output(entries)])

    def added_logprobs(self, entries: list[TokenLogprob]) -> Any:
        return self._logprobs.output(entries) if self._call.logprobs is not None and entries else None

    def prompt_extras(self) -> dict[str, Any]:
        extras: dict[str, Any] = {}
        if self._call.prompt_logprobs:
            extras["prompt_logprobs"] = prompt_logprobs(self._collector.prompt_scores, self._names)
        if self._call.return_token_ids:
            extras["prompt_token_ids"] = list(self._collector.request.prompt_token_ids)
        return extras

    def _scored(self) -> list[Any]:
        """Return the prompt's log-probabilities, where its text is shown with them."""
        if not self._call.echo or self._call.logprobs is None:
            return []
        most = self._call.logprobs
        scores = [TokenLogprob(one.token_id, one.logprob, one.top[:most]) for one in self._collector.prompt_scores]
        return [self._logprobs.prompt(self.echoed, scores)]


class LogprobPieces:
    """Makes `choices[i].logprobs`, piece by piece: offsets go on where the last piece ended.

    With echo the prompt's tokens come first; the very first token has no log-probability, because nothing is before it.
    A token's offset is the number of whole characters before it in the text that is returned, and of marks for bytes
    before it that are none: all tokens of a character that is spread over several stand where it does, and those that
    are not shown where the next one does.
    """

    def __init__(self, names: TokenNames, request: Request):
        self._names = names
        self._request = request
        self._offset = 0
        self._output: IncrementalDetokenizer | None = None

    def prompt(self, text: str, scores: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Return the piece of a prompt. text: as it is echoed. scores: of all its tokens but the first."""
        tokenizer = self._names.tokenizer
        detokenizer = None if tokenizer is None else IncrementalDetokenizer(tokenizer, skip_special_tokens=False)

        def added(token_id: int) -> tuple[int, int]:
            if tokenizer is None or detokenizer is None:
                return 0, 0
            # A special token that the tokenizer has put around the text is not in it; one that was written there is.
            hidden = token_id in tokenizer.special_token_ids
            if hidden and not text.startswith(self._names.text(token_id), self._offset):
                return 0, 0
            return detokenizer.marks_before(token_id), len(detokenizer.push(token_id))

        first = self._request.prompt_token_ids[0]
        piece = self._piece([(first, None), *((entry.token_id, entry) for entry in scores)], added)
        self._offset = len(text)  # where the output begins, also after half a character
        return piece

    def output(self, entries: Iterable[TokenLogprob]) -> dict[str, Any]:
        """Return the piece of some tokens of the output."""
        tokenizer, request = self._names.tokenizer, self._request
        if self._output is None and tokenizer is not None:
            skips = request.params.skip_special_tokens
            self._output = IncrementalDetokenizer(tokenizer, request.prompt_token_ids, skips)
        detokenizer = self._output

        def added(token_id: int) -> tuple[int, int]:
            if detokenizer is None:
                return 0, 0
            return detokenizer.marks_before(token_id), len(detokenizer.push(token_id))

        return self._piece([(entry.token_id, entry) for entry in entries], added)

    def _piece(
        self, items: list[tuple[int, TokenLogprob | None]], added: Callable[[int], tuple[int, int]]
    ) -> dict[str, Any]:
        """Return a piece. added: characters of the text that a token completes, and how many stand before it."""
        piece: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for token_id, entry in items:
            piece["tokens"].append(self._names.text(token_id))
            behind, characters = added(token_id)
            piece["text_offset"].append(self._offset + behind)
            self._offset += characters
            piece["token_logprobs"].append(None if entry is None else finite(entry.logprob))
            piece["top_logprobs"].append(None if entry is None else self._top(entry))
        return piece

    def _top(self, entry: TokenLogprob) -> Raw:
        """Return the likeliest, and the token itself. Of tokens that look alike the likelier is shown."""
        top: dict[str, float] = {}
        for token_id, logprob in (*entry.top, (entry.token_id, entry.logprob)):
            top.setdefault(self._names.text(token_id), finite(logprob))
        return Raw(encode(top))


def _joined(pieces: Iterable[dict[str, Any]]) -> dict[str, Any]:
    whole: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for piece in pieces:
        for name, values in piece.items():
            whole[name] += values
    return whole


COMPLETION_ENDPOINT = Endpoint(
    name="completion",
    path="/v1/completions",
    body=COMPLETION,
    prepare=prepare,
    result=Completion,
    serializer=CompletionSerializer,
    prompt_field="prompt",
    call_prefix="cmpl-",
    operation="completions",
    about="Continue text. OpenAI's legacy endpoint, with vLLM's extra fields.",
)
COMPLETION_RENDER = Endpoint(
    name="completion_render",
    path="/v1/completions/render",
    body=COMPLETION,
    prepare=prepare,
    result=list[RenderedRequest],
    renders="completion",
    operation="completions_render",
    about="What /v1/completions asks of the engine for such a body: a request for each prompt. vLLM's endpoint.",
)
