"""Engines that share cores: levels, shares by weight, bounded waits, on a clock of the test; and a real process."""

from __future__ import annotations

import heapq
import itertools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from inflight.core.policies.fcfs import Fcfs
from inflight.core.queueing.lanes import LaneSettings
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.executor import Pending
from inflight.core.types.plan import BatchPlan, Capacity, Chunk, StepResult, Transferred
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.engine import cpu_sharing as sharing
from inflight.engine.clock import VirtualClock
from inflight.engine.cpu_sharing import Claim, ClaimTable, CoreShare, ForegroundRequests, SharingExecutor
from inflight.engine.loop import EngineLoop
from inflight.testing.null import NullExecutor

MS = 0.001
CAPACITY = Capacity(num_blocks=12, block_size=2, max_rows=4, max_model_len=20, vocab_size=1000)
STEP = BatchPlan(0, (Chunk(0, 0, 0, 1, (0,), 1),))


class Ended(BaseException):
    """Raised in an engine when its machine stops."""


class Machine:
    """Threads on one virtual clock. One of them runs at a time, until it sleeps: what happens does not depend on the
    system's scheduler. Time passes in `sleep` alone, which stands for computing, too."""

    def __init__(self) -> None:
        self.now = 0.0
        self._wakes: list[tuple[float, int, threading.Semaphore]] = []
        self._numbers = itertools.count()
        self._idle = threading.Semaphore(0)
        self._is_over = False

    def start(self, run: Callable[[], None]) -> None:
        def body() -> None:
            try:
                self.sleep(0.0)
                run()
            except Ended:
                pass
            self._idle.release()

        threading.Thread(target=body, daemon=True).start()
        self._idle.acquire()

    def sleep(self, seconds: float) -> None:
        baton = threading.Semaphore(0)
        heapq.heappush(self._wakes, (self.now + seconds, next(self._numbers), baton))
        self._idle.release()
        baton.acquire()
        if self._is_over:
            raise Ended

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._wakes and self._wakes[0][0] <= end:
            self.now, _, baton = heapq.heappop(self._wakes)
            baton.release()
            self._idle.acquire()
        self.now = end

    def stop(self) -> None:
        self._is_over = True
        for *_, baton in self._wakes:
            baton.release()
            self._idle.acquire()


@dataclass
class Engine:
    """Bursts of steps with a gap behind each, and a pause behind each burst."""

    weight: float = 1.0
    foreground: bool = True
    layer_seconds: float = 1 * MS
    layers: int = 10
    gap: float = 0.0
    begins: float = 0.0
    steps: int = 1_000_000
    pause: float = 0.0
    computed: float = field(default=0.0, init=False)
    waited: list[float] = field(default_factory=list, init=False)
    asked: float | None = field(default=None, init=False)

    def run(self, machine: Machine, share: CoreShare) -> None:
        def wait(ask: Callable[[], None]) -> None:
            self.asked = machine.now
            ask()
            self.waited.append(machine.now - self.asked)
            self.asked = None

        machine.sleep(self.begins)
        while True:
            for _ in range(self.steps):
                for layer in range(self.layers):
                    wait(share.between_layers if layer else share.begin)
                    machine.sleep(self.layer_seconds)
                    self.computed += self.layer_seconds
                share.end()
                machine.sleep(self.gap)
            machine.sleep(self.pause)


class Simulation:
    def __init__(self, engines: list[Engine]) -> None:
        self.machine, self.table = Machine(), ClaimTable.create(len(engines))
        self.engines = engines
        for slot, one in enumerate(engines):
            share = CoreShare(
                self.table,
                slot,
                one.weight,
                lambda one=one: one.foreground,  # type: ignore[misc]
                lambda: self.machine.now,
                self.machine.sleep,
            )
            self.machine.start(lambda one=one, share=share: one.run(self.machine, share))  # type: ignore[misc]

    def __enter__(self) -> Simulation:
        return self

    def __exit__(self, *fault: object) -> None:
        self.machine.stop()
        self.table.close()

    def computed(self, seconds: float) -> list[float]:
        """Return what each engine computes in the next seconds."""
        before = [one.computed for one in self.engines]
        self.machine.run(seconds)
        return [one.computed - was for one, was in zip(self.engines, before, strict=True)]

    def longest_wait(self, engine: Engine) -> float:
        return max(*engine.waited, 0.0 if engine.asked is None else self.machine.now - engine.asked, 0.0)


