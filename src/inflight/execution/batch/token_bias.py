"""Changes of a sequence's logits before a draw: logit biases, and tokens that may not be drawn at all.

They depend on the output so far, with drafts that are taken for right, and so are read late, between the forward pass
and the draw. What never changes is put together once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from inflight.core.types.plan import NewRequest
from inflight.execution.backends.protocol import Array

Bias = tuple[Array, Array]  # token ids int32[B], and what is added to their logits float32[B]; -inf bans
NO_BIAS: Bias = (np.zeros(0, np.int32), np.zeros(0, np.float32))


@dataclass(frozen=True, slots=True)
class TokenBias:
    """always: at every position. early: in addition, before min_tokens output tokens exist. bad: sequences of two and
    more tokens, whose last one is not drawn where the others have just been; by the last of those others, so that a
    step looks at few of them. allowed: bits of the tokens that may be drawn, uint32[V / 32, rounded up]; None: all.
    forced: the output's first tokens."""

    always: Bias
    early: Bias
    min_tokens: int
    bad: Mapping[int, Sequence[tuple[int, ...]]]
    allowed: Array | None
    forced: tuple[int, ...]
    vocab_size: int

    def after(self, count: int) -> tuple[Bias, Array | None]:
        """Return the biases and the bits of allowed tokens behind so many output tokens, without bad sequences."""
        if count < len(self.forced):
            return NO_BIAS, bits([self.forced[count]], self.vocab_size)
        return (_joined(self.always, self.early) if count < self.min_tokens else self.always), self.allowed

    def with_bad(self, bias: Bias, output: Array) -> Bias:
        """Add the last tokens of bad sequences that an output, int32[N], has begun."""
        if not self.bad or len(output) < max(1, len(self.forced)):
            return bias
        ended = self._ended(output)
        return _joined(bias, _banned(np.array(ended, np.int32))) if ended else bias

    def sequences(self, count: int) -> list[tuple[int, ...]]:
        """Return the bad sequences that may have begun behind so many output tokens."""
        if count < len(self.forced):
            return []
        return [one for ended in self.bad.values() for one in ended if len(one) <= count + 1]

    def _ended(self, output: Array) -> list[int]:
        begun = self.bad.get(int(output[-1]), ())
        if not begun:
            return []
        recent = tuple(output[1 - max(map(len, begun)) :].tolist())
        return [one[-1] for one in begun if recent[1 - len(one) :] == one[:-1]]


def token_bias(new: NewRequest, vocab_size: int) -> TokenBias | None:
    """Return a request's bias of logits; None where nothing is ever added, and every token may be drawn."""
    params = new.params
    banned = new.banned_token_ids or new.bad_token_ids
    if not (params.logit_bias or params.allowed_token_ids is not None or banned or new.forced_token_ids):
        return None
    wished = np.fromiter(params.logit_bias, np.int32), np.fromiter(params.logit_bias.values(), np.float32)
    single = _banned(np.array([one[0] for one in new.bad_token_ids if len(one) == 1], np.int32))
    bad: dict[int, list[tuple[int, ...]]] = {}
    for one in new.bad_token_ids:
        if len(one) > 1:
            bad.setdefault(one[-2], []).append(one)
    return TokenBias(
        always=(np.concatenate([wished[0], single[0]]), np.concatenate([wished[1], single[1]])),
        early=_banned(np.array(new.banned_token_ids, np.int32)),
        min_tokens=params.min_tokens,
        bad=bad,
        allowed=None if params.allowed_token_ids is None else bits(params.allowed_token_ids, vocab_size),
        forced=new.forced_token_ids,
        vocab_size=vocab_size,
    )


def bits(token_ids: Iterable[int], vocab_size: int) -> Array:
    """Bit i % 32 of word i // 32 for each token i, uint32[V / 32, rounded up]."""
    ids, words = np.array(list(token_ids), np.uint32), np.zeros(-(-vocab_size // 32), np.uint32)
    np.bitwise_or.at(words, ids >> np.uint32(5), np.uint32(1) << (ids & np.uint32(31)))
    return words


def both(first: Array | None, second: Array | None) -> Array | None:
    """Bits of what two of them let be drawn; None: everything."""
    if first is None or second is None:
        return second if first is None else first
    return first & second


def _joined(first: Bias, second: Bias) -> Bias:
    return np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]])


def _banned(token_ids: Array) -> Bias:
    return token_ids, np.full(len(token_ids), -np.inf, np.float32)
