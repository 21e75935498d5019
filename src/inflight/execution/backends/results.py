"""What came of a pass, in the plan's types: tokens with log-probabilities, drafts that were right, rows without a draw.

Knows core's results and the arrays that sampling yields; not how a backend computed them, nor slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from inflight.core.types.logprobs import TokenLogprob, TopLogprobs
from inflight.core.types.plan import Sampled
from inflight.execution.backends.protocol import SampledBatch, SamplingBatch, ScoredBatch

ALL_BANNED = (
    "After {position} tokens, allowed_token_ids, bad_words and min_tokens leave nothing to draw; allow more tokens."
)
UNSOUND = (
    "The model's logits after {position} tokens are not finite (NaN or infinite), so they mean no token; its weights "
    "are damaged, or its numbers overflow on this text: check the checkpoint, or try --dtype float32."
)
UNSOUND_VECTOR = (
    "The model's hidden state after {position} tokens is not finite (NaN or infinite), so that it is no vector; its "
    "weights are damaged, or its numbers overflow on this text: check the checkpoint, or try --dtype float32."
)


def token_logprob(told: SampledBatch | ScoredBatch, row: int, token_id: int, top: int) -> TokenLogprob:
    """What was told of a row, with the first `top` alternatives."""
    ids, values = told.top_ids[row, :top], told.top_logprobs[row, :top]
    alternatives = TopLogprobs.of_bytes(ids.tobytes(), values.tobytes()) if top else ()
    return TokenLogprob(token_id, float(told.logprobs[row]), alternatives)


def verified(drafts: Sequence[int], draws: Sequence[Sampled]) -> Sampled:
    """What counts of the draws of a chunk, one behind each draft and one before them: those up to the first that is not
    what was drafted. Of a draw that let nothing be drawn only the first is told; a later one comes again."""
    right = 0
    while right < len(drafts) and draws[right].token_ids == (drafts[right],):
        right += 1
    kept = draws[: right + 1]
    if kept[-1].error is not None:
        if not right:
            return kept[0]
        kept = kept[:-1]
    tokens = tuple(one.token_ids[0] for one in kept)
    logprobs = None if kept[0].logprobs is None else tuple(chain.from_iterable(one.logprobs or () for one in kept))
    return Sampled(kept[0].sequence_id, tokens, logprobs)


def unsound(sequence_id: int, batch: SamplingBatch, row: int, position: int, logit: float) -> Sampled:
    added = batch.bias_values[batch.bias_offsets[row] : batch.bias_offsets[row + 1]]
    is_banned = logit == -np.inf and (batch.allowed[row] is not None or bool(np.isneginf(added).any()))
    told = ALL_BANNED if is_banned else UNSOUND
    return Sampled(sequence_id, (), error=told.format(position=position))
