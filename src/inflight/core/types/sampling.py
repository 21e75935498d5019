"""How the tokens of one request are chosen and when it ends; or what is made of its prompt instead. Names and defaults
are those vLLM's users know.

Knows the meaning and the limits of each setting; not how a token is drawn (execution does that).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from inflight.counted import quoted

MIN_REPETITION_PENALTY = 0.001  # logits are divided by it: much less makes them infinite, and nothing can be drawn
MAX_TEMPERATURE = 1_000_000  # far below it all tokens are equally likely; as a float32 it divides any logit
PoolingActivation = Literal["none", "sigmoid", "softmax"]


class InvalidSampling(ValueError):
    """A sampling setting lies outside what it can mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling settings of one request.

    n: how many samples of the prompt are wanted; they share the prompt's KV blocks.
    temperature: 0 takes the likeliest token; above 0 divides the logits.
    top_k (0 or -1: off), top_p (1: off), min_p (0: off): which tokens may be drawn at all.
    repetition_penalty (1: off; prompt and output), presence_penalty, frequency_penalty (0: off; output only).
    logit_bias: token id → number added to its logit (at most 300 entries).
    allowed_token_ids: no other tokens are drawn; None: any may be.
    bad_words: texts whose last token is not drawn where the tokens before it have just been.
    max_tokens: most output tokens of one sample; None: as many as the model's length allows; 0: the prompt is computed
        (and scored, if asked), and nothing is sampled.
    min_tokens: end tokens are not drawn before this many output tokens, and stop strings do not end it.
    stop: strings that end the output; include_stop_str_in_output keeps them in the text.
    stop_token_ids: token ids that end the output, beside the model's own end tokens; ignore_eos drops the latter.
    seed: makes the draws repeatable: sample i draws from stream (seed, i), whatever else is in the batch.
    logprobs: None, or how many alternatives' log-probabilities to report beside the sampled token's (0 to 20).
    prompt_logprobs: the same for the tokens of the prompt, from its second on.
    skip_special_tokens: leave special tokens out of the text.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True

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
        """There may be as many as the vocabulary has: one by one only where one of them is wrong."""
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
    """What is wanted of a request of which nothing is sampled: the numbers that the model tells of its text, a vector
    or a classifier's scores.

    dimensions: of a vector the first so many numbers alone, as models allow whose vectors may be cut (Kusupati et al.,
    arXiv 2205.13147); None: all. normalize: what is left is divided by its length. activation: what becomes of scores:
    sigmoid of each, softmax over all, or none.
    """

    normalize: bool = True
    dimensions: int | None = None
    activation: PoolingActivation = "none"

    def __post_init__(self) -> None:
        if not isinstance(self.normalize, bool):
            raise InvalidSampling(f"normalize is {self.normalize!r}; give true or false.")
        if self.dimensions is not None:
            _whole("dimensions", self.dimensions, 1, None)
        if self.activation not in get_args(PoolingActivation):
            known = ", ".join(get_args(PoolingActivation))
            raise InvalidSampling(f"activation is {quoted(self.activation)}; give one of {known}.")


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


def _whole(name: str, value: object, least: int, most: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidSampling(f"{name} is {quoted(value)}; give a whole number.")
    if value < least or (most is not None and value > most):
        limits = f"at least {least}" if most is None else f"from {least} to {most}"
        raise InvalidSampling(f"{name} is {value}; give a whole number {limits}.")


def _real(name: str, value: object, least: float, most: float, *, open_below: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidSampling(f"{name} is {quoted(value)}; give a number.")
    # Comparisons refuse NaN and infinities, and take whole numbers that no float holds.
    if not (least < value if open_below else least <= value) or not value <= most:
        limits = f"above {least} and up to {most}" if open_below else f"from {least} to {most}"
        raise InvalidSampling(f"{name} is {value}; give a number {limits}.")


NO_SAMPLING = SamplingParams(max_tokens=0)
