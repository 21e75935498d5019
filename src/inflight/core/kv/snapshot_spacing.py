"""Where in a sequence its recurrent state is copied: the policy of snapshots.

Knows positions, all of them multiples of the block size; no slots, and not what else is cached. A sequence that finds
blocks of its prefix goes on from the last of them that has a snapshot beside it, and computes the rest again. So a
snapshot is worth what lies between it and the one before, times how likely somebody comes by:

- the **end** of what is known: the last boundary that a second request with the same prompt can begin from, which
  leaves a token to compute. Repeated prompts, further samples of a request, and conversations whose history drops the
  reasoning come by. It leaves `tail` tokens, since a template may spell the last of a prompt another way in the next
  turn's history (`<think>` after the role), and a snapshot behind these would be of no use to any turn.
- the **branch**: where blocks that a sequence found end beyond the last snapshot. Somebody with the same beginning was
  there before, and two are a sign that more will come: system prompts are found so, whatever their length is.
- **marks** in prompts, every `interval` tokens and one `least` tokens before the end: for sequences that are preempted
  on their way, edit their last message, or share a beginning that no other has yet left. They are the first to go.
- the **late mark**, half of `least` before the end: a message edited late is computed again from there. It is worth a
  slot that is free, and no other snapshot.
- while **decoding**, the newest boundary, in the place of the one before: conversations come back with their answer,
  preempted sequences with their output. The next one comes a quarter of the answer later, a block at least and `least`
  tokens at most: all of a short answer is found, and copies for a long one stay rare.

Branches and marks stand `least` tokens from the snapshot before or more: so few are soon computed again, and a copy
reads and writes as much as a token does of the state.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SnapshotSpacing:
    """Tokens. interval: between marks. least: before a branch or a mark, and the most between two of an answer. tail:
    of a prompt, that no snapshot stands behind."""

    interval: int = 256
    least: int = 64
    tail: int = 4

    def ends(self, known: int, branch: int, newest: int, start: int, size: int) -> list[int]:
        """Of a sequence that computes known tokens, from `start` on: what is worth a slot before all else, rising.

        known: tokens; branch: where the blocks that it found end, 0 where that is no news; newest: position of its last
        snapshot; size: of a block. A branch close before the end goes before it, since more come by there."""
        last = self._last(known, size)
        if branch <= start or branch - newest < self.least:
            return [last] if last > max(newest, start) else []
        return [branch, last] if last - branch >= self.least else [branch]

    def marks(self, ends: list[int], known: int, newest: int, start: int, end: int, size: int) -> list[int]:
        """Those in a chunk of known tokens that ends at `end`, rising. ends: also those beyond the chunk."""
        every, last = -(-self.interval // size) * size, self._last(known, size)
        before = last - -(-self.least // size) * size
        passed = range((start // every + 1) * every, min(end, before - self.least) + 1, every)
        wanted = [*passed, before] if start < before <= end else passed
        return [at for at in wanted if at - newest >= self.least and all(abs(one - at) >= self.least for one in ends)]

    def late_mark(self, ends: list[int], known: int, newest: int, start: int, end: int, size: int) -> int | None:
        """Return where a chunk of known tokens that ends at `end` takes the late mark, if it does. ends: as above."""
        half, last = self.least // 2, self._last(known, size)
        at, mark = (last - -(-tokens // size) * size for tokens in (half, self.least))
        stands_alone = mark < at < last and at - newest >= half and all(abs(one - at) >= half for one in ends)
        return at if stands_alone and start < at <= end else None

    def decoded(self, newest: int, prompt: int, start: int, end: int, size: int) -> int | None:
        """Return the boundary that a chunk behind all known boundaries comes to, if it is worth a copy: a quarter of
        the answer so far, `least` at most, would be computed again without. prompt: tokens of it."""
        at = end // size * size
        return at if at > start and at - newest >= min(self.least, (at - prompt) // 4) else None

    def _last(self, known: int, size: int) -> int:
        """Return the end of a prompt as far as it is worth a snapshot: a token is left to compute in any case."""
        return max(0, known - max(1, self.tail)) // size * size
