"""The paced executor: steps take what is said, or longer, and yield what the executor below yields."""

from __future__ import annotations

from core.builders import request

from inflight.core.policies.fcfs import Fcfs
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.events import Event, TokensEvent
from inflight.core.types.executor import Executor
from inflight.core.types.plan import BatchPlan, Capacity
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.testing.null import NullExecutor
from inflight.testing.paced import Pace, PacedExecutor

CAPACITY = Capacity(num_blocks=12, block_size=2, max_rows=4, max_model_len=40, vocab_size=1000)
PACE = Pace(step=0.02, token=0.001)


class Time:
    """A clock that stands still but for who sleeps by it."""

    now = 5.0

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def paced(executor: Executor, time: Time) -> PacedExecutor:
    return PacedExecutor(executor, PACE, time.read, time.sleep)


def loop_over(executor: Executor, tokens: int) -> EngineLoop:
    return EngineLoop(Scheduler(SchedulerConfig(CAPACITY, Chunked(tokens), Fcfs())), executor, VirtualClock())


def answers(executor: Executor) -> list[tuple[int, ...]]:
    loop = loop_over(executor, 4)
    for number in range(3):
        loop.add(request(str(number), range(number, number + 5), 6))
    events: list[Event] = loop.run()
    return [event.token_ids for event in events if isinstance(event, TokensEvent)]


def test_tokens_are_those_of_the_executor_below() -> None:
    assert answers(paced(NullExecutor(CAPACITY), Time())) == answers(NullExecutor(CAPACITY))


def test_a_step_takes_what_is_said_of_its_tokens() -> None:
    time = Time()
    loop = loop_over(paced(NullExecutor(CAPACITY), time), 8)
    loop.add(request("a", (1, 2, 3, 4), 3))
    loop.run()
    assert abs(time.now - 5.0 - (3 * 0.02 + 6 * 0.001)) < 1e-9  # a prompt of 4, and two more tokens
    assert abs(loop.clock.now() - (3 * 0.02 + 6 * 0.001)) < 1e-9  # the results say the same
    time = Time()
    executor = paced(NullExecutor(CAPACITY, lambda plan: 1.5), time)
    pending = executor.submit(BatchPlan(0, ()))
    time.now += 1.5
    assert pending.result().seconds == 1.5 and time.now == 6.5


def test_a_plan_that_was_made_ahead_begins_when_the_one_before_it_ends() -> None:
    time = Time()
    executor = paced(NullExecutor(CAPACITY), time)
    first, second = executor.submit(BatchPlan(0, ())), executor.submit(BatchPlan(1, ()))
    first.result()
    assert abs(time.now - 5.02) < 1e-9
    second.result()
    assert abs(time.now - 5.04) < 1e-9
