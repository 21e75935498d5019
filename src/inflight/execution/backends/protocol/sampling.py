"""Logits become tokens and log-probabilities, in one call for all rows of a pass: their settings, and what came of
them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inflight.execution.backends.protocol.number_formats import Array


class SamplingBatch(NamedTuple):
    """Settings of the S rows to sample, as arrays (struct of arrays, so that one native call serves all rows).

    Order of work per row, as vLLM does it: log-probabilities are taken from the untouched logits; then logits of tokens
    that are not `allowed` become -inf; then `bias`, then the repetition penalty (tokens of prompt and output),
    frequency and presence penalties (tokens of the output); temperature 0 takes the largest logit (lowest id on a
    tie); otherwise logits / temperature, min-p, top-k, top-p, and one draw. top-k keeps exactly k tokens; top-p keeps a
    token while the mass before it is below top_p times the mass that min-p and top-k left, and always one. NaN logits
    count as -inf; where the largest scaled logit is not finite, the row is greedy.

    The draw is u = ((w1 << 32 | w0) >> 11) · 2⁻⁵³ of the words w = philox4x32_10(key=seed, counter=(draw_index,
    sample_index, 0, 0)), against the cumulative float64 probabilities of the kept tokens in order of falling
    probability (ties by rising id); with nothing filtered (top_k 0, top_p 1, min_p 0) in order of rising id.
    """

    temperature: Array  # float32[S], 0 = greedy
    top_k: Array  # int32[S], 0 = off
    top_p: Array  # float32[S], 1 = off
    min_p: Array  # float32[S], 0 = off
    repetition_penalty: Array  # float32[S], 1 = off
    presence_penalty: Array  # float32[S], 0 = off
    frequency_penalty: Array  # float32[S], 0 = off
    seed: Array  # uint64[S]
    sample_index: Array  # uint32[S], i of "sample i of a request"
    draw_index: Array  # uint32[S], how many tokens this sample has drawn before
    histories: Sequence[Array | None]  # per row int32[known tokens]; None unless a penalty needs it
    prompt_lengths: Array  # int32[S]; histories[s][prompt_lengths[s]:] is the output
    bias_offsets: Array  # int32[S + 1]: row s adds bias_values[o[s]:o[s+1]] at token ids bias_ids[…] (-inf bans)
    bias_ids: Array  # int32[…]
    bias_values: Array  # float32[…]
    allowed: Sequence[Array | None]  # per row uint32[V / 32], bit i % 32 of word i // 32 lets token i be drawn; or all
    want_logprobs: Array  # bool[S]
    top_logprobs: Array  # int32[S], alternatives wanted beside the sampled token, 0 = none


class SampledBatch(NamedTuple):
    """Results of sampling. Log-probabilities are valid only in rows that asked for them; alternatives beyond a row's
    count are not meaningful. Alternatives come in order of falling log-probability (ties by rising id)."""

    token_ids: Array  # int32[S]
    logprobs: Array  # float32[S], of the sampled token under the untouched logits
    top_ids: Array  # int32[S, widest row]
    top_logprobs: Array  # float32[S, widest row]


class ScoredBatch(NamedTuple):
    """Log-probabilities of S given tokens, with alternatives as in `SampledBatch`."""

    logprobs: Array  # float32[S]
    top_ids: Array  # int32[S, widest row]
    top_logprobs: Array  # float32[S, widest row]
