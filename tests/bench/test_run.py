"""Which part of a run is measured, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inflight.bench.client_types import BenchError, Target
from inflight.bench.run import Measured, Warmup, measure
from inflight.metrics.observation import Targets
from inflight.workload.workload import Entry, Workload

from .scripted import FakeSend


class NoBodies:
    def body(self, index, before):
        return b"{}", ()

    def answered(self, conversation, text, token_ids):
        return conversation


def every(seconds: float, count: int, **fields) -> Workload:
    return Workload(tuple(Entry(k * seconds, 10, 4, **fields) for k in range(count)), "test")


def run(workload: Workload, send: FakeSend, warmup=Warmup()) -> Measured:  # noqa: B008  (frozen)
    return measure(workload, send(workload, Target(""), NoBodies()), warmup)


def test_the_window_ends_with_the_last_send_so_that_the_drain_is_not_counted():
    found = run(every(0.5, 21), FakeSend(seconds=0.1))
    assert (found.window.start, found.window.end) == (0.0, 10.0)
    assert found.summary.requests_per_s == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("warmup", "start", "offered"),
    [(Warmup(requests=5), 2.5, 16), (Warmup(seconds=3.2), 3.2, 14), (Warmup(share=0.1), 1.0, 19)],
)
def test_the_warm_up_is_not_counted(warmup, start, offered):
    found = run(every(0.5, 21), FakeSend(), warmup)
    assert found.window.start == start
    assert found.summary.offered == offered
    assert str(warmup) in found.why


def test_a_warm_up_that_leaves_nothing_is_refused():
    with pytest.raises(BenchError, match="leaves none of 3 requests"):
        run(every(0.5, 3), FakeSend(), Warmup(requests=3))


def test_a_burst_is_measured_to_its_end():
    found = run(every(0.0, 20), FakeSend(seconds=0.1), Warmup(share=0.1))
    assert found.window.end == pytest.approx(2.0)
    assert found.summary.requests_per_s == pytest.approx(10.0)
    assert "last end" in found.why


def test_overload_is_saturation():
    found = run(every(0.05, 200), FakeSend(seconds=0.1))
    assert found.summary.saturated
    assert found.summary.requests_per_s == pytest.approx(10.0, rel=0.05)


def test_summaries_by_class_lane_and_tenant():
    entries = tuple(
        Entry(k * 0.5, 10, 4, traffic="chat" if k % 3 else "search", lane="batch", tenant="") for k in range(30)
    )
    found = run(Workload(entries, "test"), FakeSend())
    assert {name: one.offered for name, one in found.by_class.items()} == {"chat": 20, "search": 10}
    assert list(found.by_lane) == ["batch"]
    assert found.by_tenant == {}


def test_failed_and_rejected_requests_are_missed_and_noted_as_the_server_reports_them():
    def fate(index, one):
        if index % 4 == 0:
            return replace(one, outcome="rejected", error=f"HTTP 429: try again in {index} s")
        return one

    found = run(every(0.5, 20, targets=Targets(e2e=1.0)), FakeSend(fate=fate))
    assert (found.summary.rejected, found.summary.requests) == (5, 15)
    assert found.summary.attainment == pytest.approx(0.75)
    assert found.notes == ("5 × HTTP 429: try again in 0 s",)


def test_answers_of_another_length_than_asked_are_noted():
    found = run(
        every(0.5, 10), FakeSend(fate=lambda index, one: replace(one, output_tokens=one.output_tokens - index % 2))
    )
    assert any("Answers: 5 of 10 have another length" in note for note in found.notes)


def test_what_the_client_says_of_itself_decides_whether_figures_are_believed():
    assert run(every(0.5, 10), FakeSend()).believed
    found = run(every(0.5, 10), FakeSend(faults=("too slow",)))
    assert not found.valid and not found.believed


def test_nothing_completed_is_not_believed():
    found = run(every(0.5, 4), FakeSend(fate=lambda index, one: replace(one, outcome="failed", error="HTTP 500: no")))
    assert found.valid and not found.believed
    assert found.notes == ("4 × HTTP 500: no",)


def test_an_interrupted_run_keeps_what_was_sent():
    found = run(every(0.5, 20), FakeSend(stops_after=6), Warmup(requests=10))
    assert found.partial
    assert found.summary.offered == 6  # and no warm-up was left to be taken
    assert found.window.start == 0.0


def test_an_interruption_before_the_first_request_leaves_nothing():
    with pytest.raises(BenchError, match="before the first request"):
        run(every(0.5, 20), FakeSend(stops_after=0))
