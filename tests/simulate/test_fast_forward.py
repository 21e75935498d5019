"""Steady decodes left out of plans, and taken at once: all is as if the engine's scheduler had made every plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import pytest
from drawn import examples
from hypothesis import given, settings
from msgspec import structs

from inflight.config.scheduling import SchedulingSettings
from inflight.core.estimation.output_length import PredictionError
from inflight.core.kv import manager
from inflight.core.kv.checkpoint_spacing import CheckpointSpacing
from inflight.core.kv.state_checkpoints import CheckpointSlots
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.scheduling.stats import SchedulerStats
from inflight.core.types.plan import BatchPlan
from inflight.simulate import simulation
from inflight.simulate.condensed_plan import AlikeSteps
from inflight.simulate.disagg import DisaggMode, Link
from inflight.simulate.fast_forward import FastForward
from inflight.simulate.omitted import TOKEN
from inflight.simulate.simulation import Simulation, SimulationSetup, has_distinct_prompts, simulate
from inflight.simulate.unlearned import UnlearnedScheduler
from inflight.workload.workload import Entry, Workload

from .setups import chat, pool


def both(workload: Workload, setup: SimulationSetup) -> Iterator[tuple[Simulation, list[Any], int]]:
    """Yield stepped and skipped: the results, the schedulers' state at the end, and the tokens that no plan held. The
    engine's own scheduler takes the steps, which learns from each."""
    stepped_plans: list[dict[int, Any]] = []
    for fast in (False, True):
        schedulers, plans = list[Scheduler](), list[dict[int, Any]]()
        omitted = 0
        make = simulation.scheduler_for

        def made(
            *arguments: Any,
            schedulers: list[Scheduler] = schedulers,
            plans: list[dict[int, Any]] = plans,
            make: Any = make,
            **named: Any,
        ) -> Scheduler:
            schedulers.append(make(*arguments, **named))
            plans.append(noted_plans(schedulers[-1]))
            return schedulers[-1]

        def drained(self: FastForward, drain: Any = FastForward.drain_tokens) -> Any:
            nonlocal omitted
            tokens = drain(self)
            omitted += sum(one.last - one.first for one in tokens)
            return tokens

        with (
            mock.patch.object(simulation, "scheduler_for", made),
            mock.patch.object(FastForward, "drain_tokens", drained),
            mock.patch.object(simulation, "UnlearnedScheduler", lambda config, distinct_prompts: Scheduler(config)),
            mock.patch.object(simulation, "has_distinct_prompts", has_distinct_prompts if fast else never),
        ):
            run = simulate(workload, replace(setup, fast_forward=fast))
        replicas = [replace(one, last=without_predictions(one.last)) for one in run.replicas]
        if fast:
            assert_same_blocks(plans, stepped_plans)
        stepped_plans = plans
        distinct = has_distinct_prompts(workload, setup)
        yield replace(run, replicas=replicas), [state(one, distinct) for one in schedulers], omitted


def never(*arguments: Any) -> bool:
    """Say that prompts may share a block: the engine's own scheduler tells them apart by their tokens."""
    return False


def assert_same_blocks(skipped: list[dict[int, Any]], stepped: list[dict[int, Any]]) -> None:
    """Each plan that fast-forward makes leaves as many blocks free and evictable, and as many tokens of those that wait
    cached."""
    for plans, all_plans in zip(skipped, stepped, strict=True):
        for step, (free, evictable, cached) in plans.items():
            assert (free, len(evictable), cached) == (all_plans[step][0], len(all_plans[step][1]), all_plans[step][2])


def noted_plans(scheduler: Scheduler) -> dict[int, Any]:
    """Have a scheduler note, after each plan, its free blocks, the evictable ones in order, and the cached tokens of
    those that wait; return these by step."""
    noted, make_plan, memory = dict[int, Any](), scheduler.plan, scheduler._memory

    def plan(*arguments: Any, **named: Any) -> Any:
        made = make_plan(*arguments, **named)
        if isinstance(made, BatchPlan):
            waiting = [one for lane in scheduler._lanes.all() for one in lane.queue.everyone()]
            cached = {one.number: memory.num_cached_tokens(one) for one in waiting}
            noted[made.step] = memory.num_free_blocks, memory._pool.evictable_blocks(), cached
        return made

    scheduler.plan = plan  # type: ignore[method-assign]
    return noted


