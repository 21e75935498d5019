"""Figures of an engine's run, against plain counting."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from msgspec import structs

from inflight.core.strategies.static import Static
from inflight.metrics.definitions import mean_over_time, mean_while, share
from inflight.records.schema import of_kind, read_records
from inflight.report.engine_figures import engine_figures
from inflight.report.figures import figures_of

from .recorded import Engine, engine_of, short_of_blocks, workload


def test_means_weigh_by_time() -> None:
    assert mean_over_time([1.0, 4.0], [3.0, 1.0]) == pytest.approx(1.75)
    assert mean_over_time([], []) == 0
    assert mean_while([1.0, 4.0], [3.0, 1.0], [False, True]) == 4.0
    assert mean_while([1.0], [3.0], [False]) is None
    assert (share(1, 4), share(1, 0)) == (0.25, 0)


def test_figures_agree_with_the_plans(tmp_path: Path) -> None:
    run = Engine(Static(6, 0.1)).run(tmp_path, workload(20, gap=0.8))
    figures = engine_figures(engine_of(run))
    steps = of_kind(list(read_records(tmp_path / "record.jsonl")), "step")
    slots = sum(step.features.tokens for step in steps)
    assert figures.padding_waste == sum(sum(step.plan.padding) for step in steps) / slots
    assert figures.steps == len(steps)
    assert figures.step_tokens.mean == pytest.approx(slots / len(steps))
    whole = steps[-1].committed - steps[0].planned
    computed = sum(chunk.length for step in steps for chunk in step.plan.chunks)
    per_second = figures.prefill_tokens_per_s + figures.decode_tokens_per_s
    assert per_second == pytest.approx(computed / whole)
    assert figures.computed_tokens == computed
    busy = sum(step.committed - step.planned for step in steps)
    assert figures.busy == pytest.approx(busy / whole) and figures.busy < 1


def test_waiting_is_what_the_queue_was_charged_for(tmp_path: Path) -> None:
    """Little's law, exactly: the mean number waiting is the time waited over the run's time."""
    run = short_of_blocks(tmp_path)
    engine = engine_of(run)
    figures = engine_figures(engine)
    waited = (
        figures.time_in["queue"]
        + figures.time_in["other"]
        + sum(
            later - left
            for timeline in engine.rows.timelines.values()
            for left, later in zip(timeline.left, timeline.joined[1:], strict=False)
        )
    )
    assert figures.waiting_mean * figures.seconds == pytest.approx(waited, rel=0.02)


def test_snapshots_are_counted_as_plans_have_them(tmp_path: Path) -> None:
    """Beginnings that prompts share are found again; and there are so few slots that snapshots push others out."""
    requests = [*workload(20, gap=0.8, prefix=96), *workload(20, gap=0.8, seed=5, prompts=(160, 170), tenants=("b",))]
    requests = [structs.replace(one, request_id=str(index)) for index, one in enumerate(requests)]
    run = Engine(state_snapshots=3).run(tmp_path, requests)
    figures = engine_figures(engine_of(run)).snapshots
    steps = of_kind(list(read_records(tmp_path / "record.jsonl")), "step")
    taken = [(slot, chunk.sequence_id) for step in steps for chunk in step.plan.chunks for _, slot in chunk.snapshots]
    begun = [new for step in steps for new in step.plan.new_requests if new.snapshot >= 0]
    assert figures is not None and figures.snapshot_usage == 1.0
    assert figures.snapshots_taken == len(taken) and figures.snapshot_hits == len(begun) > 0
    by_slot = [[one for slot, one in taken if slot == number] for number in range(3)]
    assert figures.snapshots_evicted == sum(one != later for each in by_slot for one, later in pairwise(each)) > 0
    keys = [one.key for one in figures_of(run).listed]
    assert keys.index("kv_waste") < keys.index("snapshot_hits") < keys.index("prefix_share")


def test_a_model_without_recurrent_state_has_no_snapshots(tmp_path: Path) -> None:
    run = Engine().run(tmp_path, workload(5))
    assert engine_figures(engine_of(run)).snapshots is None
    assert not [one for one in figures_of(run).listed if "snapshot" in one.key]


def test_the_catalogue_has_each_key_once_and_knows_what_is_missing(tmp_path: Path) -> None:
    figures = figures_of(short_of_blocks(tmp_path))
    keys = [one.key for one in figures.listed]
    assert len(keys) == len(set(keys))
    assert figures["preemptions"].value == figures.engine.preemptions  # type: ignore[union-attr]
    assert figures["ttft_p50"].interval is not None and figures["ttft_p99"].interval is None, "60 do not reach so far"
    assert {one.group for one in figures.listed} == {"Throughput", "Latency", "Batch and memory"}
