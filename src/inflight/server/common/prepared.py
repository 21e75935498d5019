"""Prepared bodies, which pass between processes: token ids and settings; the limits of a body; and calls made of it."""

from __future__ import annotations

import threading
from array import array
from dataclasses import dataclass

from msgspec import Struct, UnsetType

from inflight.core.types.request import Request
from inflight.core.types.sampling import Grammar
from inflight.counted import shortened
from inflight.frontend.answers import AnswerParsing
from inflight.frontend.parsers.parser_choice import ParserNames, Tool
from inflight.frontend.text_tasks import TextTask
from inflight.models.sentence_transformers import NO_PROMPTS, TextPrompts
from inflight.models.spec import Pooler
from inflight.server.common.aliases import served_name
from inflight.server.common.bodies import UnknownFieldPolicy
from inflight.server.common.fields import PLAIN_FORM, ChatSettings, CompletionSettings, TextForm, TextSettings
from inflight.server.errors import ApiError, invalid
from inflight.server.tenants import Tenant

EndpointName = str  # of the registry
DEFAULT_MAX_TOKENS = 16  # of /v1/completions, as OpenAI has it


class Prompt(Struct, frozen=True, array_like=True):
    """token_ids: 32 bits each, of this machine's byte order. text: where the answer repeats it. second_text_at: of a
    pair, as `Request` has it."""

    token_ids: bytes
    text: str | None = None
    second_text_at: int | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids) // 4

    def ids(self) -> tuple[int, ...]:
        """Return the token ids. The same number is the same object in all prompts: a fifth of the memory."""
        ids = array("I", self.token_ids)
        most = max(ids, default=0)
        if most >= _MAX_SHARED_ID:
            return tuple(ids)
        if most >= len(_SHARED):
            with _GROWING:  # long prompts are translated in threads
                _SHARED.extend(range(len(_SHARED), most + 1))
        return tuple(map(_SHARED.__getitem__, ids))


_MAX_SHARED_ID = 1 << 18  # vocabularies are smaller
_SHARED: list[int] = []
_GROWING = threading.Lock()


class ReadBody(Struct, frozen=True, kw_only=True):
    """ignored: paths of unknown fields that the answer's header and the log name."""

    ignored: tuple[str, ...] = ()


class PreparedCompletion(ReadBody, frozen=True, tag_field="outcome", tag="completion"):
    """kind: the endpoint's name. form_field: that the grammar is from. echoed: JSON, what the answer needs of the body.
    line_seconds: as `Call` has it."""

    settings: CompletionSettings
    prompts: tuple[Prompt, ...]
    kind: EndpointName = "completion"
    grammar: Grammar | None = None
    form_field: str | None = None
    echoed: bytes = b""
    line_seconds: float | None = None


class PreparedChat(ReadBody, frozen=True, tag_field="outcome", tag="chat"):
    """kind: the endpoint's name, of which the settings are those of chat. form_field: that the grammar is from. tools:
    that may be called; old_functions: they came as `functions`. parallel_calls: an answer may call several.
    in_reasoning: the prompt ends within it. echoed: JSON, what the endpoint's answer repeats of the body.
    stored_items: JSON, the items that it is stored with."""

    settings: ChatSettings
    prompts: tuple[Prompt, ...]
    kind: EndpointName = "chat"
    grammar: Grammar | None = None
    form_field: str | None = None
    tools: tuple[Tool, ...] = ()
    old_functions: bool = False
    parallel_calls: bool = True
    in_reasoning: bool = False
    echoed: bytes = b""
    stored_items: bytes = b""


class PreparedTexts(ReadBody, frozen=True, tag_field="outcome", tag="texts"):
    """kind: the endpoint's name. pairs: of prompts, whose vectors are compared; none: each prompt is a text, or a pair
    that the model itself scores."""

    settings: TextSettings
    prompts: tuple[Prompt, ...]
    kind: EndpointName
    task: TextTask
    form: TextForm
    pairs: tuple[tuple[int, int], ...] = ()


class PreparedAnswer(ReadBody, frozen=True, tag_field="outcome", tag="answer"):
    """JSON, as it is sent: the body asked for nothing more than this."""

    json: bytes


Prepared = PreparedCompletion | PreparedChat | PreparedTexts


def packed(token_ids: list[int] | tuple[int, ...]) -> bytes:
    return array("I", token_ids).tobytes()


MAX_BODY_MEMORY_BYTES = 112 << 20  # that a process may take for a body, beyond what it has


class Limits(Struct, frozen=True):
    """Limits that a body is checked against before it is cut into tokens.

    models: names by which the model may be called; none: any. max_sequences: what may wait at once. max_model_len:
    tokens of prompt and answer together. vocab_size: tokens that the model has. None: no bound. max_logprobs:
    log-probabilities of one answer.
    parse_control_tokens: what messages spell as a control token is one. parsers: of the model's answers.
    keeps_grammars: whether the engine applies schemas and grammars.
    pooler: how the engine makes vectors or scores; None: it does not. prompts: that may be put before such texts.
    generates: whether it continues texts.
    memory_bytes: that a process may take for one long body, beyond what it has.
    unknown_fields: what becomes of fields that are unknown here.
    """

    models: tuple[str, ...] = ()
    max_n: int = 128
    max_prompts: int = 256
    max_sequences: int | None = None
    max_model_len: int | None = None
    vocab_size: int | None = None
    max_logprobs: int = 1 << 19
    parse_control_tokens: bool = False
    parsers: ParserNames = ParserNames()
    keeps_grammars: bool = False
    pooler: Pooler | None = None
    prompts: TextPrompts = NO_PROMPTS
    generates: bool = True
    memory_bytes: int = MAX_BODY_MEMORY_BYTES
    unknown_fields: UnknownFieldPolicy = "warn"


