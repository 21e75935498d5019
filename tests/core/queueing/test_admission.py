"""Admission control: what is refused, with which words, and how near predictions are."""

from __future__ import annotations

from typing import Any

import pytest

from inflight.core.estimation.latency import LatencyModel
from inflight.core.estimation.output_length import Oracle
from inflight.core.policies.fcfs import Fcfs
from inflight.core.queueing.admission import Admission, Margin, WorkAhead
from inflight.core.queueing.waiting_queue import WaitingQueue
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.stopping import StopText
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.events import FinishedEvent
from inflight.core.types.features import Features
from inflight.core.types.plan import Capacity
from inflight.core.types.request import SLO, Request, RequestRefused
from inflight.testing.null import NullExecutor

from .. import inspect_scheduler as inside
from ..builders import request

CAPACITY = Capacity(400, 4, 4, 200, 8)


def scheduler_of(admission: Admission, **config: Any) -> Scheduler:
    return Scheduler(SchedulerConfig(CAPACITY, Chunked(16), Fcfs(), token_budget=16, admission=admission, **config))


class Engine:
    def __init__(self, mode: Any, host: float = 0.0, **bounds: float) -> None:
        """host: seconds that a round takes beside its step, which no result reports."""
        self.host, self.now, latency = host, 0.0, LatencyModel()
        self.admission = Admission(mode, latency, **bounds)
        config = {"prefix_caching": False, "predictor": Oracle(), "latency": latency}
        self.scheduler = scheduler_of(self.admission, **config)
        self.executor = NullExecutor(CAPACITY, seconds=lambda plan: 0.02 + plan.tokens / 500)
        self.first: dict[str, float] = {}

    def add(self, name: object, tokens: int = 3, token: int = 0, **params: Any) -> None:
        self.scheduler.add(request(f"{name}", [token % 8] * tokens, **params), self.now)

    def refuse(self, words: str, *of: Any, **params: Any) -> RequestRefused:
        with pytest.raises(RequestRefused, match=words) as refused:
            self.add(*of, **params)
        return refused.value

    def steps(self, count: int) -> None:
        for _ in range(count):
            plan = self.scheduler.plan(self.now)
            result = self.executor.submit(plan).result()
            self.now += result.seconds + self.host
            for event in self.scheduler.commit(plan, result, self.now):
                if not isinstance(event, FinishedEvent):
                    self.first.setdefault(event.request_id, self.now)

    def load(self) -> WorkAhead:
        """Return the work before a newcomer."""
        return self.scheduler._state.load_before(request("probe"), self.scheduler._config)

    def expected(self) -> float:
        """Seconds to the first token of a newcomer with 20 tokens."""
        return self.admission.seconds_to_first_token(20, self.load())


def test_while_there_is_room_the_queue_is_not_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine("auto", max_requests=4, max_tokens=40)
    monkeypatch.setattr(WaitingQueue, "everyone", lambda self: pytest.fail("a newcomer walked through the queue"))
    for number in range(4):
        engine.add(number, 10)


def test_the_queue_is_bounded_by_requests_and_by_tokens() -> None:
    engine = Engine("queue", max_requests=2, max_tokens=30)
    engine.add("a", 50)  # alone it may come in, however long
    assert engine.refuse(r"50 tokens wait, and 2 more would exceed the maximum of 30", "b", 2).retry_after > 0
    engine = Engine("queue", max_requests=2)
    for name in "ab":
        engine.add(name)
    engine.refuse("2 requests wait already, and at most 2 may", "c")


def test_samples_that_could_never_wait_together_are_refused_for_good() -> None:
    engine = Engine("queue", max_requests=4)
    refusal = engine.refuse("asks for 5 samples, but at most 4 requests may wait", "a", n=5)
    assert (refusal.field, refusal.retry_after) == ("n", None)
    engine.add("a", n=3)
    assert engine.refuse(r"3 requests wait already.*these would be 2 more; try again", "b", n=2).retry_after > 0
    engine.add("c")


def test_all_samples_of_a_prompt_count_as_waiting_and_their_prompt_once() -> None:
    engine = Engine("queue", max_requests=100)
    (lane,) = engine.scheduler._lanes.before("interactive")
    engine.add("a", 20, n=6, output=9)
    load = engine.load()
    assert (load.ahead, lane.queue.backlog.total.tokens, load.prompt_tokens) == (6, 20, 20)
    assert load.remaining_ahead == [9.0] * 6
    engine.steps(1)  # 16 of the 20 tokens fit into a step
    load = engine.load()
    assert (load.ahead, lane.queue.backlog.total.tokens, load.prompt_tokens) == (5, 0, 4)
    while len(inside.running(engine.scheduler)) < CAPACITY.max_rows:
        engine.steps(1)
    assert (engine.load().ahead, lane.queue.backlog.total.tokens) == (2, 0)


