"""KV memory: what sequences allocate, share and free. `scheduling/test_scheduler` has prefixes between requests."""

from __future__ import annotations

import random

import pytest

from inflight.core.kv.block_tables import BlockTables
from inflight.core.kv.manager import KVCacheManager
from inflight.core.sequence import Sequence
from inflight.core.types.plan import Capacity

from ..builders import sequence

SIZE = 4


def memory_of(blocks: int, size: int = SIZE, prefix_caching: bool = True) -> KVCacheManager:
    return KVCacheManager(Capacity(blocks, size, 8, 100, 50), prefix_caching)


def admitted(memory: KVCacheManager, one: Sequence, computed: int = 0) -> Sequence:
    """Admit a sequence and compute so many of its tokens."""
    assert memory.admit(one, spare=0)
    if computed:
        one.num_computed = computed
        memory.publish(one)
    return one


@pytest.mark.parametrize(("scored", "hits"), [(0, 0), (SIZE - 1, 0), (SIZE, 1), (2 * SIZE + 1, 2), (3 * SIZE, 3)])
def test_only_scored_positions_come_from_the_cache(scored: int, hits: int) -> None:
    """Positions that still want a score must be computed; when all have theirs, the prompt is found like any other."""
    memory, prompt = memory_of(16), [0] * (3 * SIZE + 1)
    admitted(memory, sequence(0, prompt), len(prompt))
    second = sequence(1, prompt, prompt_logprobs=0)
    second.scored = scored
    assert memory.num_cached_tokens(second) == hits * SIZE == admitted(memory, second).num_computed
    assert admitted(memory, sequence(2, prompt, sample=1, prompt_logprobs=0)).num_computed == 3 * SIZE


def test_the_ends_of_prefixes_are_evicted_before_their_roots() -> None:
    memory = memory_of(3, 1)
    memory.free(admitted(memory, sequence(0, [0, 1, 2]), 3))
    assert (memory.num_free_blocks, memory.num_available_blocks) == (0, 3)
    memory.free(admitted(memory, sequence(1, [5])))
    assert admitted(memory, sequence(2, [0, 1, 2])).num_computed == 2


def test_evictable_hits_are_not_counted_as_room() -> None:
    """A cached block that the sequence shares cannot be evicted for it."""
    memory = memory_of(3)
    memory.free(admitted(memory, sequence(0, [0] * 9), 9))
    one = sequence(1, [0] * 12)
    assert not memory.admit(one, spare=1)
    assert (one.blocks, memory.num_available_blocks) == ([], 3)
    assert memory.admit(one, spare=0)
    assert (one.num_computed, memory.num_available_blocks) == (8, 0)


def test_without_the_prefix_cache_a_request_finds_its_own_blocks_until_it_ends() -> None:
    """After a preemption, and for samples that come when the first one has ended already."""
    memory = memory_of(8, prefix_caching=False)
    first = admitted(memory, sequence(0, [0] * 9, n=2), 9)
    memory.preempt(first, swap=False)
    assert admitted(memory, first).num_computed == 8
    memory.free(first)
    second = admitted(memory, sequence(1, [0] * 9, sample=1, n=2))
    assert second.num_computed == 8
    assert admitted(memory, sequence(2, [0] * 9, n=2)).num_computed == 0
    memory.free(second)
    memory.free_request(second)
    assert memory.num_free_blocks == 8 - 3


def test_only_full_blocks_of_known_tokens_are_published() -> None:
    """At depth 2 a block may be computed up to a token whose value is not known yet."""
    memory = memory_of(4)
    one = admitted(memory, sequence(prompt=[0] * 7), 7)
    counts = [one.num_published_blocks]
    one.num_computed, one.num_pending = 8, 1
    memory.publish(one)
    counts.append(one.num_published_blocks)
    one.append(3)
    memory.publish(one)
    assert [*counts, one.num_published_blocks] == [1, 1, 2]


def fewest_by_trying(tables: BlockTables, sequences: list[Sequence], blocks: int) -> list[Sequence]:
    """Add one after the other until they are enough; then leave out each that is not needed."""
    for count in range(1, len(sequences) + 1):
        victims = sequences[:count]
        if len(tables.exclusive_blocks(victims)) >= blocks:
            for victim in victims[:-1]:
                rest = [other for other in victims if other is not victim]
                victims = rest if len(tables.exclusive_blocks(rest)) >= blocks else victims
            return victims
    return []


@pytest.mark.parametrize("seed", range(10))
def test_fewest_victims_are_those_of_an_exhaustive_search(seed: int) -> None:
    draws = random.Random(seed)
    memory, running = memory_of(200), []
    for number in range(12):
        prompt = [draws.randrange(2)] * SIZE * draws.randrange(1, 4) + [number + 2] * draws.randrange(1, 9)
        running.append(admitted(memory, sequence(number, prompt), len(prompt)))
    for blocks in range(1, memory.stats(running).held_blocks + 2):
        some = draws.sample(running, len(running))
        assert memory.fewest_victims(some, blocks) == fewest_by_trying(memory._tables, some, blocks)


def test_each_table_is_walked_through_twice_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = memory_of(200)
    running = [admitted(memory, sequence(number, [number] * SIZE)) for number in range(40)]
    walks, blocks_of = [], BlockTables.blocks_of
    monkeypatch.setattr(BlockTables, "blocks_of", lambda self, one: walks.append(one) or blocks_of(self, one))
    assert len(memory.fewest_victims(running, 40)) == 40
    assert len(walks) < 2 * 40