def without_predictions(stats: SchedulerStats) -> SchedulerStats:
    """Return the counts without the error of predicted lengths, which fast-forward does not predict."""
    return replace(stats, predictions=PredictionError())


def state(scheduler: Scheduler, distinct: bool) -> dict[str, Any]:
    """Return rows, blocks and their cached content, in order; where requests share nothing, which block it is does not
    matter. distinct: no content of ended requests is kept. It reads private attributes, as `core.inspect_scheduler`."""
    memory, running, lanes = scheduler._memory, scheduler._running, scheduler._lanes
    named = not (memory.defers_publishing or distinct)
    idle = [one if named or distinct else memory._prefix.at_block(one).key for one in memory._pool._evictable]
    return {
        "snapshot": without_predictions(scheduler.stats()),
        "free": list(memory._pool._free) if named else memory.num_free_blocks,
        "idle": len(idle) if distinct else idle,
        "found": None
        if distinct
        else [(key, one.node, one.block if named else 0) for key, one in memory._prefix._by_key.items()],
        "rows": (list(running._free_rows), list(running._freed_rows)),
        "served": [lane.service for lane in lanes.all()],
        "round": scheduler._round_began,
        "snapshots": slots(memory._states.slots),
    }


def slots(of: CheckpointSlots) -> dict[str, Any]:
    """Return the checkpoints of recurrent state: where each is found, its sequence, and which is evicted next."""
    kept = [list(shelf) for shelf in of._cached]
    return {"free": of._free, "found": of._by_node, "kept": kept, "takers": of._takers, "held": of._holders}


def spaced(least: int) -> Any:
    """Snapshots no closer than that; marks at twice the distance."""
    return mock.patch.object(manager, "CheckpointSpacing", lambda: CheckpointSpacing(2 * least, least))


def assert_same(workload: Workload, setup: SimulationSetup) -> float:
    """Returns the share of output tokens that no plan held."""
    (stepped, stepped_state, none), (skipped, skipped_state, omitted) = both(workload, setup)
    assert none == 0
    assert skipped.observations == stepped.observations
    assert skipped.replicas == stepped.replicas
    assert skipped.extrapolated == stepped.extrapolated
    assert skipped_state == stepped_state
    return omitted / max(1, sum(one.output_tokens for one in stepped.observations))


DRAWN = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10_000),
        "rate": st.sampled_from([0.5, 3.0, 20.0, 1000.0]),
        "strategy": st.sampled_from(["chunked", "continuous"]),
        "allocation": st.sampled_from(["paged", "reserve-request", "reserve-max"]),
        "num_blocks": st.sampled_from([16, 25, 60, 400]),
        "max_rows": st.sampled_from([1, 3, 8]),
        "shared": st.sampled_from([0, 48]),
        "replicas": st.sampled_from([1, 3]),
        "concurrency": st.sampled_from([None, 4]),
        "follow": st.booleans(),
        "distinct": st.booleans(),
        "moves": st.booleans(),
        "prefix_caching": st.booleans(),
        "budget": st.sampled_from([8, 24, 64]),
        "overruns": st.booleans(),
        "router": st.sampled_from(["round-robin", "least-loaded"]),
        "until": st.sampled_from([None, 1.0]),
        "state_snapshots": st.sampled_from([0, 1, 3, 40]),
        "least": st.sampled_from([16, 48]),
        "depth": st.sampled_from([1, 2]),
        "asks": st.sampled_from(["after", "first"]),
        "first_token": st.sampled_from(["decode", "prefill"]),
    }
)


