"""Bounds on what one call may ask for: a model that is there, samples, log-probabilities.

Knows the numbers of a body and the server's limits; no text.
"""

from __future__ import annotations

from msgspec import UnsetType

from inflight.counted import shortened
from inflight.server.bodies.chat import ChatSettings
from inflight.server.bodies.completions import DEFAULT_MAX_TOKENS, CompletionSettings
from inflight.server.errors import ApiError, invalid
from inflight.server.preprocessing.wire import Limits


def check_model(name: str | None, models: tuple[str, ...]) -> str:
    """The name as the client wrote it; ours, if it wrote none. Raises ApiError 404."""
    if name is None:
        return models[0] if models else ""
    if models and name not in models:
        raise ApiError(
            404,
            f"The model {shortened(name)!r} does not exist; this server has {', '.join(models)}.",
            param="model",
            code="model_not_found",
        )
    return name


def check_samples(limits: Limits, prompts: int, samples: int) -> None:
    """More than may wait at once are refused for good: no later time would be better."""
    if samples > limits.max_n:
        raise invalid(f"{samples} samples are asked for, but a prompt may have {limits.max_n}; ask for fewer.", "n")
    most = limits.most_sequences
    if most is not None and prompts * samples > most:
        what = f"{prompts} prompts of {samples} samples each" if prompts > 1 else f"{samples} samples"
        raise invalid(
            f"The call asks for {what}, {prompts * samples} in all, but at most {most} may wait at once; ask for "
            "fewer in one call, or raise --max-queued-requests.",
            "n" if samples > most or prompts == 1 else "prompt",
        )


def check_logprobs(
    limits: Limits,
    max_tokens: int | None,
    samples: int,
    alternatives: int | None,
    prompt_tokens: int,
    scored: int | None,
) -> None:
    """An answer's log-probabilities are made and held whole. max_tokens None: not shown, or not bounded by the
    body; then the server's memory for answers is the bound."""
    output = 0 if max_tokens is None else samples * max_tokens * (1 + (alternatives or 0))
    prompt = 0 if scored is None else prompt_tokens * (1 + scored)
    if output + prompt > limits.max_logprobs:
        raise invalid(
            f"The answer may hold {output + prompt:,} log-probabilities (samples × tokens × alternatives), and "
            f"{limits.max_logprobs:,} are allowed; lower n, max_tokens or logprobs.",
            "logprobs",
        )


def max_tokens_of(body: CompletionSettings | ChatSettings) -> int | None:
    """Most output tokens that the body names; None: what there is room for."""
    if isinstance(body, CompletionSettings):
        return DEFAULT_MAX_TOKENS if isinstance(body.max_tokens, UnsetType) else body.max_tokens
    for value in (body.max_completion_tokens, body.max_tokens):
        if not isinstance(value, UnsetType) and value is not None:
            return value
    return None
