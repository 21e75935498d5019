"""Sizes of passes that graphs are captured for, and passes that are filled up to one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inflight.core.types.plan import Chunk

_EXACT = 256  # tokens up to which sizes are close: where a pass waits for weights, more tokens cost little
_STEP = 64  # beyond


class Bucket(NamedTuple):
    """The shape of all passes of a graph. tokens: the number to which they are padded, in as many chunks. one_each:
    each chunk has one token; else any number, and some have none."""

    tokens: int
    one_each: bool

    @property
    def longest_chunk(self) -> int:
        """Return the most tokens that a chunk has."""
        return 1 if self.one_each else self.tokens


class Buckets(NamedTuple):
    """Sizes in tokens, rising. rows: of passes whose chunks have one token each; without any, these are among the
    others. tokens: of passes with chunks of any length, such as short prompts and decodes with drafts; without any,
    only the former have graphs."""

    rows: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()

    def of(self, chunks: Sequence[Chunk]) -> Bucket | None:
        """Return the smallest bucket that holds these chunks; None where none does."""
        return self.of_lengths([chunk.length for chunk in chunks])

    def of_lengths(self, lengths: Sequence[int]) -> Bucket | None:
        """Return the smallest bucket that holds chunks of so many tokens; None where none does."""
        one_each, tokens = bool(self.rows) and all(length == 1 for length in lengths), sum(lengths)
        least = next((size for size in (self.rows if one_each else self.tokens) if size >= tokens), None)
        return None if least is None or not tokens else Bucket(least, one_each)

    def padding(self) -> list[list[int]]:
        """Lengths of chunks of a pass of each size; short ones, as a sequence may be short. The largest of both kinds
        come first, then the smallest, which a launch by operation costs most."""
        ones = [[1] * size for size in self.rows]
        pairs = [[2] * (size // 2) + [1] * (size % 2) for size in self.tokens]
        return [*pairs[-1:], *ones[-1:], *sorted([*ones[:-1], *pairs[:-1]], key=sum)]


NO_BUCKETS = Buckets()


def row_sizes(most: int) -> tuple[int, ...]:
    """1, 2, 4, 8, then each sixteenth, and `most`, the largest. At most fifteen tokens of a pass, and seven of a small
    one, are filled up in vain."""
    return tuple(sorted({size for size in (1, 2, 4, 8, *range(16, most, 16)) if size < most} | {most}))


def token_sizes(most: int) -> tuple[int, ...]:
    """Return sizes of passes in tokens: as `row_sizes`, but with fewer where there are many tokens."""
    beyond = range(_EXACT + _STEP, most, _STEP)
    return tuple(sorted({*row_sizes(min(most, _EXACT)), *beyond, most}))


def filled_up(chunks: Sequence[Chunk], bucket: Bucket | None, row: int) -> Sequence[Chunk]:
    """Fill chunks up to a bucket: with chunks of one token of the padding row, at position 0, for missing tokens, then
    with empty ones for missing chunks."""
    if bucket is None:
        return chunks
    padding = bucket.tokens - sum(chunk.length for chunk in chunks)
    empty = bucket.tokens - len(chunks) - padding
    return [*chunks, *[Chunk(-1, row, 0, 1, (), 0)] * padding, *[Chunk(-1, row, 0, 0, (), 0)] * empty]
