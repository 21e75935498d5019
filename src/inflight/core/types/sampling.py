"""Request parameters: sampling, pooling, grammars and adapters, and the log-probabilities that a request asks for.

Names and defaults are vLLM's.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args, overload

from msgspec import Struct

from inflight.counted import quoted

MIN_REPETITION_PENALTY = 0.001  # logits are divided by it: much less makes them infinite, and nothing can be drawn
MAX_TEMPERATURE = 1_000_000  # far below it all tokens are equally likely; as a float32 it divides any logit
MAX_NAME_CHARS = 256  # of an adapter
DEFAULT_RANK, MAX_RANK = 16, 256  # of an adapter
# Between the parts of a JSON text: nothing, a space, or a new line with its indentation. Without a bound a model that
# is unsure writes spaces until its tokens are used up.
JSON_WHITESPACE = r"( |\n[ \t]{0,32})"
MAX_SOURCE_CHARS = 2**17  # of a grammar; one of so many, all property names, compiles in about two seconds
PoolingActivation = Literal["none", "sigmoid", "softmax"]
GrammarKind = Literal["none", "json_schema", "json_object", "regex", "choice", "lark", "structural_tag"]


class InvalidSampling(ValueError):
    """A setting is outside its limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling settings of one request."""

    n: int = 1  # samples of the prompt; they share its KV blocks
    temperature: float = 1.0  # 0 takes the likeliest token; above 0 divides the logits
    top_k: int = 0  # tokens that may be drawn; 0 or -1: off
    top_p: float = 1.0  # probability mass that may be drawn from; 1: off
    min_p: float = 0.0  # least probability of a token, relative to the likeliest; 0: off
    repetition_penalty: float = 1.0  # of tokens in the prompt and output; 1: off
    presence_penalty: float = 0.0  # of tokens in the output; 0: off
    frequency_penalty: float = 0.0  # the same, for each occurrence
    # Token id → number added to its logit (at most 300 entries).
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] | None = None  # no other tokens are drawn; None: any may be
    bad_words: tuple[str, ...] = ()  # texts whose last token is not drawn behind the others
    # Limit of output tokens of one sample; None: as many as the model's length allows; 0: the prompt is computed (and
    # scored, if asked), and nothing is sampled.
    max_tokens: int | None = 16
    min_tokens: int = 0  # before so many output tokens, end tokens are not drawn and stop strings are ignored
    stop: tuple[str, ...] = ()  # strings that end the output
    include_stop_str_in_output: bool = False  # whether they stay in the text
    stop_token_ids: tuple[int, ...] = ()  # token ids that end the output, beside the model's end tokens
    ignore_eos: bool = False  # whether the model's end tokens do not count
    # Makes the draws repeatable: sample i draws from stream (seed, i), whatever else is in the batch.
    seed: int | None = None
    # Alternatives whose log-probabilities are reported beside the sampled token's (0 to 20).
    logprobs: int | None = None
    prompt_logprobs: int | None = None  # the same for the tokens of the prompt, from its second on
    skip_special_tokens: bool = True  # whether special tokens are left out of the text

    def __post_init__(self) -> None:
        # Lists and a bare string are what callers write; the frozen form is a tuple.
        stop = (self.stop,) if isinstance(self.stop, str) else _listed("stop", self.stop)
        object.__setattr__(self, "stop", stop)
        object.__setattr__(self, "stop_token_ids", _listed("stop_token_ids", self.stop_token_ids))
        object.__setattr__(self, "logit_bias", _clean_bias(self.logit_bias))
        object.__setattr__(self, "bad_words", _listed("bad_words", self.bad_words))
        if self.allowed_token_ids is not None:
            object.__setattr__(self, "allowed_token_ids", _listed("allowed_token_ids", self.allowed_token_ids))
        if self.top_k == -1:
            object.__setattr__(self, "top_k", 0)
        self._check_numbers()
        self._check_stops()

    def _check_numbers(self) -> None:
        _whole("n", self.n, 1, 1024)
        _real("temperature", self.temperature, 0, MAX_TEMPERATURE)
        _whole("top_k", self.top_k, 0, None)
        _real("top_p", self.top_p, 0, 1, open_below=True)
        _real("min_p", self.min_p, 0, 1)
        _real("repetition_penalty", self.repetition_penalty, MIN_REPETITION_PENALTY, 100)
        _real("presence_penalty", self.presence_penalty, -2, 2)
        _real("frequency_penalty", self.frequency_penalty, -2, 2)
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 0, None)
        _whole("min_tokens", self.min_tokens, 0, self.max_tokens)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), 0, 20)
        if self.seed is not None:
            _whole("seed", self.seed, -(2**63), 2**64 - 1)

    def _check_stops(self) -> None:
        for stop in self.stop:
            if not isinstance(stop, str) or not stop:
                raise InvalidSampling(f"stop holds {quoted(stop)}; give one or more strings that are not empty.")
        for word in self.bad_words:
            if not isinstance(word, str) or not word.strip():
                raise InvalidSampling(f"bad_words holds {quoted(word)}; give words that are not empty.")
        for token_id in self.stop_token_ids:
            _whole("stop_token_ids", token_id, 0, None)
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidSampling("allowed_token_ids is empty, so that nothing could be drawn; name one token or more.")
        self._check_allowed(self.allowed_token_ids or ())
        for name in ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidSampling(f"{name} is {quoted(getattr(self, name))}; give true or false.")

    @staticmethod
    def _check_allowed(token_ids: tuple[int, ...]) -> None:
        """Check all at once; one by one only if one is wrong, since there may be as many as the vocabulary has."""
        if set(map(type, token_ids)) <= {int} and min(token_ids, default=0) >= 0:
            return
        for token_id in token_ids:
            _whole("allowed_token_ids", token_id, 0, None)

    @property
    def needs_history(self) -> bool:
        """Whether a draw depends on which tokens came before."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingParams:
    """Settings of a request for an embedding or a classifier's scores, of which nothing is sampled."""

    normalize: bool = True  # whether the vector is divided by its length
    # Leading numbers of the vector that are returned, for models whose vectors may be cut (Kusupati et al., arXiv
    # 2205.13147); None: all.
    dimensions: int | None = None
    activation: PoolingActivation = "none"  # of scores: sigmoid of each, softmax over all, or none

    def __post_init__(self) -> None:
        if not isinstance(self.normalize, bool):
            raise InvalidSampling(f"normalize is {self.normalize!r}; give true or false.")
        if self.dimensions is not None:
            _whole("dimensions", self.dimensions, 1, None)
        if self.activation not in get_args(PoolingActivation):
            known = ", ".join(get_args(PoolingActivation))
            raise InvalidSampling(f"activation is {quoted(self.activation)}; give one of {known}.")


