"""The invariants of docs/invariants.md under everything that can happen, in any order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from msgspec import structs

from inflight.core.kv.checkpoint_spacing import CheckpointSpacing
from inflight.core.scheduling.step import Step
from inflight.core.sequence import Sequence
from inflight.core.types.request import SLO, Request
from inflight.core.types.sampling import NO_SAMPLING, Adapter, PoolingParams, SamplingParams

from .harness import POLICIES, STRATEGIES, Harness, LaneSetup, Setup
from .tiers import GIVES, TAKES, RememberingTier

MAX_ROWS, MAX_BUDGET = 4, 9
FLAGS = st.booleans()
ADAPTERS = [Adapter("a", ""), Adapter("a", "", 1), Adapter("b", ""), Adapter("c", "")]
WINDOWS = [(0,), (0,), (0,), (0, 2), (0, 5), (0, 3, 3), (0, 0, 4), (1,), (4,), (7, 3)]  # of KV groups


@st.composite
def lane_setups(draw: st.DrawFn, rows: int, budget: int) -> tuple[LaneSetup, ...]:
    """The two that are always there and perhaps a third; what they keep for themselves leaves a row for the others."""
    lanes, rows = [], rows - 1
    for name in ("interactive", "batch", "third")[: draw(st.integers(2, 3))]:
        given: dict[str, Any] = {"background": name == "batch" or draw(st.booleans())} if name != "interactive" else {}
        if draw(st.booleans()):
            rows -= given.setdefault("min_rows", draw(st.integers(0, rows)))
            budget -= given.setdefault("min_tokens", draw(st.integers(0, budget)))
        optional = {
            "weight": st.sampled_from([0.5, 3.0]),
            "max_rows": st.integers(max(1, given.get("min_rows", 0)), MAX_ROWS),
            "max_tokens": st.integers(max(1, given.get("min_tokens", 0)), MAX_BUDGET),
            "chunk": st.integers(1, 4),
            "queue_limit": st.integers(1, 4),
        }
        for key, values in optional.items():
            if draw(st.integers(0, 3)) == 0:
                given[key] = draw(values)
        lanes.append(LaneSetup(name, draw(st.sampled_from(POLICIES)), tuple(given.items())))
    return tuple(lanes)


@st.composite
def tiers(draw: st.DrawFn, block_size: int) -> RememberingTier | None:
    """With much room, or little."""
    most = draw(st.sampled_from([None, 3, 100]))
    return None if most is None else RememberingTier(block_size, most)


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    """Every strategy with every policy, allocation and way of preemption."""
    beyond, peers = draw(st.booleans()), draw(st.booleans())
    max_rows, token_budget = draw(st.integers(1, MAX_ROWS)), draw(st.integers(1, MAX_BUDGET))
    windows = draw(st.sampled_from(WINDOWS))
    snapshots = draw(st.sampled_from([0, 0, 1, 2, 3, 6, 20]))
    block_size = draw(st.integers(1, 2 if beyond else 4))
    depth = draw(st.integers(1, 2))
    host_blocks, host_is_tier, session_eviction = draw(st.sampled_from([0, 2, 30])), draw(FLAGS), draw(FLAGS)
    return Setup(
        num_blocks=draw(st.integers(3, 12)) * len(windows),
        block_size=block_size,
        max_rows=max_rows,
        token_budget=token_budget,
        prefix_caching=draw(st.sampled_from([beyond, True])),
        watermark=draw(st.sampled_from([0.0, 0.1, 0.5])),
        max_model_len=draw(st.sampled_from([8, 24])),
        depth=depth,
        prefill_suspension=draw(st.sampled_from([0.0, 0.5, 1.0, 3.0])) if depth == 1 else 0.0,
        strategy=draw(st.sampled_from(STRATEGIES)),  # type: ignore[arg-type]
        batch_size=draw(st.integers(1, max_rows)),
        patience=draw(st.sampled_from([0.25, 2.0])),
        itl_target=draw(st.sampled_from([0.01, 0.125])),
        early_end=draw(st.sampled_from([0, 1, 3, 5])),
        lanes=draw(lane_setups(max_rows, token_budget)),
        allocation=draw(
            st.sampled_from(["paged", "paged", "expected-peak", "expected-peak", "reserve-request", "reserve-max"])
        ),
        preemption=draw(st.sampled_from(["recompute", "swap", "auto"])),
        host_blocks=host_blocks,
        copy_seconds=draw(st.sampled_from([1e-4, 0.1])),
        host_is_tier=host_is_tier,
        session_eviction=session_eviction,
        oracle=draw(st.booleans()),
        lane_floor=draw(st.sampled_from([0.0, 0.05, 0.4])),
        right_drafts=None if snapshots else draw(st.sampled_from([None, 0.0, 0.5, 0.9, 1.0])),
        drafting=draw(st.sampled_from(["planned", "executor", "fickle", "measured", "measured executor"])),
        transfer_polls=draw(st.sampled_from([(), (), (0,), (1, 0, 3), (2, 5)])),
        lost_transfers=draw(st.sampled_from([0, 1, 2, 3])),
        windows=windows,
        snapshots=snapshots,
        spacing=CheckpointSpacing(draw(st.integers(1, 8)), draw(st.integers(1, 4)), draw(st.integers(1, 4)))
        if snapshots
        else CheckpointSpacing(),
        adapter_slots=draw(st.sampled_from([0, 0, 1, 2, 3])),
        tier=draw(tiers(block_size)) if beyond else None,
        peers=beyond and peers,
        # Prompts have blocks in common all the time: no token may change.
        distinct_prompts=not (beyond or host_blocks or host_is_tier or session_eviction) and draw(FLAGS),
    )


SETUPS = setups()


@st.composite
def sampling_params(draw: st.DrawFn) -> SamplingParams:
    max_tokens = draw(st.one_of(st.none(), st.just(0), st.integers(1, 12)))
    return SamplingParams(
        n=draw(st.integers(1, 3)),
        temperature=draw(st.sampled_from([0.0, 1.0])),
        max_tokens=max_tokens,
        min_tokens=draw(st.integers(0, 4 if max_tokens is None else min(4, max_tokens))),
        stop=draw(st.sampled_from([(), (), ("ab",), ("c", "dd")])),
        stop_token_ids=draw(st.sampled_from([(), (), (2,), (3, 4)])),
        ignore_eos=draw(st.booleans()),
        prompt_logprobs=draw(st.sampled_from([None, None, 0, 2])),
    )


@st.composite
def requests(draw: st.DrawFn, max_prompt: int = 10) -> Request:
    """Prompts of two letters, so that prefixes collide; of some a vector is all that is wanted."""
    pooling = draw(st.sampled_from([None, None, None, PoolingParams(), PoolingParams(normalize=False)]))
    forced = draw(st.one_of(st.none(), st.none(), st.integers(1, 14)))
    return Request(
        request_id="",
        prompt_token_ids=tuple(draw(st.lists(st.integers(0, 1), min_size=1, max_size=max_prompt))),
        params=draw(sampling_params()) if pooling is None else NO_SAMPLING,
        pooling=pooling,
        seed=draw(st.integers(0, 2)),
        cache_salt=draw(st.sampled_from(["", "", "tenant"])),
        forced_output_tokens=forced if pooling is None else None,
        lane=draw(st.sampled_from(["interactive", "interactive", "batch", "third"])),
        tenant=draw(st.sampled_from(["", "b", "c"])),
        session=draw(st.sampled_from(["", "one", "two"])),
        priority=draw(st.integers(-1, 2)),
        slo=SLO(
            ttft=draw(st.sampled_from([None, 0.1, 2.0])),
            itl=draw(st.sampled_from([None, None, 0.06])),
            tpot=draw(st.sampled_from([None, None, 0.06])),
        ),
        adapter=draw(st.sampled_from([None, None, *ADAPTERS])),
        kv_transfer=draw(st.sampled_from([None, *GIVES, *TAKES])),
    )


def fitted(request: Request, setup: Setup, **changes: Any) -> Request:
    """The request in a lane that there is, with a priority only where it means something, an adapter only where there
    are slots, and peers only where there are any."""
    lane = next((lane for lane in setup.lanes if lane.name == request.lane), setup.lanes[0])
    priority = request.priority if lane.policy == "priority" else 0
    adapter = request.adapter if setup.adapter_slots else None
    transfer = request.kv_transfer if setup.peers else None
    return structs.replace(request, lane=lane.name, priority=priority, adapter=adapter, kv_transfer=transfer, **changes)


FAULTS: list[bool | str] = [False, False, True, "memory"]


class SchedulerMachine(RuleBasedStateMachine):
    harness: Harness
    harness_of: Callable[[Setup], Harness] = Harness

    @initialize(setup=SETUPS, fragile=st.booleans())
    def start(self, setup: Setup, fragile: bool) -> None:
        """fragile: steps break now and then."""
        self.fragile = fragile
        self.count = 0
        self.begin(setup)

    def begin(self, setup: Setup) -> None:
        self.harness = type(self).harness_of(setup)
        self.kept = None if setup.tier is None else setup.tier.copy()

    @rule(request=requests(), earlier=st.integers(0, 4), times=st.integers(1, 2))
    def add(self, request: Request, earlier: int, times: int) -> None:
        """Pairs come together; `earlier` moves a request ahead of others in the queue."""
        harness = self.harness
        for _ in range(times):
            request = fitted(request, harness.setup, request_id=f"r{self.count}", arrival=harness.now - earlier)
            self.count += 1
            setup, tokens = harness.setup, len(request.prompt_token_ids)
            room = setup.max_model_len - (request.params.max_tokens != 0)
            if tokens > room or setup.max_blocks(tokens) > setup.num_blocks:
                sentence = harness.refuse(request)
                assert str(tokens) in sentence or str(setup.num_blocks) in sentence or "at most" in sentence
            elif not harness.has_place(request):
                assert f"at most {setup.lane(request.lane).get('queue_limit')} " in harness.refuse(request)
            else:
                harness.add(request)

    @precondition(lambda self: self.harness.alive)
    @rule(data=st.data(), again=st.booleans())
    def abort(self, data: st.DataObject, again: bool) -> None:
        """In any state; the id may be used again at once, while the old one's tokens are still in flight."""
        name = data.draw(st.sampled_from(list(self.harness.alive)))
        request = self.harness.alive[name].request
        self.harness.abort(name)
        assert self.harness.abort(name) == []
        if again and name not in self.harness.alive and self.harness.has_place(request):
            self.harness.add(structs.replace(request, arrival=self.harness.now))

    @precondition(lambda self: self.harness.alive)
    @rule(data=st.data())
    def add_twice(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(list(self.harness.alive)))
        assert repr(name) in self.harness.refuse(self.harness.alive[name].request)

    @precondition(lambda self: len(self.harness.flights) < self.harness.setup.depth)
    @rule(fail=st.sampled_from(FAULTS))
    def plan(self, fail: bool | str) -> None:
        self.harness.plan(fail and self.fragile)

    @precondition(lambda self: self.harness.is_suspended)
    @rule(fail=st.sampled_from(FAULTS))
    def interim(self, fail: bool | str) -> None:
        self.harness.interim(fail and self.fragile)

    @precondition(lambda self: self.harness.flights)
    @rule()
    def commit(self) -> None:
        self.harness.commit()

    @precondition(lambda self: self.harness.executor.in_flight)
    @rule()
    def poll(self) -> None:
        self.harness.poll()

    @rule(rounds=st.integers(1, 4), fail=st.sampled_from(FAULTS))
    def steps(self, rounds: int, fail: bool | str) -> None:
        for _ in range(rounds):
            self.harness.step()
        if fail and self.fragile:
            self.harness.step(fail)

    @rule(seconds=st.sampled_from([0.0, 0.5, 3.0]))
    def pass_time(self, seconds: float) -> None:
        self.harness.now += seconds

    @precondition(lambda self: self.harness.setup.tier is not None)
    @rule(most=st.integers(0, 3))
    def vanish(self, most: int) -> None:
        self.harness.vanish(most)

    @precondition(lambda self: self.harness.setup.peers)
    @rule()
    def lose_peers(self) -> None:
        self.harness.lose_peers()

    @precondition(lambda self: self.harness.setup.tier is not None)
    @rule()
    def restart(self) -> None:
        """Restart the engine; the tier keeps its blocks."""
        self.finish()
        self.begin(self.harness.setup)

    def teardown(self) -> None:
        if hasattr(self, "harness"):
            self.finish()

    def finish(self) -> None:
        harness = self.harness
        harness.drain()
        repeated = type(self).harness_of(replace(harness.setup, tier=self.kept))
        with mock.patch.object(Step, "add_decode", add_as_chunk):  # which is to make no difference either
            repeat(harness.log, repeated)
        assert repeated.plans == harness.plans


def add_as_chunk(step: Step, sequence: Sequence, new_blocks: tuple[int, ...]) -> None:
    """Add a decode as any chunk is added: the readable twin of `Step.add_decode`."""
    step.add_chunk(sequence, 1, new_blocks)


def repeat(log, harness: Harness) -> None:  # type: ignore[no-untyped-def]
    """Invariant 6."""
    for verb, *arguments, now in log:
        harness.now = now
        getattr(harness, verb)(*arguments)
    harness.drain()


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=2 * settings.default.max_examples,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestScheduler.pytestmark = [pytest.mark.timeout(1800)]  # type: ignore[attr-defined]  # with ten times the examples
