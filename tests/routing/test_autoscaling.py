"""The target number of replicas: the rule, and the queue that a replica reports."""

from __future__ import annotations

import pytest
from core.builders import request

from inflight.config.scheduling import SchedulingSettings
from inflight.routing.autoscaling import ReplicaQueue, ReplicaTarget, background_lanes, target_replicas
from inflight.routing.replica_view import ServingCosts

COSTS = ServingCosts(prompt_token=0.01, step=0.1, row=0.0, max_num_seqs=2)


def test_queues_in_seconds_say_how_many_replicas_there_should_be() -> None:
    assert target_replicas(2, [0.5, 0.9]) == 2, "each has less than its second"
    assert target_replicas(2, [3.0, 1.5]) == 5
    assert target_replicas(3, [0.1, 0.1, 0.1]) == 2, "one at a time"
    assert target_replicas(1, [0.0]) == 1 and target_replicas(2, []) == 2, "nothing is known"
    assert target_replicas(3, [0.3, 0.3, 0.3]) == 3, "what two would hardly bear, three keep"
    assert target_replicas(4, [1.5, 1.5]) == 4, "two run, and two are loading"


def test_a_queue_is_prompts_that_wait_and_rows_that_are_taken() -> None:
    queue = ReplicaQueue(SchedulingSettings())
    assert queue.seconds(COSTS) == 0.0
    queue.add(request("a", prompt=range(50)))
    assert queue.seconds(COSTS) == pytest.approx(0.5)
    queue.first_token("a")
    assert queue.seconds(COSTS) == 0.0, "it is computed, and a row is free"
    for number in range(3):
        queue.add(request(str(number), prompt=[1]))
        queue.first_token(str(number))
    assert queue.seconds(COSTS) > 1.0, "two rows, four answers, and each step takes a tenth of a second"
    for request_id in ("a", "0", "1", "2"):
        queue.ended(request_id, 8)
    assert queue.seconds(COSTS) == 0.0
    assert queue.seconds(None) == 0.0, "a queue of unknown length adds no replica"


def test_short_answers_make_short_queues() -> None:
    queue = ReplicaQueue(SchedulingSettings())
    for number in range(300):
        queue.add(request(str(number), prompt=[1]))
        queue.ended(str(number), 2)
    for number in range(3):
        queue.add(request(str(number), prompt=[1]))
        queue.first_token(str(number))
    assert queue.seconds(COSTS) < 1.0


def test_work_in_the_background_adds_no_replica() -> None:
    assert background_lanes(SchedulingSettings()) == {"batch"}
    lanes = {"night": {"background": True}, "batch": {"background": False}}
    assert background_lanes(SchedulingSettings(lanes=lanes)) == {"night"}
    queue = ReplicaQueue(SchedulingSettings())
    queue.add(request("a", prompt=range(500), lane="batch"))
    queue.first_token("a")
    queue.ended("a", 5)
    assert queue.seconds(COSTS) == 0.0


def test_more_must_be_wanted_for_a_while_and_fewer_for_a_long_one_within_the_bounds() -> None:
    target = ReplicaTarget(1, 4)
    targets = [target.update(float(now), {"a": 3.0}) for now in range(5)]
    assert targets == [1, 1, 1, 3, 3]
    later = [target.update(float(now), {"a": 0.0, "b": 0.0, "c": 0.0}) for now in range(5, 80)]
    assert later[30] == 3 and later[40] == 2 and later[-1] == 1, "one at a time, each after half a minute"
    target = ReplicaTarget(2, 3)
    assert [target.update(float(now), {"a": 12.0 * (now == 1), "b": 0.0}) for now in range(4)] == [2, 2, 2, 2]
    assert [target.update(float(now), {"a": 90.0, "b": 90.0}) for now in range(20, 28)][-1] == 3
    assert [target.update(float(now), {"a": 0.0}) for now in range(40, 200)][-1] == 2
