"""Compute a step in forward passes: decoders of passes, cutting chunks to their limits, and draws from their logits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Protocol, TypeVar, runtime_checkable

from msgspec import structs

from inflight.core.types.plan import Chunk, Scored

T = TypeVar("T")


class LogitDecoder(Protocol):
    """Computes a pass's logits; batch: a pass of the backend that it was made for."""

    max_logit_rows: int

    def logits(self, batch: Any, places: Sequence[int]) -> Any: ...


class PassDecoder(LogitDecoder, Protocol):
    """Computes the layers as well, or the vectors and scores of texts behind them."""

    max_tokens: int

    @property
    def weight_slices(self) -> Mapping[str, Any]:
        """Return the `WeightSlice`s of layers' matrices, by their usual names, for adapters; none where no adapter is
        computed."""

    def forward(self, batch: Any) -> None: ...

    def pooled(self, batch: Any, texts: Sequence[range]) -> Any: ...


@runtime_checkable
class Captures(Protocol):
    """A decoder around another that stores graphs of the passes that it computes."""

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


def slabs(places: Iterable[T], max_count: int) -> Iterator[list[T]]:
    """Yield at most so many of them at once, in order."""
    left = list(places)
    for first in range(0, len(left), max_count):
        yield left[first : first + max_count]


def passes(chunks: Sequence[Chunk], limit: int, cut: bool = True) -> Iterator[list[Chunk]]:
    """Split chunks, in order, into passes of at most `limit` tokens. cut: whether a chunk may go on in the next pass.
    Blocks come with a chunk's first piece; drafts, samples and a vector with its last; each scored position and each
    snapshot with its own. The positions that a chunk samples are never cut. Raises ValueError for a chunk that is
    longer than the limit but may not be cut, or samples at more than `limit` positions."""
    if 0 < sum(chunk.length for chunk in chunks) <= limit:  # as most steps do
        yield list(chunks)
        return
    part: list[Chunk] = []
    room = limit
    for chunk in chunks:
        if chunk.sample > limit:
            raise ValueError(f"a chunk samples at {chunk.sample} positions, but a pass has room for {limit} tokens")
        if not cut and chunk.length > room:
            if chunk.length > limit:
                raise ValueError(f"a text of {chunk.length} tokens is not cut, and a pass has room for {limit}")
            yield part
            part, room = [], limit
        while chunk.length > room:
            room = min(room, chunk.length - chunk.sample)
            if room:
                end, score = chunk.start + room, chunk.score
                before, after = range(score.start, min(score.stop, end)), range(max(score.start, end), score.stop)
                taken = tuple(one for one in chunk.snapshots if one[0] <= end)
                part.append(
                    structs.replace(
                        chunk,
                        length=room,
                        sample=0,
                        score=before,
                        draft_token_ids=(),
                        num_drafts=0,
                        pool=False,
                        snapshots=taken,
                    )
                )
                chunk = structs.replace(
                    chunk,
                    start=end,
                    length=chunk.length - room,
                    new_blocks=(),
                    window_blocks=(),
                    score=after,
                    snapshots=chunk.snapshots[len(taken) :],
                )
            yield part
            part, room = [], limit
        part.append(chunk)
        room -= chunk.length
    if part:
        yield part


def joined(pieces: Iterable[Scored]) -> tuple[Scored, ...]:
    """Join scores to one entry per sequence, in order; of one that could not be scored the first error, and no
    log-probability."""
    of: dict[int, list[Scored]] = {}
    for piece in pieces:
        of.setdefault(piece.sequence_id, []).append(piece)
    return tuple(_one(together) for together in of.values())


def _one(pieces: list[Scored]) -> Scored:
    number, start = pieces[0].sequence_id, pieces[0].start
    if error := next((piece.error for piece in pieces if piece.error is not None), None):
        return Scored(number, start, (), error)
    return Scored(number, start, tuple(entry for piece in pieces for entry in piece.logprobs))
