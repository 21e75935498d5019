"""How much of a prompt's beginning came before: what a prefix cache without bounds would find.

Knows prompts in the order in which their requests ended, and keeps a number for each of their blocks.
"""

from __future__ import annotations

from collections.abc import Sequence


class Prefixes:
    def __init__(self, block_size: int):
        self._size = block_size
        self._known: set[int] = set()

    def seen(self, token_ids: Sequence[int], salt: str) -> int:
        """Leading tokens in whole blocks that an earlier prompt of the same salt began with; from now on this one is
        known, too. The last token is never looked up, as the next one is sampled from it."""
        chain, found, is_known = hash(salt), 0, True
        for start in range(0, len(token_ids) - self._size, self._size):
            chain = hash((chain, tuple(token_ids[start : start + self._size])))
            is_known = is_known and chain in self._known
            found += self._size * is_known
            self._known.add(chain)
        return found