class Adapter(Struct, frozen=True, omit_defaults=True):
    """An adapter that changes the model for some requests."""

    name: str  # by which requests ask for it
    path: str = ""  # of its files
    # Of this name and these files: another adapter that takes the name later has another number, so that it never finds
    # blocks that were computed with the first.
    number: int = 0


@dataclass(frozen=True, slots=True)
class Grammar:
    """Constraint on an output, as the client wrote it."""

    kind: GrammarKind  # of `source`
    # Of the output, or of what follows the first occurrence of `after_token_ids`. A choice's is a JSON list of texts;
    # kind "none" has none and allows any output.
    source: str = ""
    after_token_ids: tuple[int, ...] = ()  # end of the reasoning
    # Output tokens before `after_token_ids`, which are forced then; None: no limit.
    max_tokens_before: int | None = None
    # An output that begins with them has reasoning; one that begins otherwise follows the grammar from its first token
    # on. Empty: the reasoning has begun in the prompt.
    opening_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GrammarStats:
    """Cost of grammars since the engine began."""

    compiled: int  # grammars that were compiled
    refused: int  # grammars that could not be
    compile_seconds: float  # of both, in processes of their own
    cache_hits: int  # requests whose grammar was compiled already
    masks: int  # positions whose tokens a grammar decided
    mask_seconds: float  # time of the masks, beside the forward passes
    wait_seconds: float  # part of it that steps waited for
    sit_outs: int = 0  # draws that waited for a slow mask, while other sequences drew
    cached_bytes: int = 0  # of compiled grammars that are cached


