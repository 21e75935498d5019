"""What the scheduler tells the world after a commit or an abort."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from msgspec import Struct

from inflight.core.types.sampling import TokenLogprob
from inflight.records.timings import Timings

FinishReason = Literal["stop", "length", "abort", "error"]


class Finish(Struct, frozen=True):
    """How a sample ended. stopped_by: the stop string or stop token id that ended it; detail: a sentence, if any.
    by_request: of an error, that the request itself left nothing to draw."""

    reason: FinishReason
    stopped_by: str | int | None = None
    detail: str | None = None
    by_request: bool = False


class TokensEvent(NamedTuple):
    """New tokens of one sample; `finish` comes with the last of them. cached_tokens: of the prompt, that the first
    sample found in the prefix cache; 0 of other samples."""

    request_id: str
    sample_index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    finish: Finish | None
    cached_tokens: int = 0


class PromptScoredEvent(Struct, frozen=True):
    """Log-probabilities of the next tokens of the prompt, from its second token on. Together they come before the
    request's first `TokensEvent`."""

    request_id: str
    logprobs: tuple[TokenLogprob, ...]


class PooledEvent(Struct, frozen=True):
    """The vector of a pooled request, before its end."""

    request_id: str
    vector: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class FinishedEvent:
    """The one terminal event of a request. `finishes` holds how each sample ended, by sample index."""

    request_id: str
    finishes: tuple[Finish, ...]
    timings: Timings


Event = PromptScoredEvent | PooledEvent | TokensEvent | FinishedEvent
