"""Where in a sequence its recurrent state is copied: the policy of snapshots.

Knows positions, all of them multiples of the block size; no slots, and not what else is cached. A sequence that finds
blocks of its prefix goes on from the last of them that has a snapshot beside it, and computes the rest again. So a
snapshot is worth what lies between it and the one before, times how likely somebody comes by:

- the **end** of what is known: the last boundary that a second request with the same prompt can begin from, which
  leaves a token to compute. Repeated prompts, further samples of a request, and conversations that go on come by.
- the **branch**: where blocks that a sequence found end beyond the last snapshot. Somebody with the same beginning was
  there before, and two are a sign that more will come: system prompts are found so, whatever their length is.
- **marks** in long prompts, every `interval` tokens: for those that are preempted on their way, or share a beginning
  that nobody branched off yet. They are the first to go.
- while **decoding**, the newest boundary, in the place of the one before: conversations come back with their answer,
  preempted sequences with their output.

None is taken less than `least` tokens from the one before: so few are soon computed again, and a copy reads and writes
as much as a token does of the state.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SnapshotSpacing:
    """Tokens. interval: between marks. least: between any two."""

    interval: int = 1024
    least: int = 64

    def ends(self, known: int, branch: int, newest: int, start: int, size: int) -> list[int]:
        """Of a sequence that computes known tokens, from `start` on: what is worth a slot before all else, rising.

        known: tokens; branch: where the blocks that it found end, 0 where that is no news; newest: position of its last
        snapshot; size: of a block. A branch close before the end goes before it, since more come by there."""
        last = (known - 1) // size * size
        if branch <= start or branch - newest < self.least:
            return [last] if last - newest >= self.least and last > start else []
        return [branch, last] if last - branch >= self.least else [branch]

    def marks(self, ends: list[int], known: int, newest: int, start: int, end: int, size: int) -> list[int]:
        """Those in a chunk of known tokens that ends at `end`, rising. ends: also those beyond the chunk."""
        every = -(-self.interval // size) * size
        last = min(end, (known - 1) // size * size)
        passed = range((start // every + 1) * every, last + 1, every)
        return [at for at in passed if at - newest >= self.least and all(abs(one - at) >= self.least for one in ends)]

    def decoded(self, newest: int, start: int, end: int, size: int) -> int | None:
        """The boundary that a chunk behind all known boundaries comes to, if it is worth a slot."""
        at = end // size * size
        return at if at > start and at - newest >= self.least else None