def run_of(drawn: dict[str, Any]) -> tuple[Workload, SimulationSetup]:
    """Return the workload and the setup that were drawn."""
    entries = chat(15, drawn["rate"], drawn["seed"], shared=drawn["shared"]).entries
    if drawn["overruns"]:  # with a step in flight, one more is planned behind the last token
        entries = tuple(replace(one, max_tokens=one.output_tokens + 1 + at % 3) for at, one in enumerate(entries))
    if drawn["distinct"]:
        entries = tuple(replace(one, prompt_tokens=one.prompt_tokens + 3) for one in entries)
    if drawn["follow"]:
        entries = followed(entries)
    workload = Workload(entries, "chat", drawn["concurrency"], until=drawn["until"])
    asked = SchedulingSettings.of(strategy=drawn["strategy"], kv_allocation=drawn["allocation"])
    names = ("prefix_caching", "num_blocks", "max_rows", "budget", "state_snapshots", "depth", "replicas", "router")
    one = pool(asked, **{name: drawn[name] for name in names})
    moves = drawn["moves"] and drawn["prefix_caching"] and not drawn["state_snapshots"]
    mode = DisaggMode(drawn["asks"], drawn["first_token"])
    return workload, SimulationSetup(one, one if moves else None, Link(5e5, 1.0), disagg_mode=mode)


@given(DRAWN)
@settings(examples(50), deadline=None)
def test_skipping_is_stepping(drawn: dict[str, Any]) -> None:
    with spaced(drawn["least"]):
        assert_same(*run_of(drawn))


@given(DRAWN)
@settings(examples(50), deadline=None)
def test_skipping_is_stepping_where_prompts_are_distinct(drawn: dict[str, Any]) -> None:
    fixed = {
        "distinct": True,
        "shared": 0,
        "follow": False,
        "moves": False,
        "prefix_caching": True,
        "state_snapshots": 0,
    }
    workload, setup = run_of(drawn | fixed)
    assert has_distinct_prompts(workload, setup)
    assert_same(workload, setup)


