"""Protocols of decoders: compute a pass between its tokens and its logits, for the runner.

Knows that logits come in slabs, so that a wide batch over a large vocabulary needs little memory; no weights, and no
tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Protocol, TypeVar, runtime_checkable

from inflight.core.types.plan import Chunk

T = TypeVar("T")


class LogitDecoder(Protocol):
    """Computes a pass's logits; batch: a pass of the backend that it was made for."""

    max_logit_rows: int

    def logits(self, batch: Any, places: Sequence[int]) -> Any: ...


class PassDecoder(LogitDecoder, Protocol):
    """Computes the layers as well, or the vectors and scores of texts behind them."""

    max_tokens: int

    @property
    def places(self) -> Mapping[str, Any]:
        """`WeightPlace`s: where layers' matrices are, by their usual names, for what changes them; empty where nothing
        does."""

    def forward(self, batch: Any) -> None: ...

    def pooled(self, batch: Any, texts: Sequence[range]) -> Any: ...


@runtime_checkable
class Captures(Protocol):
    """A decoder around another that keeps graphs of the passes it is given."""

    @property
    def uncaptured(self) -> PassDecoder: ...


class Masks(Protocol):
    """Grammar masks of a pass's draws, in the order in which its chunks sample."""

    def take(self, count: int) -> Sequence[Any]:
        """Return bits of the next `count` draws, as `SamplingBatch.allowed` has them; waits until they are filled."""


def sample(decoder: LogitDecoder, batch: Any, chunks: Sequence[Chunk], masks: Masks | None = None) -> None:
    """Draws at the positions of a computed pass that its chunks sample."""
    ends = accumulate(chunk.length for chunk in chunks)
    sampled = [place for chunk, end in zip(chunks, ends, strict=True) for place in range(end - chunk.sample, end)]
    for places in slabs(sampled, decoder.max_logit_rows):
        logits = decoder.logits(batch, places)
        if masks is None:
            batch.sample(logits, places)
        else:
            batch.sample(logits, places, masks.take(len(places)))


def slabs(places: Iterable[T], most: int) -> Iterator[list[T]]:
    """At most so many of them at once, in order."""
    left = list(places)
    for first in range(0, len(left), most):
        yield left[first : first + most]
