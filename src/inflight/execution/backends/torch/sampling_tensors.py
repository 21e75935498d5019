"""Inputs and results of draws on a device. `protocol.SamplingBatch` has the meanings and the rules.

Settings lie in the slots' tensors and are gathered by row; what a step has of its own is small.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class DrawSettings(NamedTuple):
    """Draw settings of all slots, on the device; written when a row is taken."""

    temperature: Tensor  # float32[slots]
    top_p: Tensor  # float32[slots]
    min_p: Tensor  # float32[slots]
    repetition_penalty: Tensor  # float32[slots]
    presence_penalty: Tensor  # float32[slots]
    frequency_penalty: Tensor  # float32[slots]
    top_k: Tensor  # int32[slots]
    seed: Tensor  # int64[slots], the bits of the unsigned number
    sample_index: Tensor  # int64[slots]
    prompt_length: Tensor  # int32[slots]


class Bias(NamedTuple):
    """Biases of a pass's draws: draw s adds values[start[s]:start[s + 1]] at those token ids; -inf bans."""

    start: Tensor  # int32[S + 1]
    token_ids: Tensor  # int32[…]
    values: Tensor  # float32[…]


class BadSequences(NamedTuple):
    """Sequences of two and more tokens whose last is not drawn where the others, output tokens, have just been. Those
    of draw s are number start[s] to start[s + 1] - 1; sequence j is token_ids[offsets[j]:offsets[j + 1]]."""

    start: Tensor  # int32[S + 1]
    offsets: Tensor  # int32[… + 1]
    token_ids: Tensor  # int32[…]


class Draws(NamedTuple):
    """S draws behind known tokens. What no draw of a pass needs is None, and costs nothing.

    tokens: of all slots; the first num_tokens[s] of slot rows[s] stand before draw s. needs_history: there is a
    penalty. filters: some draw has top-k, top-p or min-p. greedy: all have temperature 0.
    """

    settings: DrawSettings
    rows: Tensor  # int32[S]
    num_tokens: Tensor  # int32[S]
    tokens: Tensor  # int32[slots, longest sequence + 1]
    needs_history: bool
    filters: bool
    greedy: bool
    longest_history: int  # no draw has more tokens before it
    bias: Bias | None
    bad: BadSequences | None
    allowed: Tensor | None  # int32[S, V / 32, rounded up]: bit i % 32 of word i // 32 lets token i be drawn
    want_logprobs: bool  # of some draw
    top_logprobs: int  # alternatives of the draw that wants most


class Drawn(NamedTuple):
    """is_sound: the drawn token's logit, penalties and biases included, is finite. Log-probabilities are None where
    no row wants any."""

    token_ids: Tensor  # int32[S]
    is_sound: Tensor  # bool[S]
    was_banned: Tensor  # bool[S]: not sound because every token was banned (its logit is -inf by `allowed` or a bias)
    logprobs: Tensor | None  # float32[S]
    top_ids: Tensor | None  # int32[S, top_logprobs]
    top_logprobs: Tensor | None  # float32[S, top_logprobs]


class Scores(NamedTuple):
    logprobs: Tensor  # float32[S]
    top_ids: Tensor  # int32[S, top_logprobs]
    top_logprobs: Tensor  # float32[S, top_logprobs]
