"""Block tables: their lengths, and windows."""

from __future__ import annotations

import pytest
from msgspec import structs

from inflight.core.kv.block_tables import Allocation, TableLayout
from inflight.core.policies.fcfs import Fcfs
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.strategies.chunked import Chunked
from inflight.core.types import kv_blocks
from inflight.core.types.plan import BatchPlan, Capacity, Sampled, StepResult

from .. import inspect_scheduler as inside
from ..builders import request, sequence

SIZE = 4


def layout_of(blocks: int = 100, allocation: Allocation = "paged", windows: tuple[int, ...] = (0,)) -> TableLayout:
    return TableLayout(Capacity(blocks, SIZE, 8, 40, 50, windows=windows), allocation, max_chunk_tokens=8)


@pytest.mark.parametrize(
    ("allocation", "to_the_end", "pool", "blocks"),
    [
        ("paged", False, 100, 2),
        ("paged", True, 100, 4),
        ("reserve-request", False, 100, 4),
        ("reserve-max", False, 100, 10),
        ("reserve-max", False, 3, 3),  # no table is longer than the pool
    ],
)
def test_a_table_at_admission(allocation: Allocation, to_the_end: bool, pool: int, blocks: int) -> None:
    """Give a prompt of 5 tokens, an output of up to 10, and a model of 40 their blocks."""
    one = sequence(prompt=[0] * 5, max_tokens=10, output=None)
    layout = layout_of(pool, allocation)
    assert layout.size(one, to_the_end) == blocks
    assert layout.max_sequence_tokens == pool * SIZE


def test_a_window_and_a_chunk_bound_the_length_of_a_table() -> None:
    """A window of 6 and chunks of 8: a query at position 20 sees 15 and on, which block 3 holds; wherever in a block
    that begins, 4 blocks hold 5 positions before a chunk and its 8."""
    layout = layout_of(windows=(0, 6))
    assert (layout.first_block(0, 20), layout.first_block(1, 20)) == (0, 3)
    assert (layout.length(0, 0, 9), layout.length(1, 3, 9), layout.length(1, 3, 5)) == (9, 7, 5)
    assert layout.max_blocks(40) == 10 + 4


def test_tokens_that_come_with_a_request_count_in_whole_blocks_until_a_preemption() -> None:
    one = sequence(prompt=[0] * 11)
    one.request = structs.replace(one.request, num_external_tokens=10)
    assert layout_of().external_tokens(one) == 2 * SIZE
    one.recompute_until = 1
    assert layout_of().external_tokens(one) == 0


@pytest.mark.parametrize(
    ("blocks", "groups", "fits", "words"),
    [
        (3, 1, 12, "4 KV blocks of 4 tokens, but there are 3 in all: it has 13 tokens, and there is room for 12"),
        (
            *(12, 3, 16),
            "15 KV blocks of 4 tokens (at most 5 for each of 3 groups of layers), but there are 12 in all: it has 17 "
            "tokens, and there is room for 16",
        ),
    ],
)
def test_a_shortage_is_reported_in_blocks_and_tokens(blocks: int, groups: int, fits: int, words: str) -> None:
    layout = layout_of(blocks, windows=(0,) * groups)
    assert layout.shortage(fits) is None and layout.shortage(fits + 1) == f"needs {words}"