class TopLogprobs(Sequence[tuple[int, float]]):
    """Pairs of token id and natural log-probability (float32), the likeliest first.

    A request may ask for twenty pairs for each of thousands of tokens. As Python objects a pair takes 116 bytes, which
    Python's allocator keeps; in two arrays it takes eight.
    """

    __slots__ = ("_logprobs", "_token_ids")

    def __init__(self, token_ids: array[int], logprobs: array[float]):
        """Make pairs of two arrays of the same length."""
        self._token_ids, self._logprobs = token_ids, logprobs

    @classmethod
    def of_bytes(cls, token_ids: bytes, logprobs: bytes) -> Self:
        """Make pairs of the bytes of int32 ids and float32 log-probabilities."""
        return cls(array("i", token_ids), array("f", logprobs))

    def __len__(self) -> int:
        return len(self._token_ids)

    @overload
    def __getitem__(self, index: int) -> tuple[int, float]: ...

    @overload
    def __getitem__(self, index: slice) -> TopLogprobs: ...

    def __getitem__(self, index: int | slice) -> tuple[int, float] | TopLogprobs:
        if isinstance(index, slice):
            return TopLogprobs(self._token_ids[index], self._logprobs[index])
        return self._token_ids[index], self._logprobs[index]

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return zip(self._token_ids, self._logprobs, strict=True)

    def __eq__(self, other: object) -> bool:
        """Compare with any sequence of such pairs."""
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log-probability of a token under the unmodified logits, with the likeliest alternatives."""

    token_id: int
    logprob: float
    top: Sequence[tuple[int, float]] = ()


def _listed(name: str, value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple | set | frozenset):
        raise InvalidSampling(f"{name} is {quoted(value)}; give a list.")
    return tuple(value)


def _clean_bias(bias: Mapping[int, float] | None) -> dict[int, float]:
    if not bias:
        return {}
    if not isinstance(bias, Mapping):
        raise InvalidSampling(f"logit_bias is {quoted(bias)}; give an object of token id to number.")
    if len(bias) > 300:
        raise InvalidSampling(f"logit_bias has {len(bias)} entries; at most 300 are allowed.")
    clean = {}
    for token_id, value in bias.items():
        try:
            number = int(token_id)  # JSON objects have string keys
        except (TypeError, ValueError, OverflowError):
            raise InvalidSampling(
                f"logit_bias names the token {quoted(token_id)}; use token ids (whole numbers)."
            ) from None
        _whole("logit_bias token id", number, 0, None)
        _real(f"logit_bias of token {number}", value, -100, 100)
        clean[number] = float(value)
    return clean


def _whole(name: str, value: object, minimum: int, maximum: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidSampling(f"{name} is {quoted(value)}; give a whole number.")
    if value < minimum or (maximum is not None and value > maximum):
        limits = f"at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        raise InvalidSampling(f"{name} is {value}; give a whole number {limits}.")


def _real(name: str, value: object, minimum: float, maximum: float, *, open_below: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidSampling(f"{name} is {quoted(value)}; give a number.")
    # Comparisons refuse NaN and infinities, and take whole numbers that no float holds.
    if not (minimum < value if open_below else minimum <= value) or not value <= maximum:
        limits = f"above {minimum} and up to {maximum}" if open_below else f"from {minimum} to {maximum}"
        raise InvalidSampling(f"{name} is {value}; give a number {limits}.")


NO_SAMPLING = SamplingParams(max_tokens=0)