def check_model(name: str | None, models: tuple[str, ...], *, is_pool: bool = False) -> str:
    """Return the name as the client wrote it; ours, if it wrote none, or "" as llama.vim does. is_pool: the server has
    several models. Raises ApiError 404."""
    if not name:
        return models[0] if models else ""
    if models and served_name(name, models) is None:
        sentence = f"The model {shortened(name)!r} does not exist; this server has {', '.join(models)}."
        if not is_pool:
            sentence += " `inflight serve --models local` serves all models that were pulled."
        raise ApiError(404, sentence, param="model", code="model_not_found")
    return name


def shown_logprobs(body: ChatSettings) -> int | None:
    """Return the alternatives that a conversation's answer shows beside each token; None: no log-probabilities."""
    return (body.top_logprobs or 0) if body.logprobs else None


def max_tokens_of(body: CompletionSettings | ChatSettings) -> int | None:
    """Return the limit of output tokens that the body names; None: what there is room for."""
    if isinstance(body, CompletionSettings):
        return DEFAULT_MAX_TOKENS if isinstance(body.max_tokens, UnsetType) else body.max_tokens
    for value in (body.max_completion_tokens, body.max_tokens):
        if not isinstance(value, UnsetType) and value is not None:
            return value
    return None


def check_samples(limits: Limits, prompts: int, samples: int) -> None:
    """Refuse more samples than one prompt may have, or than may ever wait at once. Raises ApiError."""
    if samples > limits.max_n:
        sentence = f"The call requests {samples:,} samples of a prompt, and the maximum is {limits.max_n:,} (--max-n)"
        raise invalid(f"{sentence}; request fewer.", "n")
    waiting = limits.max_sequences
    if waiting is not None and prompts * samples > waiting:
        what = f"{prompts} prompts of {samples} samples each" if prompts > 1 else f"{samples} samples"
        raise invalid(
            f"The call has {prompts * samples:,} sequences ({what}), and the queue takes {waiting:,} "
            "(--max-queued-requests); send smaller calls.",
            "n" if samples > waiting or prompts == 1 else "prompt",
        )


def check_logprobs(
    limits: Limits,
    max_tokens: int | None,
    samples: int,
    alternatives: int | None,
    prompt_tokens: int,
    scored: int | None,
) -> None:
    """Refuse more log-probabilities than one answer may hold. Raises ApiError.

    Args:
        max_tokens: None: not shown, or not bounded by the body; then the server's memory for answers is the bound.
    """
    output = 0 if max_tokens is None else samples * max_tokens * (1 + (alternatives or 0))
    prompt = 0 if scored is None else prompt_tokens * (1 + scored)
    if output + prompt > limits.max_logprobs:
        raise invalid(
            f"The answer may hold {output + prompt:,} log-probabilities (samples × tokens × alternatives), and "
            f"{limits.max_logprobs:,} are allowed; lower n, max_tokens or logprobs.",
            "logprobs",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of an endpoint: the engine's requests, and what the answer must show of them.

    Attributes:
        requests: One for each prompt.
        prompts: Their texts, where they came as text.
        n: Samples returned of each; the requests may draw more (best_of).
        logprobs: Alternatives that the answer shows; None: no log-probabilities.
        names_are_ids: Log-probabilities name tokens by their ids.
        parsing: Of a conversation's answers.
        include_reasoning: They are shown with it.
        old_functions: A call of a tool is shown as `function_call`, as it was before there were tools.
        echoed: JSON, what the answer repeats of the body.
        stored_items: JSON, the items that the answer is stored with; empty where it is not stored.
        form_field: Of the body, that says what answers must be like.
        text_form: Of an answer about encoder-only inputs.
        pairs: Of requests, whose vectors are compared.
        labels: Of a classifier.
        line_seconds: From the first token, after which the answer ends once it has a whole line; None: it does not.
        kv_transfer: JSON, where other engines find the prompt's keys and values.
        waited: Seconds until its model was in memory.
    """

    kind: EndpointName
    call_id: str
    created: int
    model: str
    requests: tuple[Request, ...]
    prompts: tuple[str | None, ...]
    n: int
    tier: str
    tenant: Tenant
    echo: bool = False
    logprobs: int | None = None
    prompt_logprobs: bool = False
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    timings: bool = False
    return_token_ids: bool = False
    names_are_ids: bool = False
    parsing: AnswerParsing | None = None
    include_reasoning: bool = True
    old_functions: bool = False
    echoed: bytes = b""
    stored_items: bytes = b""
    form_field: str | None = None
    text_form: TextForm = PLAIN_FORM
    pairs: tuple[tuple[int, int], ...] = ()
    labels: tuple[str, ...] = ()
    line_seconds: float | None = None
    kv_transfer: bytes = b""
    waited: float = 0.0

    @property
    def has_grammar(self) -> bool:
        """Whether the engine may have to compile a grammar before it accepts the requests."""
        return any(request.grammar is not None for request in self.requests)
