"""Sampling settings of a body: as the engine has them, and how much they may ask for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from msgspec import UNSET, UnsetType

from inflight.core.types.sampling import InvalidSampling, SamplingParams
from inflight.frontend.fields import SAMPLING_FIELDS
from inflight.server.common.fields import ChatSettings, CompletionSettings
from inflight.server.common.prepared import Limits
from inflight.server.errors import invalid

Settings = CompletionSettings | ChatSettings
DEFAULT_MAX_TOKENS = 16  # of /v1/completions, as OpenAI has it
_OF_THE_API = ("n", "logprobs", "max_tokens")  # whose meaning is not that of the engine's settings of these names


def sampling_params(body: Settings, defaults: SamplingParams) -> SamplingParams:
    """Return the settings. defaults: for those that the body leaves out. Raises ApiError."""
    given = {
        name: value
        for name in SAMPLING_FIELDS
        if name not in _OF_THE_API and (value := getattr(body, name, None)) is not None
    }
    own = _of_completion(body) if isinstance(body, CompletionSettings) else _of_chat(body)
    try:
        return replace(defaults, **{**given, **own, "max_tokens": _limit(body)})
    except InvalidSampling as error:
        name = str(error).split()[0]
        raise invalid(str(error), name if name in type(body).__struct_fields__ else None) from None


def shown_logprobs(body: ChatSettings) -> int | None:
    """Return the alternatives that a conversation's answer shows beside each token; None: no log-probabilities."""
    return (body.top_logprobs or 0) if body.logprobs else None


def max_tokens_of(body: Settings) -> int | None:
    """Return the limit of output tokens that the body names; None: what there is room for."""
    if isinstance(body, CompletionSettings):
        return DEFAULT_MAX_TOKENS if isinstance(body.max_tokens, UnsetType) else body.max_tokens
    for value in (body.max_completion_tokens, body.max_tokens):
        if not isinstance(value, UnsetType) and value is not None:
            return value
    return None


def _of_completion(body: CompletionSettings) -> dict[str, Any]:
    n, best_of = body.n or 1, body.best_of or body.n or 1
    if best_of < n:
        raise invalid(f"best_of is {best_of}, but n is {n}; draw at least as many as are wanted.", "best_of")
    if body.stream and best_of > n:
        raise invalid(
            f"best_of is {best_of} and n is {n}: which are best is known at the end; do not stream.", "best_of"
        )
    # OpenAI shows the prompt's log-probabilities with echo; and the best are found by their log-probability.
    of_prompt = [one for one in (body.prompt_logprobs, body.logprobs if body.echo else None) if one is not None]
    own: dict[str, Any] = {"prompt_logprobs": max(of_prompt)} if of_prompt else {}
    return {**own, "n": best_of, "logprobs": 0 if best_of > n and body.logprobs is None else body.logprobs}


def _of_chat(body: ChatSettings) -> dict[str, Any]:
    if body.top_logprobs and not body.logprobs:
        raise invalid(f"top_logprobs is {body.top_logprobs}, but logprobs is not true; set it.", "top_logprobs")
    return {"n": body.n or 1, "logprobs": shown_logprobs(body)}


def _limit(body: Settings) -> int | None:
    """Return the limit of output tokens; a forced length needs none where the body names none. Raises ApiError."""
    limit, forced = max_tokens_of(body), body.output_tokens
    if forced is None:
        return limit
    if body.max_tokens is UNSET and getattr(body, "max_completion_tokens", UNSET) is UNSET:
        return None
    if limit is not None and forced > limit:
        raise invalid(f"output_tokens is {forced}, but max_tokens is {limit}; raise max_tokens.", "output_tokens")
    return limit


def check_samples(limits: Limits, prompts: int, samples: int) -> None:
    """Refuse more samples than one prompt may have, or than may ever wait at once. Raises ApiError."""
    if samples > limits.max_n:
        raise invalid(f"{samples} samples are asked for, but a prompt may have {limits.max_n}; ask for fewer.", "n")
    waiting = limits.max_sequences
    if waiting is not None and prompts * samples > waiting:
        what = f"{prompts} prompts of {samples} samples each" if prompts > 1 else f"{samples} samples"
        raise invalid(
            f"The call asks for {what}, {prompts * samples} in all, but at most {waiting} may wait at once; ask for "
            "fewer in one call, or raise --max-queued-requests.",
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
