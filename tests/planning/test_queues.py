"""A queue that grows without end differs from an engine that fills."""

from __future__ import annotations

import pytest

from inflight.metrics.observation import Observation
from inflight.metrics.slo import Slo
from inflight.metrics.summary import Trend
from inflight.planning.demand import Drawn
from inflight.planning.engine_config import EngineConfig
from inflight.planning.queues import class_behind, grows
from inflight.planning.simulation import try_out

from .builders import drawn, machine

CONFIG = EngineConfig(max_num_seqs=16, max_num_batched_tokens=256)
MEASURED = 0.1, 0.95


def capacity(demand: Drawn) -> float:
    """Return the requests/s of an engine that always has some waiting."""
    offered = demand.workload(50.0, 1000, 0)
    tokens = sum(one.output_tokens for one in offered.entries) / len(offered.entries)
    return try_out(machine(), CONFIG, offered).busy_tokens_per_s / tokens


@pytest.mark.parametrize(
    ("demand", "load"),
    [
        (drawn(prompt="100", answer="20", gap_variation=0.01), 1.05),
        (drawn(gap_variation=0.01), 1.1),
        (drawn(), 1.2),
    ],
)
def test_a_load_beyond_capacity_is_found_within_a_trial(demand: Drawn, load: float) -> None:
    most = capacity(demand)
    for seed in range(4):
        for part, is_beyond in (load, True), (0.9, False):
            trial = try_out(machine(), CONFIG, demand.workload(part * most, 450, seed), measured=MEASURED)
            assert trial.saturated == is_beyond and trial.met != is_beyond, (part, seed)


def test_an_engine_that_fills_is_not_saturated() -> None:
    """Its latency rises by more than is typical, from that of an empty engine to that of a full one, and no further."""
    config, slo = EngineConfig(max_num_seqs=256, max_num_batched_tokens=512), Slo("ttft", 2.0)
    demand = drawn(prompt="lognormal:20:60", answer="lognormal:400:600")
    trial = try_out(machine(), config, demand.workload(2.0, 250, 0), (slo,), measured=(0.3, 0.9))
    assert trial.summary.saturated, "as a run is judged that is only looked at"
    assert trial.met and not trial.saturated


def test_what_waiting_grows_by_is_a_share_of_the_run() -> None:
    assert not grows(Trend(rise=0.37, z=3.6, typical=0.3), 38.0)
    assert grows(Trend(rise=1.9, z=3.6, typical=4.0), 38.0), "5 % more than is served, behind a long queue"
    assert not grows(Trend(rise=1.9, z=1.0, typical=0.3), 38.0)
    assert not grows(None, 38.0)


def seen(traffic: str, at: float, waited: float, lane: str = "") -> Observation:
    times = {"intended": at, "sent": at, "first_token": at + waited, "last_token": at + waited, "ended": at + waited}
    return Observation("", traffic=traffic, lane=lane, output_tokens=1, longest_output=1, **times)


@pytest.mark.parametrize(("of_batch", "behind"), [(0.5, "batch"), (0.0, "")])
def test_each_class_is_judged_by_itself(of_batch: float, behind: str) -> None:
    """The wait of one says nothing of another: chat's own waiting is that of a filling engine."""
    chat = [seen("chat", n / 5, 0.05 + 0.004 * min(n, 50)) for n in range(500)]
    batch = [seen("batch", n * 1.0, 1.0 + of_batch * n) for n in range(100)]
    assert class_behind([*chat, *batch], 100.0) == behind
    assert class_behind(batch, 100.0) == "", "a single class is judged as the whole run is"


@pytest.mark.parametrize("lanes", [("interactive", "batch"), ("batch", "interactive"), ("", "")])
@pytest.mark.parametrize("unserved", [0.05, 0.2, 0.38])
def test_a_class_that_is_served_in_part_is_behind_however_little_of_the_work_it_has(
    lanes: tuple[str, str], unserved: float
) -> None:
    chat = [seen("chat", n / 10, 0.05, lanes[0]) for n in range(6000)]
    bulk = [seen("bulk", n * 2.0, 0.1 + unserved * n * 2.0, lanes[1]) for n in range(300)]
    assert class_behind([*chat, *bulk], 600.0) == "bulk"


def test_a_low_lane_that_waits_for_a_busy_time_is_served() -> None:
    """Its waiting grows by a twentieth of the run, and goes back: the queue is short once."""
    chat = [seen("chat", n / 10, 0.05, "interactive") for n in range(6000)]
    waits = [0.1 if n < 120 or 220 < n < 230 else 0.3 * (n - 120) for n in range(300)]
    low, high = (
        [seen("bulk", n * 2.0, wait, lane) for n, wait in enumerate(waits)] for lane in ("batch", "interactive")
    )
    assert class_behind([*chat, *low], 600.0) == ""
    assert class_behind([*chat, *high], 600.0) == "bulk", "what goes first has no cause to wait"
