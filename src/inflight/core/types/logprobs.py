"""Log-probabilities of tokens, as the engine tells them. Knows numbers; names of tokens come later.

A request may ask for twenty alternatives to each of thousands of tokens. As a pair of Python's objects each takes 116
bytes, and Python's allocator keeps the room long after they are gone; as numbers side by side it takes eight.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self, overload


class TopLogprobs(Sequence[tuple[int, float]]):
    """Pairs of token id and natural log-probability (float32), the likeliest first."""

    __slots__ = ("_logprobs", "_token_ids")

    def __init__(self, token_ids: array[int], logprobs: array[float]):
        """Equally many of both."""
        self._token_ids, self._logprobs = token_ids, logprobs

    @classmethod
    def of_bytes(cls, token_ids: bytes, logprobs: bytes) -> Self:
        """token_ids: int32. logprobs: float32. Both as they lie in memory."""
        return cls(array("i", token_ids), array("f", logprobs))

    def __len__(self) -> int:
        return len(self._token_ids)

    @overload
    def __getitem__(self, index: int) -> tuple[int, float]: ...

    @overload
    def __getitem__(self, index: slice) -> TopLogprobs: ...

    def __getitem__(self, index: int | slice) -> tuple[int, float] | TopLogprobs:
        if isinstance(index, slice):
            return TopLogprobs(self._token_ids[index], self._logprobs[index])
        return self._token_ids[index], self._logprobs[index]

    def __iter__(self) -> Iterator[tuple[int, float]]:
        return zip(self._token_ids, self._logprobs, strict=True)

    def __eq__(self, other: object) -> bool:
        """With any sequence of such pairs."""
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log-probability of a token under the untouched logits, with the likeliest alternatives."""

    token_id: int
    logprob: float
    top: Sequence[tuple[int, float]] = ()
