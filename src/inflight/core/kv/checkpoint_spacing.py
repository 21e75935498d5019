"""Where in a sequence checkpoints of recurrent state are taken."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CheckpointSpacing:
    """Policy of where in a sequence checkpoints are taken, at multiples of the block size.

    A checkpoint saves the tokens between it and the one before, times the chance that another sequence has the same
    prefix:

    - The **end** of the known tokens: the last boundary from which a second request with the same prompt can begin with
      a token left to compute. It serves repeated prompts, further samples, and conversations whose history drops the
      reasoning. It leaves `tail` tokens, since a template may render the last tokens of a prompt differently in the
      next turn's history (`<think>` after the role).
    - The **branch**: the end of cached blocks beyond the last checkpoint. An earlier sequence had the same beginning,
      and a second one is a sign of more: system prompts of any length are found like this.
    - **Marks** in prompts, every `interval` tokens and one `min_gap` tokens before the end: for sequences that are
      preempted there, edit their last message, or share a beginning that no other has left yet. They are evicted first.
    - The **late mark**, half of `min_gap` before the end: a message edited late is computed again from there. It takes
      a free slot, and evicts no other checkpoint.
    - While **decoding**, the newest boundary replaces the one before: conversations come back with their answer,
      preempted sequences with their output. The next one comes a quarter of the answer later, a block at least and
      `min_gap` tokens at most: short answers are found whole, and copies for a long one stay rare.

    Attributes:
        interval: Tokens between marks.
        min_gap: Tokens before a branch or a mark since the last checkpoint (fewer are soon computed again, and a copy
            reads and writes as much of the state as a token does), and the most between two of an answer.
        tail: Tokens at a prompt's end that no checkpoint includes.
    """

    interval: int = 256
    min_gap: int = 64
    tail: int = 4

    def ends(self, known: int, branch: int, newest: int, start: int, size: int, is_exported: bool = False) -> list[int]:
        """Return the positions of the branch and the end, rising, as far as they are worth a slot.

        Args:
            known: Tokens of a sequence that computes known tokens.
            branch: Where its cached blocks end; 0: at the last checkpoint.
            newest: Position of its last checkpoint.
            start: Where its next chunk begins.
            size: Tokens of a block.
            is_exported: Whether a peer begins at the end, wherever the branch is.
        """
        last = self.last_boundary(known, size)
        if branch <= start or branch - newest < self.min_gap:
            return [last] if last > max(newest, start) else []
        is_distant = last - branch >= self.min_gap or (is_exported and last > branch)
        return [branch, last] if is_distant else [branch]  # more sequences come to a branch

    def marks(self, ends: list[int], known: int, newest: int, start: int, end: int, size: int) -> list[int]:
        """Return the marks in a chunk of known tokens up to `end`, rising. ends: those beyond the chunk, too."""
        every, last = -(-self.interval // size) * size, self.last_boundary(known, size)
        before = last - -(-self.min_gap // size) * size
        passed = range((start // every + 1) * every, min(end, before - self.min_gap) + 1, every)
        wanted = [*passed, before] if start < before <= end else passed
        gap = self.min_gap
        return [at for at in wanted if at - newest >= gap and all(abs(one - at) >= gap for one in ends)]

    def late_mark(self, ends: list[int], known: int, newest: int, start: int, end: int, size: int) -> int | None:
        """Return the late mark in a chunk of known tokens up to `end`; None: it has none."""
        half, last = self.min_gap // 2, self.last_boundary(known, size)
        at, mark = (last - -(-tokens // size) * size for tokens in (half, self.min_gap))
        is_distant = mark < at < last and at - newest >= half and all(abs(one - at) >= half for one in ends)
        return at if is_distant and start < at <= end else None

    def decoded(self, newest: int, prompt: int, start: int, end: int, size: int) -> int | None:
        """Return the boundary in a chunk of a decode up to `end` that is worth a copy; None: it has none. prompt:
        tokens of it."""
        at = end // size * size
        return at if at > start and at - newest >= min(self.min_gap, (at - prompt) // 4) else None

    def last_boundary(self, known: int, size: int) -> int:
        """Return the position of the end of so many known tokens; 0: no block is before it."""
        return max(0, known - max(1, self.tail)) // size * size
