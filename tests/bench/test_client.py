"""Runs as a whole: pace, conversations, processes, interruption."""

from __future__ import annotations

import os
import signal
import threading
import time
from itertools import pairwise
from typing import Any

import pytest

from benchmarks.stub_server import StubServer
from inflight.bench.client import send
from inflight.bench.client_types import BenchError, Progress, Target, Transcript
from inflight.bench.processes import shards_of
from inflight.workload.workload import Entry, Workload

from .stubbed import ScriptedBodies, entries, play

SLOW = {"tokens": 1, "busy_s": 0.04}  # a server that answers one at a time, 25 a second


def test_an_open_loop_shows_the_queue_that_a_closed_loop_hides(stub: StubServer) -> None:
    count = 20
    opened = play(stub, [SLOW] * count, entries(count, 0.01))  # 100 a second
    closed = play(stub, [SLOW] * count, entries(count), concurrency=1, closed=True)
    waits = [one.ttft for one in opened.observations]
    assert all(later > earlier for earlier, later in pairwise(waits[::5]))
    assert waits[-1] > 10 * 0.03 > waits[0]
    steady = [one.ttft for one in closed.observations]
    assert max(steady[count // 2 :]) < waits[-1] / 2
    for before, after in pairwise(closed.observations):
        assert after.intended >= before.ended - 1e-3 and after.sent >= before.last_token


def test_an_open_loop_sends_without_waiting_for_answers(stub: StubServer) -> None:
    sent = play(stub, [{"tokens": 1, "first_s": 0.5}] * 10, entries(10, 0.005))
    assert max(one.sent for one in sent.observations) < min(one.first_token for one in sent.observations)


def test_a_bound_on_an_open_loop_holds_back_but_does_not_stop_the_clock(stub: StubServer) -> None:
    sent = play(stub, [{"tokens": 1, "first_s": 0.05}] * 8, entries(8, 0.001), concurrency=2)
    in_flight = [(one.sent, 1) for one in sent.observations] + [(one.ended, -1) for one in sent.observations]
    level = most = 0
    for _, change in sorted(in_flight):
        level += change
        most = max(most, level)
    assert most <= 2
    last = sent.observations[-1]
    assert last.intended == 0.007 and last.delay > 0.1 and last.ttft > last.delay
    assert sent.health.delay_p99_s < last.delay  # being held back is not the client's lateness


def test_a_turn_waits_for_the_answer_before_it_and_sends_it(stub: StubServer) -> None:
    offered = (
        Entry(0.0, 5, 3, session="a"),
        Entry(0.0, 5, 3, session="a", after=0, think_s=0.1),
        Entry(0.0, 5, 3, session="a", after=1),
        Entry(0.3, 5, 3, session="b"),
    )
    scripts: list[Any] = [{"tokens": 3, "token_ids": True, "gap_s": 0.01}] * 4
    first, second, third, other = play(stub, scripts, offered, processes=2).observations
    assert first.ended + 0.1 <= second.intended + 1e-3 and second.ended <= third.intended + 1e-3
    assert other.intended == 0.3
    assert [one.outcome for one in (first, second, third, other)] == ["completed"] * 4


class Remembering(ScriptedBodies):
    """Refuses to write down a conversation that is not the one that was had."""

    def body(self, index: int, before: Transcript | None) -> tuple[bytes, Transcript]:
        expected = {0: None, 1: "<0>abc[0, 1, 2]", 2: "<0>abc[0, 1, 2]<1>", 3: None}[index]
        if before != expected:
            raise ValueError(f"turn {index} follows {before!r}")
        return super().body(index, before)


def test_bodies_get_the_conversation_so_far(stub: StubServer) -> None:
    offered = (Entry(0.0, 5, 3), Entry(0.0, 5, 3, after=0), Entry(0.0, 5, 3, after=1), Entry(0.0, 5, 3))
    refused = {"status": 400}
    bodies = Remembering(({"tokens": 3, "token_ids": True}, refused, {"tokens": 1}, {"tokens": 1}))
    found = send(Workload(offered, "turns"), Target(stub.url), bodies).observations
    assert [one.outcome for one in found] == ["completed", "failed", "completed", "completed"]


def test_what_bodies_raise_ends_the_run(stub: StubServer) -> None:
    offered = (Entry(0.0, 5, 3), Entry(0.0, 5, 3, after=0))
    bodies = Remembering(({"tokens": 2}, {"tokens": 1}))  # another conversation than it expects
    with pytest.raises(ValueError, match="turn 1 follows '<0>ab'"):
        send(Workload(offered, "turns"), Target(stub.url), bodies)


def test_several_processes_find_what_one_finds_in_the_same_order(stub: StubServer) -> None:
    scripts = [{"tokens": 1 + place % 5, **({"status": 429} if place % 4 == 3 else {})} for place in range(30)]
    offered = tuple(Entry(place * 0.004, 5, 4, traffic=f"class {place % 3}") for place in range(30))
    found = [play(stub, scripts, offered, processes=count) for count in (1, 3)]
    alone, shared = (
        [(one.intended, one.traffic, one.outcome, one.output_tokens, one.status) for one in sent.observations]
        for sent in found
    )
    assert alone == shared
    assert [sent.health.processes for sent in found] == [1, 3]
    assert found[0].frames == found[1].frames
    assert all(0.0 <= one.sent - one.intended < 5.0 for one in found[1].observations)


def test_shares_keep_conversations_whole_and_divide_the_bound() -> None:
    offered = tuple(Entry(0.0, 1, 1, after=place - 3 if place >= 3 else None) for place in range(12))
    parts = shards_of(Workload(offered, "w", concurrency=5), 2)
    assert [list(part.indexes) for part in parts] == [[0, 2, 3, 5, 6, 8, 9, 11], [1, 4, 7, 10]]
    assert [part.workload.concurrency for part in parts] == [3, 2]
    for part in parts:
        for place, entry in enumerate(part.workload.entries):
            before = offered[part.indexes[place]].after
            assert (None if entry.after is None else part.indexes[entry.after]) == before
    assert len(shards_of(Workload(offered, "w", concurrency=1), 4)) == 1
    assert len(shards_of(Workload((), "w"), 4)) == 1


def test_a_turn_may_stand_before_the_one_that_it_follows() -> None:
    offered = (Entry(0.0, 1, 1, after=2), Entry(0.0, 1, 1), Entry(1.0, 1, 1))
    assert [list(part.indexes) for part in shards_of(Workload(offered, "w"), 2)] == [[0, 2], [1]]


def test_an_empty_workload_is_over_at_once(stub: StubServer) -> None:
    sent = play(stub, [], ())
    assert sent.observations == () and not sent.interrupted


def test_progress_is_reported_while_it_runs_and_at_the_end(stub: StubServer) -> None:
    reported: list[Progress] = []
    scripts = [{"tokens": 2, "first_s": 0.05}] * 12 + [{"status": 429}, {"status": 500}]
    play(stub, scripts, entries(14, 0.06), progress=reported.append, processes=2)
    last = reported[-1]
    assert (last.offered, last.sent, last.completed, last.rejected, last.failed) == (14, 14, 12, 1, 1)
    assert (last.output_tokens, last.in_flight) == (24, 0)
    assert len(reported) > 2
    for before, after in pairwise(reported):
        assert before.sent <= after.sent and before.elapsed_s <= after.elapsed_s


@pytest.mark.parametrize("processes", [1, 2])
def test_an_interrupted_run_returns_what_there_is(stub: StubServer, processes: int) -> None:
    began = time.monotonic()
    scripts = [{"tokens": 2}] * 4 + [{"tokens": 3, "fault": "stall", "fault_after": 1, "usage": "none"}] * 2
    offered = (*entries(6, 0.01), *(Entry(60.0, 9, 4) for _ in range(3)))
    seen = 0

    def progress(now: Progress) -> None:
        nonlocal seen
        seen = now.output_tokens

    sent = play(
        stub,
        [*scripts, *[{"tokens": 1}] * 3],
        offered,
        processes=processes,
        progress=progress,
        interrupt=lambda: seen >= 10,
    )
    assert sent.interrupted and time.monotonic() - began < 50.0
    done, broken, never = sent.observations[:4], sent.observations[4:6], sent.observations[6:]
    assert [(one.outcome, one.output_tokens) for one in done] == [("completed", 2)] * 4
    assert [(one.outcome, one.output_tokens) for one in broken] == [("unfinished", 1)] * 2
    assert all(one.sent is not None for one in broken)
    assert [(one.outcome, one.sent, one.prompt_tokens, one.intended) for one in never] == [
        ("unfinished", None, 9, 60.0)
    ] * 3


def test_control_c_interrupts_where_nothing_else_is_asked(stub: StubServer) -> None:
    before = signal.getsignal(signal.SIGINT)
    presses = threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGINT))
    presses.start()
    try:
        sent = play(stub, [{"tokens": 1}] * 2, (Entry(0.0, 5, 1), Entry(60.0, 5, 1)))
    finally:
        presses.cancel()
    assert sent.interrupted
    assert sent.observations[1].outcome == "unfinished"
    assert signal.getsignal(signal.SIGINT) is before


