"""What the scheduler tells the world after a commit or an abort."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from inflight.core.logprobs import TokenLogprob
from inflight.core.stopping import Finish
from inflight.records.timings import Timings


class TokensEvent(NamedTuple):
    """New tokens of one sample; `finish` comes with the last of them."""

    request_id: str
    sample_index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None
    finish: Finish | None


@dataclass(frozen=True, slots=True)
class PromptScoredEvent:
    """Log-probabilities of the next tokens of the prompt, from its second token on. Together they come before the
    request's first `TokensEvent`."""

    request_id: str
    logprobs: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class FinishedEvent:
    """The one terminal event of a request. `finishes` holds how each sample ended, by sample index."""

    request_id: str
    finishes: tuple[Finish, ...]
    timings: Timings


Event = PromptScoredEvent | TokensEvent | FinishedEvent