def simulated(*engines: Engine) -> Simulation:
    return Simulation(list(engines))


layer_seconds = st.floats(0.5 * MS, 2 * MS)


@settings(deadline=None, max_examples=15)
@given(st.lists(st.tuples(st.floats(1, 4), layer_seconds, st.floats(0, 0.5)), min_size=2, max_size=4), st.booleans())
def test_equals_share_by_weight(given_engines: list[tuple[float, float, float]], foreground: bool) -> None:
    engines = [Engine(weight, foreground, layer, 20, begins=begins) for weight, layer, begins in given_engines]
    with Simulation(engines) as simulation:
        simulation.machine.run(0.6)
        virtual = [seconds / one.weight for seconds, one in zip(simulation.computed(2.0), engines, strict=True)]
    one_slice = 2 * sharing.SLICE_SECONDS + sharing.LOOK_SECONDS + max(one.layer_seconds for one in engines)
    assert max(virtual) - min(virtual) < 2 * one_slice  # one at the beginning, and one at the end


def test_two_of_equal_load_are_fair() -> None:
    with simulated(Engine(layer_seconds=30 * MS), Engine(layer_seconds=4 * MS, gap=1 * MS)) as simulation:
        first, second = simulation.computed(10.0)
    assert first == pytest.approx(second, rel=0.1)


any_engine = st.builds(
    Engine,
    weight=st.floats(0.2, 5),
    foreground=st.booleans(),
    layer_seconds=st.floats(0.5 * MS, 10 * MS),
    layers=st.integers(1, 30),
    gap=st.floats(0, 4 * MS),
    begins=st.floats(0, 2),
    steps=st.integers(1, 50),
    pause=st.floats(0, 1),
)


@settings(deadline=None, max_examples=15)
@given(st.lists(any_engine, min_size=2, max_size=5))
@example(  # once waited for 9 s: an engine that used the rests of another was shut out by a heavy one that came later
    [
        Engine(0.2, layer_seconds=10 * MS, layers=1, gap=4 * MS),
        Engine(2.7, layers=15, gap=4 * MS),
        Engine(5.0, layer_seconds=10 * MS, layers=30, begins=1.01),
    ]
)
def test_no_engine_waits_for_ever(engines: list[Engine]) -> None:
    with Simulation(engines) as simulation:
        simulation.machine.run(4.0)
        for one in engines:
            longest_layer = one.layer_seconds + sharing.LOOK_SECONDS  # the longest time between two looks
            assert simulation.longest_wait(one) <= sharing.MAX_WAIT_RATIO * longest_layer + sharing.MAX_POLL_SECONDS


@pytest.mark.parametrize("layer", [0.1 * MS, 3 * MS, 40 * MS])
def test_a_background_engine_has_a_hundredth_of_the_time_and_what_is_left(layer: float) -> None:
    """The foreground engine always computes, then rests for half of the time."""
    with simulated(Engine(gap=1 * MS), Engine(foreground=False, layer_seconds=layer, layers=400)) as simulation:
        _, behind = simulation.computed(20.0)
        assert 0.007 < behind / 20 < 0.013
    with simulated(Engine(gap=12 * MS), Engine(foreground=False, layer_seconds=1 * MS)) as simulation:
        first, behind = simulation.computed(2.0)
        assert behind > 0.7 * first > 0.6


def test_a_foreground_engine_waits_for_no_background_layer_but_an_overdue_one() -> None:
    engines = [Engine(foreground=False, layer_seconds=40 * MS), Engine(begins=0.5, steps=1, pause=0.4)]
    with Simulation(engines) as simulation:
        simulation.machine.run(3.0)
        assert max(engines[1].waited) == 0.0
        assert engines[0].computed > 2.5
    # So that it slows one foreground step down, and not several of them by halves.
    engines = [Engine(), Engine(foreground=False, layer_seconds=20 * MS)]
    with Simulation(engines) as simulation:
        simulation.machine.run(10.0)
    waits = [one for one in engines[0].waited if one]
    assert 3 <= len(waits) <= 6 and all(15 * MS < one < 30 * MS for one in waits)


