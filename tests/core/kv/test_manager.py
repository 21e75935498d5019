"""KV memory: what sequences allocate, share and free."""

from __future__ import annotations

import random
from typing import Any

import pytest

from inflight.core.kv.block_tables import BlockTables
from inflight.core.kv.manager import KVCacheManager
from inflight.core.sequence import Sequence
from inflight.core.types.plan import Capacity

from ..builders import sequence

SIZE = 4


def memory_of(blocks: int, size: int = SIZE, prefix_caching: bool = True, **more: Any) -> KVCacheManager:
    allocation = more.pop("allocation", "paged")
    return KVCacheManager(
        Capacity(blocks, size, 8, more.pop("max_model_len", 100), 50, **more), prefix_caching, allocation
    )


def computed(memory: KVCacheManager, one: Sequence, tokens: int) -> Sequence:
    one.num_computed = tokens
    memory.publish(one)
    return one


def admitted(memory: KVCacheManager, one: Sequence) -> Sequence:
    assert memory.admit(one, spare=0)
    return one


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 1), (SIZE - 1, 1), (SIZE, 1), (SIZE + 1, 2), (2 * SIZE, 2)])
def test_blocks_for_the_known_tokens(tokens: int, blocks: int) -> None:
    memory = memory_of(8, SIZE, prefix_caching=True)
    one = sequence(prompt=[0] * tokens)
    assert memory.admit(one, spare=0) and one.blocks == [*range(blocks)]
    assert (one.num_computed, memory._pool.held) == (0, blocks)


@pytest.mark.parametrize(
    ("tokens", "hits"), [(SIZE - 1, 0), (SIZE, 0), (SIZE + 1, 1), (2 * SIZE, 1), (2 * SIZE + 1, 2)]
)
def test_one_token_is_always_left_to_compute(tokens: int, hits: int) -> None:
    """A prompt of exactly one block that is cached computes it again: the next token is sampled from its last one."""
    memory = memory_of(8, SIZE, prefix_caching=True)
    first = computed(memory, admitted(memory, sequence(0, [0] * tokens)), tokens)
    second = admitted(memory, sequence(1, [0] * tokens))
    assert second.num_computed == hits * SIZE
    assert second.blocks[:hits] == first.blocks[:hits]
    assert not set(second.blocks[hits:]) & set(first.blocks)


@pytest.mark.parametrize(("scored", "hits"), [(0, 0), (SIZE - 1, 0), (SIZE, 1), (2 * SIZE + 1, 2), (3 * SIZE, 3)])
def test_only_scored_positions_come_from_the_cache(scored: int, hits: int) -> None:
    """Positions that still want a score must be computed; when all have theirs, the prompt is found like any other."""
    memory = memory_of(16, SIZE, prefix_caching=True)
    prompt = [0] * (3 * SIZE + 1)
    computed(memory, admitted(memory, sequence(0, prompt)), len(prompt))
    second = sequence(1, prompt, prompt_logprobs=0)
    second.scored = scored
    assert memory.num_cached_tokens(second) == hits * SIZE
    assert admitted(memory, second).num_computed == hits * SIZE
    sibling = admitted(memory, sequence(2, prompt, sample=1, prompt_logprobs=0))
    assert sibling.num_computed == 3 * SIZE


def test_the_cache_outlives_its_sequence() -> None:
    memory = memory_of(3, 1, prefix_caching=True)
    first = computed(memory, admitted(memory, sequence(0, [0, 1, 2])), 3)
    memory.free(first)
    assert (first.blocks, first.num_computed) == ([], 0)
    assert (memory._pool.evictable, memory.num_free_blocks) == (3, 0)
    assert admitted(memory, sequence(1, [0, 1, 2])).num_computed == 2


def test_eviction_takes_ends_before_roots() -> None:
    memory = memory_of(3, 1, prefix_caching=True)
    memory.free(computed(memory, admitted(memory, sequence(0, [0, 1, 2])), 3))
    memory.free(admitted(memory, sequence(1, [5])))
    again = sequence(2, [0, 1, 2])
    memory.admit(again, spare=0)
    assert again.num_computed == 2


def test_admission_fails_without_effect_where_too_few_blocks_stay_spare() -> None:
    memory = memory_of(4, SIZE, prefix_caching=True)
    one = sequence(prompt=[0] * 9)
    assert not memory.admit(one, spare=2)
    assert (one.blocks, memory.num_available_blocks) == ([], 4)
    assert memory.admit(one, spare=1)


def test_evictable_hits_are_not_counted_as_room() -> None:
    """A cached block that the sequence shares cannot be evicted for it."""
    memory = memory_of(3, SIZE, prefix_caching=True)
    memory.free(computed(memory, admitted(memory, sequence(0, [0] * 9)), 9))
    assert (memory._pool.evictable, memory.num_free_blocks) == (2, 1)
    one = sequence(1, [0] * 12)
    assert not memory.admit(one, spare=1)
    assert memory.admit(one, spare=0)
    assert (one.num_computed, memory.num_available_blocks) == (8, 0)


