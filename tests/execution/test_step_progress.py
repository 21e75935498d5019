"""Work beside steps rests while these are computed, and readers of blocks get their progress layer by layer."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest

from inflight.core.types.plan import BatchPlan, EarlySend
from inflight.execution import step_progress
from inflight.execution.backends.protocol import KVLayer, KVShape
from inflight.execution.memory import kv_shape
from inflight.execution.step_progress import LayerProgress, StepActivity, layer_ends

from .conftest import OracleOf
from .driver import BLOCK, Driver, backends

SEND = EarlySend("peers:give:one", (1,), (7,))


@pytest.mark.parametrize("isa", backends()[:2])
@pytest.mark.parametrize("variant", ["llama2", "qwen2"])
def test_what_is_there_behind_a_layer_is_what_is_there_in_the_end(oracle_of: OracleOf, variant: str, isa: str) -> None:
    oracle = oracle_of(variant)
    driver = Driver.of(oracle.folder, "float32", isa)
    memory = driver._backend.block_memory(driver._cache)
    ends = layer_ends(kv_shape(driver.config, BLOCK), driver._backend.bytes_per_block)
    assert memory is not None and len(ends) == len(driver.config.layers)
    size, seen = ends[-1], list[bytes]()
    driver.decoder.watch_layers(lambda layer: seen.append(bytes(memory)))
    driver.prefill(driver.start(oracle.prompt[:40]), 40)
    final, blocks = bytes(memory), len(memory) // size
    assert len(seen) == len(ends)
    for then, end in zip(seen, ends, strict=True):
        for block in range(blocks):
            begin = block * size
            assert then[begin : begin + end] == final[begin : begin + end]
    assert any(then != final for then in seen[:-1])


def test_a_block_that_is_more_than_its_layers_reports_nothing() -> None:
    shape = KVShape(16, (KVLayer(0, 1, 8, 8), None, KVLayer(0, 2, 8, 8)))
    assert layer_ends(shape, lambda one: 100 * len(one.layers)) == []
    assert layer_ends(shape, lambda one: sum(100 * layer.kv_heads for layer in one.layers if layer)) == [100, 100, 300]
    windows = KVShape(16, (KVLayer(0, 1, 8, 8), KVLayer(1, 1, 8, 8)))
    assert layer_ends(windows, lambda one: 100) == []


class Reader:
    def __init__(self) -> None:
        self.calls: list[object] = []

    def begin_step(self, sends: Sequence[EarlySend]) -> None:
        self.calls.append(tuple(sends))

    def advance(self, nbytes: int) -> None:
        self.calls.append(nbytes)

    def fail_step(self) -> None:
        self.calls.append("broken off")


def test_the_last_pass_of_a_step_that_is_read_counts() -> None:
    reader = Reader()
    progress = LayerProgress([10, 20], reader)
    for sends in ((), (SEND,)):
        progress.begin(BatchPlan(0, (), early_sends=sends))
        for is_last in (False, True):
            progress.begin_pass(is_last=is_last)
            progress.layer_done(0)
            progress.layer_done(1)
        progress.fail_step()
    assert reader.calls == [(SEND,), 10, 20, "broken off"]


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(time, "sleep", found.append)
    return found


def test_no_work_rests_where_no_steps_are_computed(slept: list[float]) -> None:
    steps = StepActivity()
    steps.rest(0.001, 10, 1.0)
    steps.began(computes=False)
    steps.ended()
    steps.rest(0.001, 10, 1.0)
    assert not steps.is_going_on and not slept


def test_one_rests_for_times_what_was_worked_while_they_are(slept: list[float]) -> None:
    steps = StepActivity()
    steps.began(computes=True)
    steps.rest(0.001, 10, 1.0)
    steps.ended()
    steps.rest(0.002, 10, 1.0)
    steps.rest(0.5, 10, 1.0)
    assert slept == pytest.approx([0.01, 0.02, 1.0])


def test_steps_that_follow_one_another_go_on_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_progress, "_BETWEEN_STEPS", 0.05)
    steps = StepActivity()
    steps.began(computes=True)
    time.sleep(0.1)
    assert steps.is_going_on, "however long one takes"
    steps.ended()
    assert steps.is_going_on
    time.sleep(0.1)
    assert not steps.is_going_on


def test_a_step_that_begins_transfers_alone_leaves_them_the_cores() -> None:
    steps = StepActivity()
    steps.began(computes=True)
    steps.ended()
    steps.began(computes=False)
    steps.ended()
    assert not steps.is_going_on


def test_a_small_piece_waits_for_the_end_of_the_step_that_is_being_computed() -> None:
    steps, passed = StepActivity(), []
    steps.await_gap(1.0, 10, 10)  # nothing is
    steps.began(computes=True)

    def work() -> None:
        steps.await_gap(1.0, 10, 10)
        passed.append(steps.is_going_on)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.05)
    assert not passed
    steps.ended()
    thread.join(5)
    assert passed == [True], "between two steps, though others follow"


def test_it_does_not_wait_for_long_steps_longer_than_it_would_rest() -> None:
    steps = StepActivity()
    steps.began(computes=True)
    began = time.monotonic()
    steps.await_gap(0.001, 20, 10)
    steps.await_gap(5.0, 20, 0.02)
    assert 0.03 < time.monotonic() - began < 5