class Laborious(ScriptedBodies):
    """Bodies that take longer to make than there is time until the next one."""

    def body(self, index: int, before: Transcript | None) -> tuple[bytes, Transcript]:
        end = time.process_time() + 0.03
        while before is not None and time.process_time() < end:
            pass
        return super().body(index, before)


def test_a_client_that_cannot_keep_up_says_so(stub: StubServer) -> None:
    offered = (Entry(0.0, 5, 1), *(Entry(0.2 + place * 0.01, 5, 1, after=0) for place in range(30)))
    sent = send(Workload(offered, "w"), Target(stub.url), Laborious(({"tokens": 1},) * 31))
    assert {one.outcome for one in sent.observations} == {"completed"}
    assert not sent.health.valid
    assert "The client was overloaded" in sent.health.faults[0] and "--processes 2" in sent.health.faults[0]


class Fatal(ScriptedBodies):
    """The process that asks for a body ends by itself."""

    def body(self, index: int, before: Transcript | None) -> tuple[bytes, Transcript]:
        os._exit(9)


def test_a_process_that_ends_by_itself_is_reported(stub: StubServer) -> None:
    with pytest.raises(BenchError, match=r"Process 1 of 1 .* ended by itself, with code 9"):
        send(Workload(entries(1), "w"), Target(stub.url), Fatal(({},)))
