"""A block fills from its beginning on as layers are done, and its reader gets the progress of steps that it reads."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from inflight.core.types.plan import BatchPlan, EarlySend
from inflight.execution.backends.protocol import KVLayer, KVShape
from inflight.execution.layer_progress import LayerProgress, layer_ends
from inflight.execution.memory import kv_shape

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
    assert layer_ends(shape, lambda one: 100 * len(one.layers)) == [100, 100, 200][:0]
    assert layer_ends(shape, lambda one: sum(100 * layer.kv_heads for layer in one.layers if layer)) == [100, 100, 300]
    windows = KVShape(16, (KVLayer(0, 1, 8, 8), KVLayer(1, 1, 8, 8)))
    assert layer_ends(windows, lambda one: 100) == []


class Reader:
    def __init__(self) -> None:
        self.calls: list[object] = []

    def computing(self, sends: Sequence[EarlySend]) -> None:
        self.calls.append(tuple(sends))

    def have(self, nbytes: int) -> None:
        self.calls.append(nbytes)

    def broken_off(self) -> None:
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
        progress.broken_off()
    assert reader.calls == [(SEND,), 10, 20, "broken off"]