@pytest.mark.parametrize("caching", [True, False])
def test_samples_share_their_prompt_with_and_without_the_prefix_cache(caching: bool) -> None:
    memory = memory_of(8, SIZE, prefix_caching=caching)
    first = computed(memory, admitted(memory, sequence(0, [0] * 6, n=2)), 6)
    second = admitted(memory, sequence(1, [0] * 6, sample=1, n=2))
    assert second.blocks[0] == first.blocks[0]
    assert memory._pool.ref_count(first.blocks[0]) == 2
    other = admitted(memory, sequence(2, [0] * 6, n=2))
    assert (other.blocks[0] == first.blocks[0]) == caching


def test_without_the_prefix_cache_a_lone_sample_leaves_nothing_behind() -> None:
    memory = memory_of(8, SIZE, prefix_caching=False)
    one = computed(memory, admitted(memory, sequence(0, [0] * 8)), 8)
    memory.free(one)
    memory.free_request(one)
    assert (memory.num_free_blocks, memory._pool.evictable, len(memory._prefix)) == (8, 0, 0)


def test_without_the_prefix_cache_a_request_finds_its_own_blocks_until_it_ends() -> None:
    """After a preemption, and for samples that come when the first one has ended already."""
    memory = memory_of(8, SIZE, prefix_caching=False)
    first = computed(memory, admitted(memory, sequence(0, [0] * 9, n=2)), 9)
    memory.preempt(first, swap=False)
    assert (first.blocks, memory._pool.evictable) == ([], 2)
    assert admitted(memory, first).num_computed == 8
    memory.free(first)
    second = admitted(memory, sequence(1, [0] * 9, sample=1, n=2))
    assert second.num_computed == 8
    memory.preempt(second, swap=False)
    memory.free(second)
    memory.free_request(second)
    assert (memory.num_free_blocks, len(memory._prefix)) == (8, 0)


def test_salts_share_nothing() -> None:
    memory = memory_of(8, SIZE, prefix_caching=True)
    computed(memory, admitted(memory, sequence(0, [0] * 6, cache_salt="a")), 6)
    assert admitted(memory, sequence(1, [0] * 6, cache_salt="b")).num_computed == 0
    assert admitted(memory, sequence(2, [0] * 6, cache_salt="a")).num_computed == 4


def test_a_block_is_allocated_when_a_block_end_is_crossed() -> None:
    memory = memory_of(3, SIZE, prefix_caching=True)
    one = admitted(memory, sequence(prompt=[0] * SIZE))
    assert memory.allocate(one, SIZE) == ()
    assert memory.allocate(one, SIZE + 1) == (1,)
    assert one.blocks == [0, 1]
    assert memory.allocate(one, 4 * SIZE) is None
    assert one.blocks == [0, 1]


def test_only_full_blocks_of_known_tokens_are_published() -> None:
    """At depth 2 a block may be computed up to a token whose value is not known yet."""
    memory = memory_of(4, SIZE, prefix_caching=True)
    one = admitted(memory, sequence(prompt=[0] * 7))
    assert len(computed(memory, one, 7).blocks) == 2 and one.num_published_blocks == 1
    computed(memory, one, 8)
    assert one.num_published_blocks == 1
    one.num_pending = 1
    one.append(3)
    memory.publish(one)
    assert (one.num_published_blocks, one.num_pending) == (2, 0)


def test_forgotten_content_is_not_found_and_held_blocks_stay_held() -> None:
    memory = memory_of(6, SIZE, prefix_caching=True)
    memory.free(computed(memory, admitted(memory, sequence(0, [0] * 8)), 8))
    held = computed(memory, admitted(memory, sequence(1, [1] * 8)), 8)
    memory.forget_all()
    assert (memory.num_free_blocks, memory._pool.held, memory._pool.evictable) == (4, 2, 0)
    assert admitted(memory, sequence(2, [1] * 8)).num_computed == 0
    memory.free(held)
    assert memory._pool.evictable == 0


def test_exclusive_blocks_are_those_that_no_other_sequence_holds() -> None:
    memory = memory_of(20)
    one = computed(memory, admitted(memory, sequence(0, prompt=[0] * (2 * SIZE))), 2 * SIZE)
    other = admitted(memory, sequence(1, prompt=[0] * (2 * SIZE + 1)))
    assert one.blocks == other.blocks[:2]
    assert [len(memory._tables.exclusive_blocks(some)) for some in ([one], [other], [one, other])] == [0, 1, 3]


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
    memory = memory_of(200, max_model_len=100)
    running = []
    for number in range(12):
        prompt = [draws.randrange(2)] * SIZE * draws.randrange(1, 4) + [number + 2] * draws.randrange(1, 9)
        running.append(computed(memory, admitted(memory, sequence(number, prompt)), len(prompt)))
    for blocks in range(1, memory._pool.held + 2):
        some = draws.sample(running, len(running))
        assert memory.fewest_victims(some, blocks) == fewest_by_trying(memory._tables, some, blocks)


def test_each_table_is_walked_through_twice_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = memory_of(200)
    running = [admitted(memory, sequence(number, [number] * SIZE)) for number in range(40)]
    walks, blocks_of = [], BlockTables.blocks_of
    monkeypatch.setattr(BlockTables, "blocks_of", lambda self, one: walks.append(one) or blocks_of(self, one))
    assert len(memory.fewest_victims(running, 40)) == 40
    assert len(walks) < 2 * 40