def test_a_target_that_cannot_be_met_is_refused_with_the_time_to_wait() -> None:
    engine = Engine("slo")
    engine.add("early", 9, slo=SLO(ttft=1e-6), output=30)  # nothing is known yet
    engine.steps(30)
    for number in range(12):
        engine.add(number, 60, number, output=40)
    words = "12 requests and 720 prompt tokens are before it"
    assert engine.refuse(words, "late", 9, slo=SLO(ttft=0.5)).retry_after > 0.5
    engine.add("patient", 9, slo=SLO(ttft=60.0))


def test_the_prediction_is_near_what_comes() -> None:
    engine = Engine("slo")
    for number in range(24):
        engine.add(number, 20, number, output=15 + number % 9)
        engine.steps(1)
    engine.steps(20)
    added, expected = engine.now, engine.expected()
    engine.add("probe", 20, output=2)
    while "probe" not in engine.first:
        engine.steps(1)
    assert engine.first["probe"] - added == pytest.approx(expected, rel=0.5)


def test_the_time_between_steps_counts_too_but_none_without_work() -> None:
    expected = []
    for engine in (Engine("slo"), Engine("slo", host=0.1)):
        for number in range(12):
            engine.add(number, 20, number, output=15)
            engine.steps(1)
        engine.steps(20)
        expected.append(engine.expected())
    assert expected[1] > 2 * expected[0], "a step takes 0.02 to 0.05 s, and the host 0.1 s more"
    engine = Engine("slo")
    for number in range(40):
        engine.add(number, 4, output=3)
        engine.steps(3)
        engine.now += 60
    assert engine.admission.pace == pytest.approx(1.0, rel=0.2)


def promising() -> tuple[Admission, WorkAhead, float]:
    """An admission that knows its steps, a load with a request before the newcomer, and what it predicts of it."""
    latency = LatencyModel()
    for tokens in range(1, 40):
        latency.observe(Features(tokens, 1, 1, 0, 0.0), 0.02 + tokens / 500)
    load = WorkAhead(1, 40, [30.0], [30.0], 0, 1, 16, 10.0)
    admission = Admission("slo", latency)
    return admission, load, admission.seconds_to_first_token(9, load)


def test_predictions_that_fell_short_make_the_next_ones_more_careful() -> None:
    admission, load, predicted = promising()
    for number in range(100):
        admitted = request(f"{number}", [0] * 9, slo=SLO(ttft=1.5 * predicted))
        try:
            admission.on_admitted(admitted, admission.check(admitted, [], lambda: load))
        except RequestRefused as refusal:
            assert refusal.retry_after > 0
            break
        admission.on_first_token(admitted, admitted.arrival + 3 * predicted)
    assert 1 < number < 20
    admission.check(request("patient", [0] * 9, slo=SLO(ttft=4 * predicted)), [], lambda: load)


@pytest.mark.parametrize("ttft", [1.5, 20.0])
def test_an_end_without_a_token_or_a_prediction_far_below_its_target_teaches_nothing(ttft: float) -> None:
    admission, load, predicted = promising()
    for number in range(50):
        one = request(f"{number}", [0] * 9, slo=SLO(ttft=ttft * predicted))
        admission.on_admitted(one, admission.check(one, [], lambda: load))
        if ttft < 10:
            admission.on_finished(one)
        admission.on_first_token(one, 1000.0)
    admission.check(request("last", [0] * 9, slo=SLO(ttft=1.5 * predicted)), [], lambda: load)


class Predicting(Admission):
    """Lets all in, and predicts half a second."""

    def check(self, *newcomer: object) -> float | None:
        return 0.5


def test_a_prediction_for_a_request_that_is_refused_later_is_not_kept() -> None:
    def broken(request: Request) -> StopText:
        raise OSError("no such token")

    admission, late = Predicting("slo", LatencyModel()), request("late", stop=("ab",))
    scheduler = scheduler_of(admission, stop_text=broken)
    with pytest.raises(RequestRefused, match="no such token"):
        scheduler.add(late, 0.0)
    admission.on_first_token(late, 1000.0)
    assert admission._margin.value == 1.0
    scheduler.add(request("late"), 0.0)
    admission.on_first_token(late, 1000.0)
    assert admission._margin.value > 1.0


def test_the_margin_rests_where_its_share_of_the_observations_lies() -> None:
    margin = Margin(share=0.9)
    for number in range(5000):
        margin.observe(1 + (number * 7 % 100) / 50)  # evenly from 1 to 3
    assert margin.value == pytest.approx(2.8, rel=0.1)
    for _ in range(2000):
        margin.observe(0.5)
    assert margin.value == 1.0, "predictions that were too long do not lower the margin below 1"