def test_time_at_rest_or_in_the_background_is_not_made_up_for() -> None:
    """Nor is an engine that computed alone for long held up by one that comes later."""
    with simulated(Engine(), Engine(begins=4.0)) as simulation:
        simulation.machine.run(4.0)
        assert simulation.computed(1.0) == pytest.approx([0.5, 0.5], abs=3 * sharing.CREDIT_SECONDS)
    with simulated(Engine(steps=200, pause=1.0), Engine(begins=2.5)) as simulation:
        simulation.machine.run(3.0)
        assert simulation.computed(1.0) == pytest.approx([0.5, 0.5], abs=3 * sharing.CREDIT_SECONDS)
    engines = [Engine(), Engine(foreground=False)]
    with Simulation(engines) as simulation:
        simulation.machine.run(3.0)
        engines[1].foreground = True
        assert simulation.computed(1.0) == pytest.approx([0.5, 0.5], abs=3 * sharing.CREDIT_SECONDS)
        engines[0].foreground = engines[1].foreground = False
        assert simulation.computed(1.0) == pytest.approx([0.5, 0.5], abs=3 * sharing.CREDIT_SECONDS)


class Rig:
    """One engine's share on a clock that its sleeps move, beside another slot that the test writes."""

    def __init__(self) -> None:
        self.table = ClaimTable.create(2)
        self.now = 100.0
        self.slept = 0
        self.is_foreground = True
        self.share = CoreShare(self.table, 0, 2.0, lambda: self.is_foreground, lambda: self.now, self.sleep)
        self.while_asleep: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += 1
        self.while_asleep()

    def other(self, level: float = sharing.FOREGROUND) -> None:
        """Have the other engine compute."""
        self.table.write(1, Claim(self.now + sharing.CLAIM_SECONDS, level, 1.0, 0.0))

    def waits(self) -> float:
        before = self.now
        self.share.begin()
        self.share.end()
        return self.now - before


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.table.close()


def test_a_claim_that_is_not_renewed_is_void_or_cleared_by_a_supervisor(rig: Rig) -> None:
    """Its process is gone, or stopped; no other process has cleared its slot."""
    rig.share._layer_seconds = 1.0
    rig.other()
    assert sharing.CLAIM_SECONDS <= rig.waits() <= sharing.CLAIM_SECONDS + sharing.MAX_POLL_SECONDS
    rig.other()
    rig.while_asleep = lambda: rig.table.write(1, Claim())
    assert rig.waits() < sharing.MAX_POLL_SECONDS


def test_a_wait_ends_whatever_others_and_the_system_do(rig: Rig) -> None:
    """The process was stopped within a layer for a day, and the other engine never rests."""
    rig.share._layer_seconds = 86_400.0
    rig.while_asleep = rig.other
    rig.other()
    rig.share.begin()
    assert rig.now <= 100.0 + sharing.MAX_WAIT_SECONDS + sharing.MAX_POLL_SECONDS
    assert rig.table.read(0).level == sharing.OVERDUE
    rig.share.end()
    assert rig.table.read(0).level == sharing.FOREGROUND


def test_a_wait_that_is_interrupted_is_no_claim(rig: Rig) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    rig.other()
    rig.while_asleep = interrupt
    with pytest.raises(KeyboardInterrupt):
        SharingExecutor(Recording(rig), rig.share).submit(STEP)
    claim = rig.table.read(0)
    assert not claim.computes and claim.used <= 0.0 and claim.expires <= rig.now + sharing.RETURN_SECONDS


def test_foreground_requests_end_a_wait_and_are_expected_to_go_on(rig: Rig) -> None:
    def ask() -> None:
        rig.is_foreground = rig.slept == 3

    rig.is_foreground = False
    rig.while_asleep = ask
    rig.other(sharing.BACKGROUND)
    rig.share.begin()
    assert rig.slept == 3
    assert rig.table.read(0).level == sharing.FOREGROUND
    rig.waits()
    assert rig.table.read(0).expires == pytest.approx(rig.now + sharing.RETURN_SECONDS)
    rig.is_foreground = False
    rig.waits()
    assert rig.table.read(0).expires == 0.0


def test_without_others_there_is_no_wait(rig: Rig) -> None:
    rig.share.between_layers()  # of a pass that is no step
    rig.share.begin()
    for _ in range(3):
        rig.now += 5 * MS
        rig.share.between_layers()
    rig.share.end()
    assert rig.slept == 0 and rig.share.paused_seconds == 0
    assert rig.table.read(0).used == pytest.approx(7.5 * MS)


