"""Engines whose decode passes are replayed, with requests that have adapters: they say what others say, and what a
replay launches reads nothing new but in memory that stays.

A replay here runs the same operations on the tensors of the pass that was captured. A graph would launch kernels with
the addresses and sizes of then, whatever they are now: so each is looked at, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from adapters import write_adapter
from models import write_model

from benchmarks.drive import drive
from inflight.config.assembly import scheduler_for
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.plan import Capacity
from inflight.core.types.request import Request
from inflight.core.types.sampling import Adapter, SamplingParams
from inflight.engine.clock import MonotonicClock
from inflight.engine.loop import EngineLoop
from inflight.execution.adapters import AdapterMatrices
from inflight.execution.backends.torch.backend import TorchBackend
from inflight.execution.backends.torch.buckets import NO_BUCKETS, Buckets, row_sizes
from inflight.execution.backends.torch.capture import CapturedDecoder
from inflight.execution.backends.torch.definitions import Definitions
from inflight.execution.backends.torch.device_pass import DevicePass
from inflight.execution.backends.torch.weights import DeviceGateUp, DeviceLinear
from inflight.execution.checkpoints.checkpoint import Checkpoint
from inflight.execution.memory import kv_shape
from inflight.execution.model import Model
from inflight.execution.program import Operation
from inflight.execution.runner import ModelRunner
from inflight.execution.weights import load_weights
from inflight.models.registry import read_folder

ROWS, BLOCKS, POSITIONS, SLOTS = 6, 40, 128, 2
RANKS = {"a": 4, "b": 3, "c": 20}  # the last changes more than the others


class WatchedDefinitions(Definitions):
    """calls: the addresses and sizes of adapters in each launch."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []

    def launch(self, operation: Operation[...], on: DevicePass, arguments: Sequence[Any]) -> None:
        weights = [one for one in arguments if isinstance(one, DeviceLinear | DeviceGateUp)]
        for matrix, rows in filter(None, map(on.adapted, weights)):
            addresses = matrix.table.data_ptr(), rows.rows.data_ptr(), rows.slots.data_ptr()
            self.calls.append((*addresses, matrix.table.shape, matrix.extent, len(rows.slots), arguments[0].shape))
        super().launch(operation, on, arguments)


class WatchedReplays:
    """Graphs of passes that a launcher computes. adapted: how many replays had adapters."""

    def __init__(self, launcher: WatchedDefinitions) -> None:
        self._launcher, self.made, self.adapted = launcher, 0, 0

    def capture(self, run: Callable[[], None]) -> WatchedReplay:
        self.made += 1
        return WatchedReplay(self, run, self.of(run))

    def of(self, run: Callable[[], None]) -> list[tuple[Any, ...]]:
        """Return the calls while it runs."""
        self._launcher.calls.clear()
        run()
        return list(self._launcher.calls)


class WatchedReplay:
    def __init__(self, replays: WatchedReplays, run: Callable[[], None], calls: list[tuple[Any, ...]]) -> None:
        self._replays, self._run, self._calls = replays, run, calls

    def replay(self) -> None:
        assert self._replays.of(self._run) == self._calls
        self._replays.adapted += bool(self._calls)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("adapted")
    write_model(path / "model")
    for seed, (name, rank) in enumerate(RANKS.items()):
        write_adapter(path / name, path / "model", seed, rank)
    return path


def answers(folder: Path, captures: bool) -> tuple[list[list[int]], WatchedReplays]:
    """Make requests with every adapter and with none, more of them than slots."""
    spec, launcher = read_folder(folder / "model", to_run=True), WatchedDefinitions()
    buckets = Buckets(row_sizes(ROWS), row_sizes(24)) if captures else NO_BUCKETS
    backend = TorchBackend("float32", torch.device("cpu"), launcher, buckets=buckets)
    weights = load_weights(spec, Checkpoint(folder / "model", True), backend, POSITIONS)
    decoder: Any = Model(spec, weights, backend, 64, ROWS)
    capacity = Capacity(BLOCKS, 16, ROWS, POSITIONS, spec.vocab_size, adapter_slots=SLOTS)
    graphs = WatchedReplays(launcher)
    runner = ModelRunner(
        CapturedDecoder(decoder, graphs, buckets) if captures else decoder,
        backend,
        backend.kv_cache(kv_shape(spec, 16), BLOCKS + 1),
        capacity,
        adapters=AdapterMatrices(spec, weights.weight_slices),
    )
    settings = EngineSettings(max_num_seqs=ROWS, max_num_batched_tokens=64, max_model_len=POSITIONS)
    loop = EngineLoop(scheduler_for(capacity, settings, SchedulingSettings()), runner, MonotonicClock())
    known = {name: Adapter(name, str(folder / name), number) for number, name in enumerate(RANKS)}
    found = drive(loop, [request(number, known.get("-abc"[number % 4])) for number in range(16)])
    runner.close()
    return [one.token_ids for one in found.outcomes], graphs


def request(number: int, adapter: Adapter | None) -> Request:
    """All with the same prompt, which adapters alone make different."""
    params = SamplingParams(temperature=0.0, max_tokens=8 + number, ignore_eos=True)
    prompt = tuple(range(40, 60))
    return Request(request_id=str(number), prompt_token_ids=prompt, params=params, seed=number, adapter=adapter)


def test_an_engine_with_graphs_says_what_one_without_says(folder: Path) -> None:
    (found, graphs), (expected, _) = answers(folder, True), answers(folder, False)
    assert found == expected
    assert len({tuple(one[:8]) for one in found}) == 4, "two of the adapters answer alike"
    assert graphs.made > 4 and graphs.adapted > 10
