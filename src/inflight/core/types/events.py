"""Events of requests: what a commit or an abort of the scheduler reports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from inflight.core.types.sampling import TokenLogprob
from inflight.core.types.timings import Timings

FinishReason = Literal["stop", "length", "abort", "error"]
_WORST_FIRST: tuple[FinishReason, ...] = ("error", "abort", "length", "stop")


class Finish(Struct, frozen=True, omit_defaults=True):
    """End of one sample.

    Attributes:
        reason: Why it ended.
        stopped_by: Stop string or stop token id that ended it.
        detail: A sentence, where there is more to say.
        by_request: Whether an error is due to the request, which left nothing to draw.
    """

    reason: FinishReason
    stopped_by: str | int | None = None
    detail: str | None = None
    by_request: bool = False


class TokensEvent(Struct, frozen=True, gc=False):
    """New tokens of one sample.

    Attributes:
        request_id: Of the request.
        sample_index: Number of the sample.
        token_ids: The tokens.
        logprobs: Of each, where the request asks for them.
        finish: The end of the sample, with the last of its tokens.
        cached_tokens: Tokens of the prompt that the first sample found in the prefix cache; 0 for other samples.
    """

    request_id: str
    sample_index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    finish: Finish | None
    cached_tokens: int = 0


class PromptScoredEvent(Struct, frozen=True):
    """Log-probabilities of the next tokens of the prompt, from its second token on.

    Together they come before the request's first `TokensEvent`.
    """

    request_id: str
    logprobs: tuple[TokenLogprob, ...]


class PooledEvent(Struct, frozen=True):
    """Vector of a pooled request, before its end."""

    request_id: str
    vector: tuple[float, ...]


class FinishedEvent(Struct, frozen=True):
    """The one terminal event of a request.

    Attributes:
        request_id: Of the request.
        finishes: End of each sample, by sample index.
        timings: Where the request's time went.
    """

    request_id: str
    finishes: tuple[Finish, ...]
    timings: Timings


Event = PromptScoredEvent | PooledEvent | TokensEvent | FinishedEvent


def finish_reason(finishes: Iterable[Finish]) -> FinishReason:
    """Return how a request ended as a whole: the worst reason of its samples."""
    reasons = {finish.reason for finish in finishes}
    return next(reason for reason in _WORST_FIRST if reason in reasons)
