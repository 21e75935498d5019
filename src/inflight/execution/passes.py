"""Cutting a step into forward passes that fit the decoder's activations, and joining what they score.

Knows chunks and a limit. A plan may hold more tokens than one pass takes (a whole long prompt, a padded batch); because
a token's bits do not depend on how its sequence is cut, several passes yield what one would.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import structs

from inflight.core.types.plan import Chunk, Scored


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
    """One entry per sequence, whose positions were scored in several pieces, in order; of one that could not be scored
    the first error, and no log-probability."""
    of: dict[int, list[Scored]] = {}
    for piece in pieces:
        of.setdefault(piece.sequence_id, []).append(piece)
    return tuple(_one(together) for together in of.values())


def _one(pieces: list[Scored]) -> Scored:
    number, start = pieces[0].sequence_id, pieces[0].start
    if error := next((piece.error for piece in pieces if piece.error is not None), None):
        return Scored(number, start, (), error)
    return Scored(number, start, tuple(entry for piece in pieces for entry in piece.logprobs))
