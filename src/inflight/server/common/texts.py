"""Encoder-only inputs: their prompts, and the envelope of answers about them.

Texts are truncated only where the body asks for it. Answers are not streamed: each text's numbers come at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

from msgspec import UNSET, Meta, Struct, UnsetType

from inflight.core.types.timings import Timings
from inflight.frontend.outputs import OutputCollector
from inflight.frontend.text_tasks import TextTask, TextTaskError, TextTasks, pairs_of
from inflight.server.common.answers import DONE, Change, Choice, TokenUsage, frame, timings_of
from inflight.server.common.conversation import Prompts
from inflight.server.common.fields import MAX_TOKEN_IDS, PLAIN_FORM, Text, TextForm, TextSettings, TokenId, TokenIds
from inflight.server.common.logprobs import TokenNames, encode
from inflight.server.common.prepared import (
    Call,
    EndpointName,
    PreparedTexts,
    Prompt,
    check_model,
    check_samples,
    packed,
)
from inflight.server.errors import ApiError, clients_fault, invalid

if TYPE_CHECKING:
    from inflight.server.preprocessing.worker import Preprocessor

MAX_TEXTS = 2048  # of one call, as OpenAI has it
MIN_TOKENS = 4  # to which a text may be cut: so many stand around a text or a pair
MAX_LISTED = 1 << 14  # entries of a list that is read at all
# A list holds texts only, token ids only, or lists of token ids only; which, is looked at when it is tokenized.
Input = Text | Annotated[list[TokenId | Text | TokenIds], Meta(max_length=MAX_TOKEN_IDS)]
TextList = Annotated[list[Text], Meta(max_length=MAX_LISTED)]
Texts = Text | TextList
TEXT_HINTS = frozenset({"metadata", "extra_body", "safety_identifier", "vllm_request_id", "rid", "session_id"})
_NAMES: dict[type, str] = {str: "text", int: "a token id", list: "a list of token ids"}
T = TypeVar("T")


# -- prompts -----------------------------------------------------------------------------------------------------------


def prepare_texts(
    preprocessor: Preprocessor,
    body: Struct,
    kind: EndpointName,
    task: TextTask,
    texts: Sequence[str | list[int]],
    field: str,
    seconds: Sequence[str] = (),
    second_field: str = "",
    form: TextForm = PLAIN_FORM,
) -> PreparedTexts:
    """Return the prompts of texts or of pairs.

    Args:
        body: Of which the settings are taken.
        kind: The endpoint.
        task: What the answer shows of each text or pair.
        texts: All of them, or the first texts of pairs.
        field: In which they came.
        seconds: The second texts of pairs: as many, or where there is one first text, any number.
        second_field: In which those came.

    Raises:
        ApiError: 400.
    """
    settings = TextSettings(**{name: getattr(body, name, None) for name in TextSettings.__struct_fields__})
    limits, tasks = preprocessor.limits, TextTasks(preprocessor.limits.pooler, preprocessor.limits.prompts)
    check_model(settings.model, limits.models)
    _asked(lambda: tasks.check(task))
    count, longer_field = max(len(texts), len(seconds)), second_field or field
    if count > MAX_TEXTS:
        raise invalid(
            f"{longer_field} has {count:,} texts, and the maximum is {MAX_TEXTS:,}; send several calls.", longer_field
        )
    check_samples(limits, count, 1)
    length, pairs = limits.max_model_len, pairs_of(len(texts), len(seconds))
    most, prompts = _max_tokens(settings, length), list[Prompt]()
    if seconds and tasks.reads_pairs:
        everything = [*texts, *seconds]
        for first, second in pairs:
            both = cast("tuple[str, str]", (everything[first], everything[second]))  # pairs come as texts
            tokens, second_at = _of_pair(preprocessor.prompts, *both, longer_field, most)
            prompts.append(Prompt(_packed(tokens, length, longer_field), second_text_at=second_at))
        return PreparedTexts(settings, tuple(prompts), kind, task, form)
    before = _asked(lambda: tasks.before(settings.prompt_name))
    added = settings.add_special_tokens is not False
    for name, several in ((field, texts), (longer_field, seconds)):
        for one in several:
            whole = before + one if isinstance(one, str) else one
            prompts.append(Prompt(_packed(_of_text(preprocessor.prompts, whole, name, added, most), length, name)))
    return PreparedTexts(settings, tuple(prompts), kind, task, form, pairs)


def _of_text(prompts: Prompts, given: str | list[int], field: str, added: bool, most: int | None) -> tuple[int, ...]:
    """Return the tokens of a text.

    Args:
        field: In which it came.
        added: With the special tokens that the model expects around it.
        most: Tokens, beyond which it is truncated at its end.
    """
    if isinstance(given, list):
        tokens = clients_fault(lambda: prompts.encoder.tokens(given), field)
        return tokens if most is None else tokens[:most]
    text = _bounded(prompts, given, field, most)
    return clients_fault(lambda: prompts.encoder.text(text, add_special_tokens=added, max_tokens=most), field)


def _of_pair(
    prompts: Prompts, first: str, second: str, field: str, most: int | None
) -> tuple[tuple[int, ...], int | None]:
    """Return the tokens of two texts that are read together, and where the second begins. Else as `of_text`."""
    texts = (_bounded(prompts, first, field, most), _bounded(prompts, second, field, most))
    return clients_fault(lambda: prompts.encoder.pair(*texts, most), field)


def _bounded(prompts: Prompts, text: str, field: str, most: int | None) -> str:
    """Return the text, of one that is to be cut no more than the tokens may stand for. Raises ApiError."""
    prompts.check_length(text, field, most)
    longest = prompts.max_token_chars
    return text if most is None or longest is None else text[: most * longest]


def listed(given: str | list[Any], field: str) -> list[str | list[int]]:
    """Return one text, or several. A list holds texts, token ids, or lists of token ids, and one kind only. Raises
    ApiError."""
    if isinstance(given, str):
        return [given]
    kind = type(some(given, field)[0])
    wrong = next((index for index, one in enumerate(given) if type(one) is not kind), None)
    if wrong is not None:
        raise invalid(
            f"{field} mixes {_NAMES[kind]} (index 0) and {_NAMES[type(given[wrong])]} (index {wrong}); give one kind "
            "only.",
            field,
        )
    return [given] if kind is int else given


def some(given: list[Any], field: str) -> list[Any]:
    """Return the list. Raises ApiError where it is empty."""
    if not given:
        raise invalid(f"{field} has 0 entries; give one text or more.", field)
    return given


def _packed(tokens: tuple[int, ...], length: int | None, field: str) -> bytes:
    """Return the tokens of a text. Raises ApiError where they are more than the model takes."""
    if length is not None and len(tokens) > length:
        raise invalid(
            f"This model's maximum context length is {length} tokens, and a text is too long: it has {len(tokens)} "
            "tokens; shorten it, or set truncate to true.",
            field,
            "context_length_exceeded",
        )
    return packed(tokens)


def _max_tokens(settings: TextSettings, length: int | None) -> int | None:
    """Return the tokens to which texts are cut; None: they are not. Raises ApiError."""
    wanted = settings.truncate_prompt_tokens
    if wanted is None or wanted < 0:
        return length if settings.truncate or wanted is not None else None
    if wanted < MIN_TOKENS:
        raise invalid(
            f"truncate_prompt_tokens is {wanted}, which leaves no text; give {MIN_TOKENS} or more.",
            "truncate_prompt_tokens",
        )
    return wanted if length is None else min(wanted, length)


def _asked(ask: Callable[[], T]) -> T:
    """Return the answer. Raises ApiError for a task that is not the model's."""
    try:
        return ask()
    except TextTaskError as error:
        raise invalid(str(error), error.field, error.code) from None


