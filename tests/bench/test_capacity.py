"""The search finds the edge of a server whose capacity is known."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from inflight.bench.capacity import find_capacity, judge, starting_rate
from inflight.bench.client_types import BenchError, Target
from inflight.bench.run import Warmup, measure, sweep
from inflight.metrics.observation import Targets
from inflight.workload.workload import Entry, Workload

from .scripted import FakeSend
from .test_run import NoBodies


def probe(send: FakeSend, targets=Targets(e2e=0.5), count=200):  # noqa: B008  (frozen)
    """Evenly spaced requests at a rate."""

    def run(rate: float):
        workload = Workload(tuple(Entry(k / rate, 10, 4, targets=targets) for k in range(count)), "test")
        return measure(workload, send(workload, Target(""), NoBodies()), Warmup())

    return run


@pytest.mark.parametrize("start", [0.5, 9.0, 100.0])
def test_the_edge_is_found_from_below_and_from_above(start):
    found = find_capacity(probe(FakeSend(seconds=0.1)), start, precision=0.02)
    assert found.met is not None and found.missed is not None
    assert found.met <= 10.3 and found.missed >= 9.9  # just above 10/s the queue has not grown by much in 200 requests
    assert found.missed / found.met <= 1.02
    assert [one.met for one in found.probes].count(True) >= 1


def test_a_search_that_begins_at_an_estimate_takes_few_probes():
    """A closed loop shows about the server's throughput; from one request a second it takes twice as many."""
    entries = tuple(Entry(0.0, 10, 4, targets=Targets(e2e=0.5)) for _ in range(64))
    loop = Workload(entries, "closed", concurrency=16, closed=True)
    closed = measure(loop, FakeSend(seconds=0.1)(loop, Target(""), NoBodies()), Warmup())
    start = starting_rate(closed)
    assert start is not None and 5 < start < 10
    from_estimate, from_one = (find_capacity(probe(FakeSend(seconds=0.1)), begin) for begin in (start, 1.0))
    assert len(from_estimate.probes) <= len(from_one.probes) - 2
    assert from_estimate.met == pytest.approx(from_one.met, rel=0.1)


def test_each_probe_is_announced_with_how_many_follow():
    begun = []
    found = find_capacity(probe(FakeSend(seconds=0.1)), 4.0, begin=lambda value, left: begun.append((value, left)))
    assert [value for value, _ in begun] == [one.value for one in found.probes]
    bounded = [left for _, left in begun if left is not None]
    assert bounded == sorted(bounded, reverse=True) and bounded[-1] == 0
    assert len(bounded) == bounded[0] + 1 and begun[0][1] is None


def test_why_a_probe_was_missed_is_said_with_its_figure():
    found = find_capacity(probe(FakeSend(seconds=0.1)), 40.0, precision=0.5)
    assert re.match(r"saturated at (9\.[5-9]|10)\d* requests/s", found.probes[0].why)
    met = next(one for one in found.probes if one.met)
    assert met.why == "100.0% of 200 requests met their targets"


def test_targets_that_no_load_meets():
    found = find_capacity(probe(FakeSend(seconds=0.1), Targets(e2e=0.05)), 1.0)
    assert found.met is None
    assert found.missed == found.probes[-1].value


def test_whole_numbers_end_between_neighbours():
    def run(value):
        workload = Workload((Entry(0.0, 10, 4, targets=Targets(e2e=0.1 * value)),), "test")
        return measure(workload, FakeSend(seconds=0.7)(workload, Target(""), NoBodies()), Warmup())

    found = find_capacity(lambda value: run(14 - value), 1, whole=True)  # met up to 7
    assert (found.met, found.missed) == (7, 8)
    assert all(one.value == int(one.value) for one in found.probes)


def test_a_client_that_cannot_keep_up_ends_the_search_and_says_so():
    send = FakeSend(faults=("The client was overloaded.",))
    found = find_capacity(probe(send), 4.0)
    assert found.probes == []
    assert found.ended == "at 4: The client was overloaded."
    assert len(send.sent) == 2  # a machine may be busy for a moment


def test_an_interruption_keeps_the_probes_before():
    plain = probe(FakeSend(seconds=0.1))
    interrupted = probe(FakeSend(seconds=0.1, stops_after=50))
    found = find_capacity(lambda rate: interrupted(rate) if rate > 3 else plain(rate), 1.0)
    assert found.ended == "interrupted"
    assert found.met == 2.0


def test_the_share_decides():
    def fate(index, one):
        return replace(one, outcome="failed", error="HTTP 500") if index % 50 == 49 else one

    measured = probe(FakeSend(seconds=0.01, fate=fate))(1.0)
    assert judge(measured, 0.97)[0]
    assert not judge(measured, 0.99)[0]


def test_an_invalid_start_is_refused():
    with pytest.raises(BenchError, match="begins at 0"):
        find_capacity(probe(FakeSend()), 0.0)


def test_a_sweep_is_in_order_and_ends_with_an_interruption():
    plain = probe(FakeSend(seconds=0.1))
    interrupted = probe(FakeSend(seconds=0.1, stops_after=50))
    points = sweep(lambda rate: interrupted(rate) if rate == 4 else plain(rate), [2, 1, 4, 8])
    assert [point.value for point in points] == [2, 1, 4]
    assert points[1].measured.summary.offered_per_s == pytest.approx(1.0, rel=0.02)
