"""Tiers of simulated engines: the core's own rules over blocks that are kept nowhere, in times that were said."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from msgspec import structs

from inflight.records.schema import RecordError, read_records
from inflight.simulate import transfers
from inflight.simulate.replay import replay
from inflight.simulate.simulation import Pool, SimulationSetup, simulate
from inflight.simulate.transfers import Folder, TransferRate
from inflight.workload.workload import Entry, Workload

from .setups import Affine, chat, pool

SMALL = pool(model=Affine(), num_blocks=20)
TWELVE = 193  # tokens, of which twelve blocks can be found


def prompts(*contents: int, gap: float = 9.0) -> Workload:
    """Prompts of these contents, one after the other."""
    entries = (Entry(gap * at, TWELVE, 2, prefix=(one,), block_size=192) for at, one in enumerate(contents))
    return Workload(tuple(entries), "one after the other")


def kept(of: Pool, blocks: int = 1000, block_s: float = 0.001) -> Pool:
    return replace(of, folder=Folder(blocks, TransferRate(block_s, 0.002), TransferRate(0.001)))


def on_host(of: Pool, seconds: float | None, beside: bool) -> Pool:
    capacity = structs.replace(of.capacity, host_blocks=100, asynchronous_transfers=beside)
    rate = None if seconds is None else TransferRate(seconds)
    return replace(of, capacity=capacity, settings=replace(of.settings, kv_cache_host=1.0), host=rate)


def first_tokens(workload: Workload, of: Pool) -> list[float]:
    return [one.ttft or 0.0 for one in simulate(workload, SimulationSetup(of)).observations]


def test_what_was_evicted_comes_back_from_the_folder_in_its_time_unless_it_was_used_longest_ago() -> None:
    """Not all blocks of the first prompt are left: 9 come from the folder in 0.011 s, and one token is computed."""
    alone, _, again = first_tokens(prompts(1, 2, 1), kept(SMALL))
    assert alone == pytest.approx(4 * 0.01 + 0.193)
    assert again == pytest.approx(0.002 + 0.009 + 0.011)
    assert first_tokens(prompts(1, 2, 1), SMALL)[2] == pytest.approx(0.101)
    run = simulate(prompts(1, 2, 3, 1), SimulationSetup(kept(SMALL, blocks=24)))
    assert [one.cached_tokens for one in run.observations] == [0, 0, 0, 0]
    assert simulate(prompts(1, 2, 1), SimulationSetup(kept(SMALL, blocks=24))).observations[2].cached_tokens == 192


def test_a_checkpoint_takes_as_long_and_as_much_of_the_folder_as_blocks_of_its_bytes() -> None:
    """11 of 12 blocks are before a checkpoint, and 17 tokens behind it are computed."""

    def with_states(state_blocks: int, blocks: int = 1000) -> Pool:
        capacity = structs.replace(SMALL.capacity, state_snapshots=1, state_blocks=state_blocks)
        return kept(replace(SMALL, capacity=capacity), blocks)

    small, large = (simulate(prompts(1, 2, 1), SimulationSetup(with_states(count))) for count in (1, 51))
    assert [one.cached_tokens for one in large.observations] == [0, 0, 176]
    first, again = (run.observations[2].ttft or 0.0 for run in (small, large))
    assert again - first == pytest.approx(0.050)
    full = simulate(prompts(1, 2, 1), SimulationSetup(with_states(51, blocks=120)))
    assert full.observations[2].cached_tokens == 0, "two checkpoints and 24 blocks are more than 120"


def test_a_slow_disk_is_left_alone_once_that_is_known() -> None:
    """9 blocks in 9 s, which takes 0.2 s to compute: once steps are known, too, most are computed."""
    run = simulate(prompts(*(1, 2) * 24, gap=30.0), SimulationSetup(kept(SMALL, block_s=1.0)))
    tiers = run.replicas[0].last.kv.tiers
    assert tiers is not None
    assert tiers.declined > 3 * tiers.brought > 0


def test_replicas_see_what_others_have_written_after_a_while() -> None:
    two = kept(replace(SMALL, replicas=2))
    soon = simulate(prompts(1, 1, gap=9.0), SimulationSetup(two)).observations
    late = simulate(prompts(1, 1, gap=transfers.LOOK_SECONDS + 2), SimulationSetup(two)).observations
    assert (soon[1].cached_tokens, late[1].cached_tokens) == (0, 192)


def test_no_request_waits_for_writes() -> None:
    """A disk that never ends one: times are those without a folder."""
    never = replace(pool(model=Affine()), folder=Folder(1000, TransferRate(0.001), TransferRate(3.0)))
    assert first_tokens(prompts(1, 2, 3), never) == first_tokens(prompts(1, 2, 3), pool(model=Affine()))


def beginnings(different: int) -> Workload:
    """Prompts of two blocks and a token, each beginning again after so many others."""
    entries = (Entry(1.0 * at, 33, 2, prefix=(at % different,), block_size=32) for at in range(40))
    return Workload(tuple(entries), "beginnings in turn")


@pytest.mark.parametrize(("beside", "seconds"), [(False, 0.011 + 0.004), (True, 0.011 + 0.002)])
def test_what_was_evicted_comes_back_from_the_host(beside: bool, seconds: float) -> None:
    """Within the step that computes the last token, which stores two of others as well; or before it, beside steps."""
    of = on_host(pool(model=Affine(), num_blocks=32), 0.001, beside)
    found = simulate(beginnings(17), SimulationSetup(of)).observations[-1]
    assert found.cached_tokens == 32
    assert found.ttft == pytest.approx(seconds)


def test_copies_within_steps_take_what_the_model_says_where_nothing_else_is_said() -> None:
    class Copying(Affine):
        def seconds(self, features):  # type: ignore[no-untyped-def]
            return super().seconds(features) + 0.5 * features.moved_blocks

    slow = first_tokens(prompts(1, 2, 3, 4, 1), on_host(pool(model=Copying(), num_blocks=32), None, beside=False))
    assert slow[-1] > 12 * 0.5


def test_a_busy_engine_with_every_tier_answers_all() -> None:
    entries = chat(40, 30.0, shared=64).entries
    turns = [Entry(0.0, one.prompt_tokens + 90, 9, after=at, think_s=0.5) for at, one in enumerate(entries)]
    workload = Workload((*entries, *turns), "turns")
    for depth, beside in product((1, 2), (False, True)):
        every = SimulationSetup(kept(on_host(pool(num_blocks=40, replicas=2, depth=depth), 0.0005, beside)))
        run = simulate(workload, every)
        assert all(one.outcome == "completed" for one in run.observations)
        assert run.observations == simulate(workload, every).observations
        assert all(one.last.kv.held_blocks == 0 for one in run.replicas)


def test_sessions_decide_what_is_evicted() -> None:
    """Steady turns of more sessions than fit: the least recently used is the next to come."""
    entries: list[Entry] = []
    for session in range(6):
        for turn in range(8):
            after = len(entries) - 1 if turn else None
            tokens = 97 + 20 * turn
            entries.append(Entry(3.0 * session, tokens, 3, after=after, think_s=20.0, session=f"s{session}"))
    hits = {}
    for eviction in ("lru", "sessions"):
        small = pool(num_blocks=50)
        of = replace(small, settings=replace(small.settings, kv_eviction=eviction))
        seen = simulate(Workload(tuple(entries), "sessions"), SimulationSetup(of)).observations
        hits[eviction] = sum(one.cached_tokens for one in seen)
    assert hits["sessions"] > hits["lru"]


def test_replay_of_records_with_tiers(tmp_path: Path) -> None:
    """With a host they make the same plans; a record does not have a folder's blocks."""
    workload = chat(30, 30.0, shared=64)
    few = pool(num_blocks=30)
    for beside in (False, True):
        simulate(workload, SimulationSetup(on_host(few, 0.001, beside)), tmp_path / "host.jsonl")
        _, outcome = replay(list(read_records(tmp_path / "host.jsonl")))
        assert outcome.difference is None and outcome.moved_blocks
    simulate(workload, SimulationSetup(kept(few)), tmp_path / "folder.jsonl")
    with pytest.raises(RecordError, match="whose blocks are not in the record"):
        replay(list(read_records(tmp_path / "folder.jsonl")))
