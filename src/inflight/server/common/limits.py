"""Limits of one call: a model that is there, samples, log-probabilities, output tokens."""

from __future__ import annotations

from msgspec import Struct

from inflight.counted import shortened
from inflight.frontend.parsers.parser_choice import ParserNames
from inflight.models.sentence_transformers import NO_PROMPTS, TextPrompts
from inflight.models.spec import Pooler
from inflight.server.common.values import UnknownFieldPolicy
from inflight.server.errors import ApiError, invalid

MAX_BODY_MEMORY_BYTES = 112 << 20  # that a process may take for a body, beyond what it has


class Limits(Struct, frozen=True):
    """Limits that a body is checked against before it is cut into tokens.

    models: names by which the model may be called; none: any. most_sequences: what may wait at once. max_model_len:
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
    most_sequences: int | None = None
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


def check_model(name: str | None, models: tuple[str, ...]) -> str:
    """Return the name as the client wrote it; ours, if it wrote none. Raises ApiError 404."""
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
    """Raises ApiError for more samples than one prompt may have, or than may ever wait at once."""
    if samples > limits.max_n:
        raise invalid(f"{samples} samples are asked for, but a prompt may have {limits.max_n}; ask for fewer.", "n")
    waiting = limits.most_sequences
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
    """Raises ApiError for more log-probabilities than one answer may hold.

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
