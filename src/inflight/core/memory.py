"""KV memory as the scheduler sees it: sequences get, share, grow and lose blocks.

Joins the pool (who holds what) with the prefix cache (what is where). Knows sequences' tables; decides nothing: who
is admitted and who is preempted is the scheduler's. Allocation is paged (vLLM, arXiv 2309.06180): blocks for the known
tokens at admission, one more whenever a decode crosses a block's end.
"""

from __future__ import annotations

from collections.abc import Hashable

from inflight.core.blocks import BlockPool
from inflight.core.prefix import PrefixCache
from inflight.core.sequence import Sequence


class KVMemory:
    def __init__(self, num_blocks: int, block_size: int, prefix_caching: bool):
        self.block_size = block_size
        self.prefix = PrefixCache(block_size)
        self.pool = BlockPool(num_blocks, on_evict=self.prefix.drop)
        self._prefix_caching = prefix_caching

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def admit(self, sequence: Sequence, spare: int, to_the_end: bool = False) -> tuple[int, ...] | None:
        """Give a sequence without blocks the ones for all its known tokens, cached ones first.

        to_the_end: for all the tokens that it may ever have, so that nothing can stop it on its way.

        Sets `computed` to the cached tokens; at least one token is left to compute, since the next is sampled from
        it. Returns the table, or None (nothing changed) when fewer than `spare` blocks would stay available.
        """
        hits, node = self._find(sequence)
        fresh = self._fresh(sequence, hits, to_the_end)
        if not self._affordable(hits, fresh, spare):
            return None
        for block in hits:
            self.pool.share(block)
        sequence.blocks = hits + list(self.pool.take(fresh))
        sequence.published = len(hits)
        sequence.node = node
        sequence.computed = len(hits) * self.block_size
        return tuple(sequence.blocks)

    def fits(self, sequence: Sequence, spare: int) -> bool:
        """Whether `admit` would succeed now."""
        hits, _ = self._find(sequence)
        return self._affordable(hits, self._fresh(sequence, hits, False), spare)

    def cached_tokens(self, sequence: Sequence) -> int:
        """Leading tokens of a waiting sequence that are cached now."""
        return len(self._find(sequence)[0]) * self.block_size

    def _find(self, sequence: Sequence) -> tuple[list[int], Hashable]:
        root = self._root(sequence)
        if root is None:
            return [], None
        most = (sequence.known - 1) // self.block_size
        return self.prefix.match(root, sequence.token_slice(0, most * self.block_size), most)

    def _fresh(self, sequence: Sequence, hits: list[int], to_the_end: bool) -> int:
        blocks = self.blocks_for(sequence.known)
        if to_the_end:
            # All there is, if it may outgrow that: it then runs alone and ends when the memory does.
            longest = self.blocks_for(len(sequence.prompt) + sequence.most_output)
            blocks = max(blocks, min(longest, self.pool.num_blocks))
        return blocks - len(hits)

    def _affordable(self, hits: list[int], fresh: int, spare: int) -> bool:
        idle_hits = sum(self.pool.is_idle(block) for block in hits)
        return self.pool.available - idle_hits - fresh >= spare

    def grow(self, sequence: Sequence, tokens: int) -> tuple[int, ...] | None:
        """New blocks so that the table holds `tokens`; None (nothing changed) when there are too few."""
        missing = self.blocks_for(tokens) - len(sequence.blocks)
        if missing <= 0:
            return ()
        if missing > self.pool.available:
            return None
        fresh = self.pool.take(missing)
        sequence.blocks.extend(fresh)
        return fresh

    def publish(self, sequence: Sequence) -> None:
        """Make full blocks findable whose tokens are known and computed (or planned: steps run in order, and a step
        writes all keys and values of a layer before it reads any)."""
        if self._root(sequence) is None:
            return
        size = self.block_size
        full = min(sequence.computed, sequence.known) // size
        while sequence.published < full:
            start = sequence.published * size
            tokens = sequence.token_slice(start, start + size)
            sequence.node = self.prefix.publish(sequence.node, tokens, sequence.blocks[sequence.published])
            sequence.published += 1

    def release(self, sequence: Sequence) -> None:
        """The sequence gives up its blocks, last first, so that the ends of prefixes are evicted before their roots."""
        self.pool.release(reversed(sequence.blocks), keeps_content=self.prefix.__contains__)
        sequence.blocks = []
        sequence.published = 0
        sequence.node = None
        sequence.computed = 0

    def forget_all(self) -> None:
        """No cached content can be trusted any more (a step failed half-way)."""
        self.pool.forget_idle()
        self.prefix.clear()

    def _root(self, sequence: Sequence) -> Hashable:
        """Whom a sequence shares prefixes with: its salt; without prefix caching only the samples of its request."""
        request = sequence.request
        if self._prefix_caching:
            return ("salt", request.cache_salt)
        return ("request", sequence.number - sequence.sample_index) if request.params.n > 1 else None
