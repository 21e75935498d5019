"""Slack batching: deadlines hold while they can, no target takes from others beyond its bound, and no bit changes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from msgspec import structs

from inflight.core.estimation.latency import LatencyModel
from inflight.core.policies.fcfs import Fcfs
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.strategies import Strategy
from inflight.core.strategies.adaptive import MIN_CHUNK, Adaptive
from inflight.core.strategies.chunked import Chunked
from inflight.core.strategies.slack import MAX_SIT_OUT, MIN_PROMPT_SHARE, Slack
from inflight.core.types.events import TokensEvent
from inflight.core.types.features import Features, features
from inflight.core.types.plan import BatchPlan, Capacity
from inflight.core.types.request import SLO, Request, RequestRefused
from inflight.testing.null import NullExecutor

from .builders import request
from .harness import Harness, LaneSetup, Setup

BUDGET, ROWS, VOCABULARY = 64, 8, 16
STEP, TOKEN = 0.016, 0.001  # seconds


class Known(LatencyModel):
    """Step times that need no learning."""

    @property
    def ready(self) -> bool:
        return True

    def observe(self, features: Features, seconds: float) -> None:
        """Learn nothing."""

    def seconds(self, features: Features) -> float:
        return STEP + TOKEN * features.tokens


LATENCY = Known()
FULL = STEP + TOKEN * BUDGET


@dataclass
class Engine:
    """A scheduler on a null executor, with steps that take as long as is known. depth: of steps in flight."""

    make: Callable[[LatencyModel], Strategy]
    depth: int = 1
    jump: Callable[[int, float], float] = lambda step, now: now  # a clock that does not only go on
    rows: int = ROWS
    now: float = 0.0
    plans: list[BatchPlan] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    times: dict[str, list[list[float]]] = field(default_factory=dict)
    tokens: dict[str, list[list[int]]] = field(default_factory=dict)

    def run(self, offered: Iterable[Request]) -> Engine:
        capacity = Capacity(400, 4, self.rows, 512, VOCABULARY)
        config = SchedulerConfig(capacity, self.make(LATENCY), Fcfs(), token_budget=BUDGET, latency=LATENCY)
        self.scheduler, executor = (
            Scheduler(config),
            NullExecutor(capacity, lambda plan: LATENCY.seconds(features(plan))),
        )
        coming = sorted(offered, key=lambda one: one.arrival)
        for one in coming:
            self.times[one.request_id] = [[] for _ in range(one.params.n)]
            self.tokens[one.request_id] = [[] for _ in range(one.params.n)]
        flights = []
        for step in range(20_000):
            while coming and coming[0].arrival <= self.now:
                self.scheduler.add(coming.pop(0), self.now)
            while len(flights) < self.depth and isinstance(plan := self.scheduler.plan(self.now), BatchPlan):
                flights.append((plan, executor.submit(plan).result()))
                self.plans.append(plan)
            if flights:
                plan, result = flights.pop(0)
                self.now = self.jump(step, self.now + result.seconds)
                self.ends.append(self.now)
                for event in self.scheduler.commit(plan, result, self.now):
                    if isinstance(event, TokensEvent):
                        self.times[event.request_id][event.sample_index] += [self.now] * len(event.token_ids)
                        self.tokens[event.request_id][event.sample_index] += event.token_ids
            elif coming:
                self.now = max(self.now, coming[0].arrival)
            else:
                break
        assert self.scheduler.idle
        return self


def slack(itl: float | None = None) -> Callable[[LatencyModel], Strategy]:
    return lambda latency: Slack(BUDGET, itl, latency, early_end=8)


def chunked(latency: LatencyModel) -> Strategy:
    return Chunked(BUDGET, early_end=8)


TARGETS = st.sampled_from([None, 0.001, 0.02, 0.05, 0.1, 0.4])


@st.composite
def offers(draw: st.DrawFn, targets: st.SearchStrategy[float | None] = TARGETS) -> list[Request]:
    found = []
    for index in range(draw(st.integers(1, 10))):
        found.append(
            request(
                f"r{index}",
                [index % VOCABULARY] * draw(st.integers(1, 100)),
                output=draw(st.integers(1, 20)),
                n=draw(st.sampled_from([1, 1, 1, 2])),
                arrival=draw(st.integers(0, 40)) / 16,
                slo=SLO(draw(st.sampled_from([None, 0.3, 2.0])), draw(targets)),
            )
        )
    return found


def shape_of(plans: list[BatchPlan]) -> list[tuple[tuple[int, int, int], ...]]:
    return [tuple((one.sequence_id, one.start, one.length) for one in plan.chunks) for plan in plans]


@given(offers(st.none()), st.integers(1, 2))
def test_without_targets_plans_are_those_of_chunked_and_adaptive(offered: list[Request], depth: int) -> None:
    offered = [structs.replace(one, slo=SLO()) for one in offered]
    ours, theirs = Engine(slack(), depth).run(offered), Engine(chunked, depth).run(offered)
    assert ours.plans == theirs.plans
    ours = Engine(slack(0.05), depth).run(offered)
    theirs = Engine(lambda latency: Adaptive(BUDGET, 0.05, latency, early_end=8), depth).run(offered)
    assert ours.plans == theirs.plans


@given(offers(), st.integers(1, 2))
def test_tokens_are_those_of_chunked_and_runs_repeat(offered: list[Request], depth: int) -> None:
    run = Engine(slack(), depth).run(offered)
    assert run.tokens == Engine(chunked, 1).run(offered).tokens
    assert run.plans == Engine(slack(), depth).run(offered).plans


# A step of all rows and of the prompt tokens that no target takes away fits into the shortest of these.
FEASIBLE = st.sampled_from([None, 1.1 * (STEP + TOKEN * (ROWS + MIN_CHUNK)), 0.06, 0.1, 0.4])


@settings(max_examples=100)
@given(offers(FEASIBLE))
def test_no_token_is_later_than_its_deadline_while_there_is_room_for_it(offered: list[Request]) -> None:
    run = Engine(slack()).run(offered)
    for one in offered:
        if one.slo.itl is None:
            continue
        for times in run.times[one.request_id]:
            late = [at - times[0] - k * one.slo.itl for k, at in enumerate(times)]
            assert max(late) <= 1e-9, (one.request_id, one.slo, times)


@given(offers(), st.integers(1, 2))
def test_none_sits_out_for_long_and_prompts_keep_their_share(offered: list[Request], depth: int) -> None:
    """Whatever targets are asked for, those that cannot be kept among them."""
    run = Engine(slack(), depth).run(offered)
    assert longest_pause(run.plans) <= MAX_SIT_OUT + depth
    least = max(MIN_CHUNK, math.ceil(MIN_PROMPT_SHARE * (BUDGET - ROWS)))
    begun: set[int] = set()
    for plan in run.plans:
        prompts = [one for one in plan.chunks if one.length > 1 or one.sequence_id not in begun]
        begun.update(one.sequence_id for one in plan.chunks if one.sample)
        if prompts and not any(one.sample for one in prompts):  # else the step ends with the prompt that it completes
            assert sum(one.length for one in prompts) >= least


def longest_pause(plans: list[BatchPlan]) -> int:
    """Return the most steps from one token of a stream to its next."""
    last: dict[int, int] = {}
    longest = 0
    for index, plan in enumerate(plans):
        for one in plan.chunks:
            if one.sample:
                longest = max(longest, index - last.get(one.sequence_id, index))
                last[one.sequence_id] = index
    return longest


def stream(name: str, itl: float | None, output: int = 60, **more: float) -> Request:
    return request(name, [1], output=output, slo=SLO(None, itl), **more)


def burst(count: int, arrival: float, ttft: float | None = 1.5) -> list[Request]:
    return [request(f"p{k}", [2, k % 16] * 60, output=2, arrival=arrival, slo=SLO(ttft, None)) for k in range(count)]


class TestABurst:
    def first_tokens(self, run: Engine, count: int) -> list[float]:
        return [run.times[f"p{k}"][0][0] for k in range(count)]

    def test_streams_that_are_ahead_give_prompts_their_place(self) -> None:
        offered = [*(stream(f"s{k}", 0.4, output=120) for k in range(6)), *burst(2, 2.0, ttft=0.35)]
        ours, theirs = Engine(slack()).run(offered), Engine(chunked).run(offered)
        assert max(self.first_tokens(ours, 2)) < max(self.first_tokens(theirs, 2))
        for k in range(6):
            times = ours.times[f"s{k}"][0]
            assert (times[-1] - times[0]) / (len(times) - 1) <= 0.4

    def test_streams_stay_where_first_tokens_are_in_time_anyway(self) -> None:
        offered = [*(stream(f"s{k}", 0.4) for k in range(6)), *burst(1, 1.0, ttft=9.0)]
        for plan in Engine(slack()).run(offered).plans[1:8]:
            assert len(plan.chunks) >= 6

    @pytest.mark.parametrize("depth", [1, 2])
    def test_an_impossible_target_takes_nothing_from_others(self, depth: int) -> None:
        """Its stream has a token in each step, as any stream has under chunked prefill, and that is all."""
        others = [*(stream(f"s{k}", 0.1) for k in range(3)), *burst(4, 0.5)]
        honest = Engine(slack(), depth).run([stream("x", None), *others])
        liar = Engine(slack(), depth).run([stream("x", 0.001), *others])
        assert shape_of(liar.plans) == shape_of(honest.plans)

    @pytest.mark.parametrize("itl", [1e-3, 1e-320])
    def test_no_target_is_short_enough_to_void_those_of_others(self, itl: float) -> None:
        others = [stream(f"s{k}", 0.06) for k in range(3)]
        prompts = [request(f"p{k}", [2, k] * 200, output=2, arrival=0.05) for k in range(3)]
        run = Engine(slack()).run([stream("x", itl), *others, *prompts])
        for one in others:
            times = run.times[one.request_id][0]
            assert all(at - times[0] <= k * 0.06 + 1e-9 for k, at in enumerate(times))

    def test_a_target_that_is_hardly_possible_leaves_prompts_their_share(self) -> None:
        tight = 1.06 * (STEP + TOKEN * (1 + MIN_CHUNK))
        run = Engine(slack()).run([stream("x", tight, output=200), *burst(4, 0.2)])
        assert max(self.first_tokens(run, 4)) < 0.2 + 4 * 120 / MIN_CHUNK * 1.1 * tight


@pytest.mark.parametrize("by", [3600.0, -3600.0])
def test_a_clock_that_jumps_starves_none(by: float) -> None:
    def jump(step: int, now: float) -> float:
        return now + by if step == 12 else now

    offered = [stream(f"s{k}", 0.1, output=40) for k in range(6)] + [
        request(f"p{k}", [3] * 60, output=20, slo=SLO(0.2, 0.1), arrival=k / 16) for k in range(12)
    ]
    run = Engine(slack(), jump=jump).run(offered)
    assert longest_pause(run.plans) <= MAX_SIT_OUT + 1


@pytest.mark.parametrize("value", [math.nan, -1.0, 0.0, math.inf])
@pytest.mark.parametrize("name", ["ttft", "itl"])
def test_targets_that_are_no_times_are_refused(name: str, value: float) -> None:
    engine = Engine(slack()).run([])
    with pytest.raises(RequestRefused, match=rf"slo\.{name}_ms is .*; give milliseconds above 0, up to"):
        engine.scheduler.add(request("a", slo=SLO(**{name: value})), 0.0)


class TestLatePrompts:
    """First tokens that cannot all be in time."""

    def on_time(self, run: Engine, offered: list[Request]) -> int:
        first = {one.request_id: run.times[one.request_id][0][0] for one in offered}
        return sum(first[one.request_id] <= one.arrival + (one.slo.ttft or math.inf) for one in offered)

    def crowd(self, large: int, small: int, ttft: float = 1.5) -> list[Request]:
        """Large prompts first, then small ones, nearly at once."""
        sizes = [400] * large + [40] * small
        return [
            request(f"r{k}", [5, k % 16] * (size // 2), output=2, arrival=k / 1024, slo=SLO(ttft, None))
            for k, size in enumerate(sizes)
        ]

    def test_the_largest_make_way(self) -> None:
        offered = self.crowd(large=4, small=12)
        ours, theirs = Engine(slack()).run(offered), Engine(chunked).run(offered)
        assert self.on_time(ours, offered) == 13 > self.on_time(theirs, offered)

    def test_where_all_can_be_in_time_none_is_late(self) -> None:
        offered = self.crowd(large=2, small=4, ttft=4.0)
        run = Engine(slack()).run(offered)
        assert self.on_time(run, offered) == 6
        firsts = [run.times[one.request_id][0][0] for one in offered]
        assert firsts == sorted(firsts)

    @pytest.mark.parametrize("target", [0.001, 1.5])
    def test_what_is_late_has_its_share_under_a_flood(self, target: float) -> None:
        """Small prompts without end, as many as can be in time: a large one's turn comes, paid by its share."""
        rate = BUDGET / FULL / 40  # requests/s: all that there is
        flood = [
            request(f"f{k}", [6, k % 16] * 20, output=1, arrival=k / rate, slo=SLO(1.0, None))  # small
            for k in range(800)
        ]
        large = request("large", [7] * 300, output=1, arrival=0.5, slo=SLO(target, None))
        run = Engine(slack()).run([*flood, large])
        tokens = 0
        for plan, end in zip(run.plans, run.ends, strict=True):
            tokens += plan.tokens if end > 0.5 else 0
            if end >= run.times["large"][0][0]:
                break
        assert tokens <= 300 * 20 + 4 * 300 + 40 * BUDGET
        assert self.on_time(run, flood) >= 0.9 * len(flood)

    def test_a_first_token_that_cannot_be_in_time_takes_nothing_from_others(self) -> None:
        honest = self.crowd(large=0, small=12, ttft=0.9)
        liar = request("liar", [8] * 200, output=2, slo=SLO(0.001, None))
        assert self.on_time(Engine(slack()).run([*honest, liar]), honest) == 12

    def test_late_ones_use_what_is_idle(self) -> None:
        run = Engine(slack()).run([request("late", [8] * 200, output=2, slo=SLO(0.001, None))])
        assert run.times["late"][0][0] <= 4 * FULL + 0.1

    @pytest.mark.parametrize("streams", [0, 3])
    @pytest.mark.parametrize("fixed", [0.0, STEP])
    def test_late_ones_that_wait_alone_use_what_streams_leave(
        self, streams: int, fixed: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Other prompts are gone: the late one needs no share, also where a step without tokens takes no time."""
        monkeypatch.setattr(Known, "seconds", lambda self, features: fixed + TOKEN * features.tokens)
        small = [request(f"p{k}", [5] * 40, output=2, arrival=0.2, slo=SLO(0.9, None)) for k in range(14)]
        large = request("large", [7] * 300, output=2, arrival=0.2, slo=SLO(0.3, None))
        run = Engine(slack()).run([*(stream(f"s{k}", 0.4, output=400) for k in range(streams)), *small, large])
        last = max(run.times[one.request_id][0][-1] for one in small)
        assert run.times["large"][0][0] <= last + 6 * FULL


def test_late_prompts_preempt_none_that_would_come_before_them_again() -> None:
    """A late prompt of a higher priority comes behind all others, and so behind the victim that it would make."""
    lanes = (
        LaneSetup("interactive", policy="priority", settings=(("max_rows", 2), ("min_tokens", 2))),
        LaneSetup("third", settings=(("max_rows", 1), ("chunk", 1))),
    )
    reserved = Setup(num_blocks=5, token_budget=2, prefix_caching=False, depth=2, strategy="slack", lanes=lanes)
    harness = Harness(replace(reserved, allocation="reserve-max", snapshots=1))

    def scored(name: str, tokens: int, earlier: float, **params: object) -> Request:
        one = request(name, prompt=(0,) * tokens, output=None, max_tokens=0, **params)
        return structs.replace(one, arrival=harness.now - earlier)

    behind = SLO(ttft=0.1, tpot=0.06)
    harness.add(*(scored(f"first {one}", 6, 2) for one in range(2)))
    harness.add(*(scored(f"low {one}", 7, 3, priority=2, slo=behind) for one in range(2)))
    harness.add(scored("third", 8, 1, lane="third", slo=SLO(ttft=2.0)))
    harness.add(
        structs.replace(request("answers", prompt=(1,), output=11, n=2, max_tokens=11), arrival=harness.now - 3)
    )
    harness.add(*(scored(f"last {one}", 3, 1, slo=SLO(ttft=2.0, itl=0.06)) for one in range(2)))
    harness.drain()
