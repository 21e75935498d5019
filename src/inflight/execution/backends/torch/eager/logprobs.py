"""Log-probabilities under the untouched logits, in double precision, and the likeliest tokens beside.

Knows logits alone; not how a token is chosen.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from inflight.execution.backends.torch.sampling_tensors import Scores


class Alternatives(NamedTuple):
    """The likeliest tokens of S rows. normalizer: subtracted from a logit, log Σ exp over the row."""

    normalizer: Tensor  # float64[S, 1]
    top_ids: Tensor  # int32[S, top], in order of falling log-probability, ties by rising id
    top_logprobs: Tensor  # float32[S, top]


def score(logits: Tensor, token_ids: Tensor, top_logprobs: int) -> Scores:
    logits = without_nan(logits)
    found = alternatives(logits, top_logprobs)
    return Scores(logprobs_of(logits, token_ids, found.normalizer), found.top_ids, found.top_logprobs)


def without_nan(logits: Tensor) -> Tensor:
    return torch.where(logits.isnan(), -torch.inf, logits)


def alternatives(logits: Tensor, top: int) -> Alternatives:
    """Return the `top` likeliest tokens of logits float32[S, V] without NaN, or all if there are fewer."""
    normalizer = torch.logsumexp(logits.double(), 1, keepdim=True)
    if not top:
        empty = logits[:, :0]
        return Alternatives(normalizer, empty.int(), empty)
    values, ids = torch.sort(logits, dim=1, descending=True, stable=True)
    return Alternatives(normalizer, ids[:, :top].int(), (values[:, :top].double() - normalizer).float())


def logprobs_of(logits: Tensor, token_ids: Tensor, normalizer: Tensor) -> Tensor:
    """Return the log-probability of one token id a row, int32[S] → float32[S]."""
    return (logits.gather(1, token_ids.long()[:, None]).double() - normalizer)[:, 0].float()