@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 100])
@pytest.mark.parametrize("chunk", [1, 7, 16, 33])
def test_a_window_and_a_chunk_span_window_blocks_at_most(window: int, chunk: int) -> None:
    spans = []
    for start in range(200, 264):
        first = kv_blocks.first_seen(start, window) // BLOCK
        spans.append((start + chunk - 1) // BLOCK - first + 1)
    assert max(spans) == kv_blocks.window_blocks(window, chunk, BLOCK)


@pytest.mark.parametrize("windows", [(0,), (0, 5), (3,), (0, 0, 9, 2)])
@pytest.mark.parametrize("num_blocks", [1, 7, 30])
def test_the_longest_sequence_is_the_longest_that_fits(windows: tuple[int, ...], num_blocks: int) -> None:
    most = kv_blocks.max_sequence_tokens(num_blocks, 4, windows, 6, 200)
    fitting = [n for n in range(1, 200 + 1) if kv_blocks.max_blocks(n, 4, windows, 6) <= num_blocks]
    assert most == max(fitting, default=0)


# -- windows of thousands of tokens -----------------------------------------------------------------------------

BLOCK, WINDOW, CONTEXT, BUDGET = 16, 512, 8192, 512


class Endless:
    """Run a scheduler whose steps all yield the token 0."""

    def __init__(self, num_blocks: int, windows: tuple[int, ...], budget: int = BUDGET):
        capacity = Capacity(num_blocks, BLOCK, 256, CONTEXT + 1000, 100, windows=windows)
        limits = {"token_budget": budget, "longest_chunk": budget, "watermark": 0.0}
        self.scheduler = Scheduler(SchedulerConfig(capacity, Chunked(budget), Fcfs(), **limits))

    def add(
        self, name: str, tokens: int = CONTEXT, output: int = 900, first: int = 0, more: int = 0, arrival: float = 0.0
    ) -> None:
        """more: tokens behind those that any sequence with the same first one has."""
        prompt = (first, *[1] * (tokens - 1), *[2] * more)
        self.scheduler.add(request(name, prompt, None, max_tokens=output, arrival=arrival), 0.0)

    def step(self) -> bool:
        """Plan and commit a step; return whether there was one."""
        plan = self.scheduler.plan(0.0)
        if not isinstance(plan, BatchPlan):
            return False
        sampled = tuple(Sampled(chunk.sequence_id, (0,)) for chunk in plan.chunks if chunk.sample)
        self.scheduler.commit(plan, StepResult(plan.step, sampled, 0.01), 0.0)
        return True


def test_a_sequence_holds_the_blocks_of_its_window_and_a_chunk() -> None:
    windows = (0, WINDOW, 100)
    engine = Endless(3000, windows)
    engine.add("one")
    most = kv_blocks.max_blocks(CONTEXT, BLOCK, windows, BUDGET)
    assert most == 512 + 65 + 40
    (one,) = inside.samples(engine.scheduler, "one")
    while one.num_computed < CONTEXT + 100:
        engine.step()
        held = inside.held(engine.scheduler, one)
        assert len(held) == len(set(held)) == engine.scheduler.stats().kv.held_blocks <= most + 8
    by_group = [len(table) - at for table, at in zip(one.block_tables, one.num_freed_blocks, strict=True)]
    assert by_group == [519, 33, 7]
    snapshot = engine.scheduler.stats()
    assert snapshot.kv.used_slots <= snapshot.kv.held_slots


def test_a_prompt_that_can_never_fit_is_refused_with_the_blocks_it_needs() -> None:
    windows = (0, WINDOW)
    needed = kv_blocks.max_blocks(CONTEXT, BLOCK, windows, BUDGET)
    Endless(needed, windows).add("fits")
    words = f"needs {needed} KV blocks of 16 tokens .*of 2 groups.*, but there are {needed - 1} in all"
    with pytest.raises(Exception, match=words):
        Endless(needed - 1, windows).add("does not")


def test_a_prefix_needs_only_the_last_blocks_of_a_window() -> None:
    engine = Endless(700, (0, WINDOW))
    engine.add("first", output=1)
    while engine.step():
        pass
    memory = engine.scheduler._memory
    engine.add("again", output=1)
    (again,) = inside.samples(engine.scheduler, "again")
    assert memory.num_cached_tokens(again) == CONTEXT - BLOCK  # one token is left to compute
    chain = memory._sharing._lookups[again.number].chain.blocks
    behind = [one for one in chain if memory._prefix.in_group(one.node, 1) is not None]
    for one in behind[:-40]:
        memory._prefix.drop(memory._prefix.in_group(one.node, 1))
    assert memory.num_cached_tokens(again) == CONTEXT - BLOCK, "the middle does not matter"
    memory._prefix.drop(memory._prefix.in_group(chain[-5].node, 1))
    assert memory.num_cached_tokens(again) == (len(chain) - 5) * BLOCK


def test_a_prompt_whose_window_is_shared_preempts_the_lowest_ranked() -> None:
    """It slides past blocks that another sequence holds, and frees none; the last one is preempted, and all end."""
    engine = Endless(59, (0, 64), budget=32)
    scheduler = engine.scheduler
    engine.add("first", 300, output=200)
    for _ in range(14):
        engine.step()
    engine.add("last", 60, output=300, first=1)
    engine.step()
    engine.add("second", 300, output=5, more=300, arrival=-1.0)  # finds that of the first
    (second,) = inside.samples(scheduler, "second")
    preempted_inside = before = 0
    while engine.step():
        preempted_inside += scheduler.stats().preemptions - before and 300 < second.num_computed < 600
        before = scheduler.stats().preemptions
    assert scheduler.idle and preempted_inside