class Done:
    def result(self) -> StepResult:
        return StepResult(0, (), 1.0)


class Recording:
    """An executor that notes its engine's claim while it computes."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.capacity = CAPACITY
        self.claims: list[Claim] = []
        self.fault: BaseException | None = None
        self.is_closed = False

    def submit(self, plan: BatchPlan) -> Pending:
        self.claims.append(self._rig.table.read(0))
        self._rig.now += 2 * MS
        self._rig.share.between_layers()
        if self.fault is not None:
            raise self.fault
        return Done()

    def poll(self, seconds: float = 0.0) -> tuple[Transferred, ...] | None:
        return (Transferred(7),)

    def close(self) -> None:
        self.is_closed = True


def test_steps_have_a_claim_while_they_compute(rig: Rig) -> None:
    recording = Recording(rig)
    executor = SharingExecutor(recording, rig.share)
    executor.submit(STEP)
    executor.submit(BatchPlan(0, (), freed_rows=(1,)))  # nothing is computed
    assert [one.computes for one in recording.claims] == [1.0, 0.0]
    for recording.fault in (ValueError("broken"), KeyboardInterrupt()):
        with pytest.raises(type(recording.fault)):
            executor.submit(STEP)
        assert not rig.table.read(0).computes
    assert executor.capacity is CAPACITY and executor.poll() == (Transferred(7),)
    executor.close()
    assert recording.is_closed


def test_a_step_takes_what_it_computes_without_its_pauses(rig: Rig) -> None:
    executor = SharingExecutor(Recording(rig), rig.share)
    assert executor.submit(STEP).result().seconds == 1.0
    rig.is_foreground = False

    def ended() -> None:
        if rig.slept == 4:
            rig.table.write(1, Claim())

    rig.while_asleep = ended
    rig.other()
    assert executor.submit(STEP).result().seconds == 1.0  # it waited before it began
    recording = Recording(rig)
    recording.submit = lambda plan: (rig.other(), Recording.submit(recording, plan))[1]  # type: ignore[method-assign]
    rig.slept, before = 0, rig.now
    taken = SharingExecutor(recording, rig.share).submit(STEP).result().seconds
    assert taken == pytest.approx(1.0 - (rig.now - before - 2 * MS)) and rig.slept == 4


def test_a_killed_process_holds_up_no_other(rig: Rig) -> None:
    """Its claim is there, in memory that both processes have, until it expires."""
    body = (
        "import sys, time; from inflight.engine.cpu_sharing import *\n"
        "share = CoreShare(ClaimTable(int(sys.argv[1])), 1, 1.0, lambda: True); share.begin(); print('', flush=True)\n"
        "while True: time.sleep(0.01); share.between_layers()"
    )
    command = [sys.executable, "-c", body, str(rig.table.descriptor)]
    with subprocess.Popen(command, pass_fds=(rig.table.descriptor,), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert rig.table.read(1).computes
        process.kill()
    rig.now = rig.table.read(1).expires - sharing.CLAIM_SECONDS
    rig.is_foreground, rig.share._layer_seconds = False, 1.0
    assert sharing.CLAIM_SECONDS <= rig.waits() <= sharing.CLAIM_SECONDS + sharing.MAX_POLL_SECONDS


def test_foreground_requests_count_until_they_end() -> None:
    lanes = [
        LaneSettings(name="interactive", policy=Fcfs()),
        LaneSettings(name="batch", policy=Fcfs(), background=True),
    ]
    foreground = ForegroundRequests({one.name for one in lanes if one.background})
    scheduler = Scheduler(SchedulerConfig(CAPACITY, Chunked(16), lanes=lanes))
    loop = EngineLoop(scheduler, NullExecutor(CAPACITY), VirtualClock(), observers=[foreground])

    def add(name: str, lane: str) -> None:
        loop.add(Request(request_id=name, prompt_token_ids=(1, 2), params=SamplingParams(max_tokens=3), lane=lane))

    add("behind", "batch")
    assert not foreground.any()
    add("first", "interactive")
    add("second", "interactive")
    loop.abort("first")
    assert foreground.any()
    loop.run()
    assert not foreground.any()
    add("third", "interactive")
    assert foreground.any()
    loop.close()
    assert not foreground.any()