# -- answers -----------------------------------------------------------------------------------------------------------


class TextUsage(Struct, kw_only=True):
    prompt_tokens: int
    total_tokens: int


class TextAnswer(Struct, kw_only=True):
    id: str
    object: str
    created: int
    model: str
    data: list[Any]
    usage: TextUsage
    timings: Timings | list[Timings] | UnsetType = UNSET


class TextSerializer:
    """An `AnswerSerializer` but for `answer`."""

    alive, shows_usage = b"", False

    def __init__(self, call: Call, collectors: Sequence[OutputCollector], names: TokenNames):
        self._call, self._collectors = call, collectors

    def answer(self, usage: TextUsage) -> Any:
        raise NotImplementedError

    def whole(self, choices: Sequence[Choice], usage: TokenUsage) -> bytes:
        return encode(self.answer(TextUsage(prompt_tokens=usage.prompt_tokens, total_tokens=usage.prompt_tokens)))

    def frames(self, changes: Sequence[Change], before: TokenUsage, after: TokenUsage, ended: bool) -> bytes:
        return b""

    def end(self, usage: TokenUsage) -> bytes:
        return DONE

    def failed(self, error: ApiError) -> bytes:
        return frame(error.body) + DONE

    @property
    def _envelope(self) -> dict[str, Any]:
        call = self._call
        return {"id": call.call_id, "object": "list", "created": call.created, "model": call.model, **self._timings}

    @property
    def _timings(self) -> dict[str, Any]:
        return {"timings": timings_of(self._collectors)} if self._call.timings else {}

    @property
    def _vectors(self) -> list[tuple[float, ...]]:
        return [one.embedding or () for one in self._collectors]

    def _scores(self) -> list[float]:
        """Return of each pair the model's score, or where the model makes vectors their cosine."""
        vectors, pairs = self._vectors, self._call.pairs
        if not pairs:
            return [vector[0] for vector in vectors]
        return [math.fsum(a * b for a, b in zip(vectors[i], vectors[j], strict=True)) for i, j in pairs]

    def _ranked(self) -> list[tuple[int, float]]:
        """Return indexes of documents and their scores, the best first; ties in their order."""
        scores = list(enumerate(self._scores()))
        return sorted(scores, key=lambda one: -one[1])[: self._call.text_form.top_n]
