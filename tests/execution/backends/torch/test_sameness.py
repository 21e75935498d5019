"""The suites of sameness and invariants on the backend for devices, two steps in flight, passes filled up for graphs:
every shape of batch, strategy, policy, allocation, preemption and family says the tokens of the definition, and what a
scheduler keeps is sound after each round.

Tokens, ends and texts are compared; bits of log-probabilities are not, since PyTorch's products on a CPU add up in
another order for another number of rows (`test_batch_invariant` has those of kernels).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from core.inspect_scheduler import check as check_scheduler
from models import FAMILIES, write_model
from test_sameness import SCHEDULES, SHAPES, Case, mix, opened, run

from inflight.config.engine import DEFAULT_ROWS
from inflight.execution import computing
from inflight.execution.backends.reference import ReferenceBackend
from inflight.execution.backends.torch.buckets import Buckets, row_sizes, token_sizes
from inflight.execution.memory import states_of
from inflight.models.registry import read_folder

from .opened import on_device

ENGINES = {**SHAPES, **SCHEDULES}
USUAL = ("crumbs", "dynamic", "adaptive", "auto, fair")  # the others in ./check --all
Said = list[list[tuple[Any, ...]]]


def said(folder: Path, cases: Sequence[Case], by_torch: bool, **shape: Any) -> Said:
    with pytest.MonkeyPatch.context() as patch:
        buckets = Buckets(row_sizes(shape.get("max_num_seqs", DEFAULT_ROWS)))
        if not states_of(read_folder(folder, to_run=True)):
            buckets = buckets._replace(tokens=token_sizes(shape.get("max_num_batched_tokens", 64)))
        backend = on_device("float32", 2, buckets) if by_torch else ReferenceBackend("float32")
        patch.setattr(computing, "open_backend", lambda *given, **named: backend)
        with opened(folder, dtype="float32", device="cpu", **shape) as engine:
            if by_torch:
                _watch(patch, engine.loop)
            outputs = run(engine, list(cases))
            while not engine.loop.idle:  # a step that was in flight when the last one ended
                engine.loop.advance()
            stats = engine.loop.stats()
    assert (stats.waiting, stats.running, stats.kv.held_blocks) == (0, 0, 0)
    return [[(one.token_ids, one.finish_reason, one.text) for one in output.outputs] for output in outputs]


def _watch(patch: pytest.MonkeyPatch, loop: Any) -> None:
    """After each round the invariants hold."""
    advance = loop.advance

    def watched(*given: Any) -> Any:
        outcome = advance(*given)
        scheduler = loop._scheduler
        check_scheduler(scheduler, loop._executor.capacity, [flight.plan for flight in loop._flights])
        return outcome

    patch.setattr(loop, "advance", watched)


def some(names: Sequence[str]) -> list[Any]:
    return [pytest.param(one, marks=() if one in USUAL else pytest.mark.wide) for one in names]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Case], Said]:
    folder, cases = write_model(tmp_path_factory.mktemp("llama")), mix(seed=21, count=16)
    return folder, cases, said(folder, cases, False)


@pytest.mark.parametrize("name", some(list(ENGINES)))
def test_every_shape_and_schedule(llama: tuple[Path, list[Case], Said], name: str) -> None:
    folder, cases, wanted = llama
    assert said(folder, cases, True, **ENGINES[name]) == wanted


@pytest.mark.wide
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family: str, tmp_path: Path) -> None:
    folder, cases = write_model(tmp_path / family, family), mix(seed=2, count=8)
    wanted = said(folder, cases, False)
    assert said(folder, cases, True, **SHAPES["crumbs"]) == wanted
    with opened(folder, dtype="float32") as engine:
        groups = len(engine.capacity.windows)  # of which each has blocks of its own
    little = {**SCHEDULES["swap"], "num_blocks": groups * SCHEDULES["swap"]["num_blocks"]}
    assert said(folder, cases, True, **little) == wanted