def followed(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Return the entries, and a turn behind each."""
    turns = (Entry(0.0, one.prompt_tokens + 70, 9, after=at, think_s=0.3) for at, one in enumerate(entries))
    return (*entries, *turns)


@pytest.mark.parametrize("turns", [False, True])
def test_the_first_token_is_delivered_once_by_the_pool_that_has_it_first(turns: bool) -> None:
    """A decode engine that is asked first, and has no room for the prompt's blocks, computes the prompt itself: it may
    be through before the prefill engine has begun."""
    entries = chat(15, 0.5, 1).entries
    entries = followed(entries) if turns else entries
    one = pool(num_blocks=16, max_rows=1, budget=8)
    setup = SimulationSetup(one, one, Link(5e5, 1.0), disagg_mode=DisaggMode("first", "prefill"))
    run = simulate(Workload(entries, "chat"), setup)
    for each, entry in zip(run.observations, entries, strict=True):
        assert len(each.token_times) == entry.output_tokens and list(each.token_times) == sorted(each.token_times)


DEPTHS = pytest.mark.parametrize("depth", [1, 2])


@DEPTHS
def test_nearly_all_tokens_of_an_idle_engine_are_in_no_plan(depth: int) -> None:
    assert assert_same(chat(20, 0.5), SimulationSetup(pool(depth=depth))) > 0.8


@DEPTHS
def test_a_busy_engine_skips_steps_too(depth: int) -> None:
    """With prompts in most of its steps, and waiting requests in many."""
    setup = SimulationSetup(pool(max_rows=16, depth=depth))
    busy = simulate(chat(100, 60.0), setup)
    assert max(one.ttft or 0.0 for one in busy.observations) > 0.3
    assert assert_same(chat(100, 60.0), setup) > 0.8


@DEPTHS
def test_steps_of_a_long_prompt_and_of_full_rows_are_skipped_too(depth: int) -> None:
    """The prompts take eight tokens of a step beside decodes; more requests come than there are rows."""
    filled = SchedulingSettings.of(early_end_tokens=0)
    long = [Entry(0.2 * index, 400, 40) for index in range(6)]
    many = [Entry(0.0, 5 + index, 40) for index in range(30)]
    for entries, of in (
        (long, pool(filled, budget=16, max_rows=8, depth=depth)),
        (many, pool(max_rows=4, depth=depth)),
    ):
        workload, skipped = Workload(tuple(entries), "prompts"), list[int]()

        def skip(self: FastForward, alike: AlikeSteps, times: Any, real: Any = FastForward.skip) -> Any:
            skipped.append(len(times) - 1)  # noqa: B023 (called within this round)
            return real(self, alike, times)

        with mock.patch.object(FastForward, "skip", skip):
            assert assert_same(workload, SimulationSetup(of)) > 0.7
        assert sum(skipped) > 0.6 * simulate(workload, SimulationSetup(of)).steps


def test_decodes_that_take_snapshots_are_in_no_plan_either() -> None:
    """With slots enough, and with so few that what one takes was another's."""
    workload = Workload(tuple(Entry(0.1 * index, 200, 300) for index in range(6)), "six")
    for state_snapshots in (40, 2):
        setup = SimulationSetup(pool(state_snapshots=state_snapshots))
        assert assert_same(workload, setup) > 0.8
        (_, (ended,), _), _ = both(workload, setup)
        decoded = [place for place in ended["found"] if place[1] in ended["snapshots"]["found"]]
        assert any(set(key[1:]) == {TOKEN} for key, _, _ in decoded)
    # All come to the end of a block in the same step, and there is one slot.
    workload = Workload(tuple(Entry(0.0, 8, 300) for _ in range(4)), "four")
    assert assert_same(workload, SimulationSetup(pool(state_snapshots=1))) > 0.8


@DEPTHS
def test_no_sequence_is_omitted_where_blocks_run_short(depth: int) -> None:
    """Where memory is short all step, and are omitted again when there is enough of it."""
    filled = SchedulingSettings.of(early_end_tokens=0)  # want comes sooner
    setup = SimulationSetup(pool(filled, num_blocks=30, depth=depth))
    assert simulate(chat(60, 20.0), setup).preemptions > 0
    assert 0.05 < assert_same(chat(60, 20.0), setup) < 0.9


DISTINCT = tuple(replace(one, prompt_tokens=one.prompt_tokens + 3) for one in chat(60, 20.0).entries)
SHORT = pool(num_blocks=30)  # of blocks


def stepped(setup: SimulationSetup, *, distinct: bool) -> tuple[Simulation, dict[int, Any]]:
    """Simulate distinct prompts step by step, as such or as any; return the results and what `noted_plans` returns."""
    noted: list[dict[int, Any]] = []

    def made(config: SchedulerConfig, *, distinct_prompts: bool) -> Scheduler:
        assert distinct_prompts == distinct
        scheduler = UnlearnedScheduler(config, distinct_prompts=distinct_prompts)
        noted.append(noted_plans(scheduler))
        return scheduler

    with (
        mock.patch.object(simulation, "has_distinct_prompts", lambda *given: distinct and has_distinct_prompts(*given)),
        mock.patch.object(simulation, "UnlearnedScheduler", made),
    ):
        return simulate(Workload(DISTINCT, "distinct"), replace(setup, fast_forward=False)), noted[0]


@DEPTHS
def test_distinct_prompts_are_planned_as_any(depth: int) -> None:
    """With blocks that run short: each plan leaves as many blocks free, the same ones evictable, in the same order, and
    a preempted sequence finds as many of its tokens."""
    workload, setup = Workload(DISTINCT, "distinct"), SimulationSetup(replace(SHORT, depth=depth))
    assert has_distinct_prompts(workload, setup)
    (known, distinct), (unknown, plain) = stepped(setup, distinct=True), stepped(setup, distinct=False)
    assert known.preemptions == unknown.preemptions > 0
    assert (known.observations, known.replicas) == (unknown.observations, unknown.replicas)
    assert distinct == plain
    assert any(evictable for _, evictable, _ in plain.values())
    assert any(tokens for *_, cached in plain.values() for tokens in cached.values())
    assert 0.05 < assert_same(workload, setup) < 0.9


@pytest.mark.parametrize(
    ("changes", "of"),
    [
        ({"prefix": (1,), "block_size": 8}, {}),
        ({"after": 0, "think_s": 0.1}, {}),
        ({"prompt": "a text"}, {}),
        ({"prompt_tokens": 7}, {}),
        ({}, {"prefix_caching": False}),
        ({}, {"state_snapshots": 4}),
        ({}, {"host_blocks": 9}),
    ],
)
def test_prompts_that_may_have_a_block_in_common_are_not_distinct(changes: dict[str, Any], of: dict[str, Any]) -> None:
    first, second = Entry(0.0, 8, 4), Entry(0.0, 8, 4)
    setup = SimulationSetup(pool(**of))
    assert has_distinct_prompts(Workload((first, second), "two"), SimulationSetup(pool()))
    assert not has_distinct_prompts(Workload((first, replace(second, **changes)), "two"), setup)


@pytest.mark.parametrize(("field", "value"), [("block_size", 4), ("vocab_size", 255)])
def test_few_tokens_of_a_block_do_not_make_prompts_distinct(field: str, value: int) -> None:
    small = replace(SHORT, capacity=structs.replace(SHORT.capacity, **{field: value}))
    assert has_distinct_prompts(Workload(DISTINCT, "distinct"), SimulationSetup(SHORT))
    assert not has_distinct_prompts(Workload(DISTINCT, "distinct"), SimulationSetup(small))


def test_a_second_pool_reads_the_content_of_prompts() -> None:
    assert not has_distinct_prompts(Workload(DISTINCT, "distinct"), SimulationSetup(SHORT, SHORT, Link(5e5, 1.0)))


@DEPTHS
def test_preempted_sequences_find_their_blocks_whether_requests_share_them_or_not(depth: int) -> None:
    """Where requests share nothing, blocks are published when their sequence is preempted; in the first run at once."""
    setups = [SimulationSetup(pool(num_blocks=30, depth=depth, prefix_caching=caching)) for caching in (True, False)]
    at_once, _ = stepped(setups[0], distinct=False)
    without_sharing = simulate(Workload(DISTINCT, "distinct"), setups[1])
    counts = [
        (one.preemptions, one.recomputed_tokens)
        for run in (at_once, without_sharing)
        for one in (run.replicas[0].last,)
    ]
    assert counts[0] == counts[1] and counts[0][0] > 0


def test_tokens_of_prompts_change_nothing_where_none_looks_at_them(tmp_path: Path) -> None:
    workload, setup = Workload(DISTINCT, "distinct"), SimulationSetup(pool(num_blocks=30, prefix_caching=False))
    with_tokens = simulate(workload, setup, tmp_path / "record.jsonl")  # which has them
    without = simulate(workload, setup)
    assert without.observations == with_tokens.observations
    assert without.preemptions == with_tokens.preemptions > 0


@DEPTHS
def test_the_second_pool_goes_fast_too(depth: int) -> None:
    link = Link(bytes_per_token=1e5, gbps=8.0)
    two = pool(replicas=2, depth=depth)
    assert assert_same(chat(40, 5.0), SimulationSetup(two, two, link)) > 0.5


@DEPTHS
def test_blocks_go_by_rank_to_those_that_moved_in_another_order(depth: int) -> None:
    """The first comes second to the second pool, for its prompt is longer; both need a block in the same step."""
    link = Link(bytes_per_token=1e6, gbps=8.0)
    for length in range(5, 21):
        workload = Workload((Entry(0.0, 100, 60), Entry(0.001, length, 90)), "two")
        assert assert_same(workload, SimulationSetup(pool(replicas=2, depth=depth), pool(depth=depth), link)) > 0.5


def test_blocks_that_are_alike_are_found_as_the_first_of_them_has_them() -> None:
    """With a step in flight they become full at the same commit; which of them are kept, their order says."""
    entries = [Entry(0.001 * index, 64, 100 + 7 * index, prefix=(1,), block_size=64) for index in range(6)]
    for prefix_caching in (True, False):
        setup = SimulationSetup(pool(depth=2, prefix_caching=prefix_caching))
        assert assert_same(Workload(tuple(entries), "six alike"), setup) > 0.7


def test_schedulers_that_use_step_costs_or_state_ahead_take_every_step() -> None:
    assert assert_same(chat(10, 0.5), SimulationSetup(pool(depth=2, state_snapshots=4))) == 0
    for asked in (
        SchedulingSettings.of(strategy="adaptive"),
        SchedulingSettings.of(policy="deadline"),
        SchedulingSettings.of(admission="auto"),
        SchedulingSettings.of(preemption="auto", swap_space=1.0),
        SchedulingSettings.of(lanes={"batch": {"max_rows": 1}}),
    ):
        assert assert_same(chat(10, 0.5), SimulationSetup(pool(asked))) == 0
    assert assert_same(chat(10, 0.5, lane="batch"), SimulationSetup(pool())) == 0
