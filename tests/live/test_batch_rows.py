"""Rows of scripted steps, as runs and points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inflight.core.types.plan import Chunk
from inflight.live.batch_rows import MAX_POINTS, BatchRows
from inflight.live.step_facts import StepFacts

PREFILL, DECODE, RECOMPUTED, PADDING, IDLE = range(5)


def step(
    number: int,
    chunks: Sequence[tuple[int, int, int, int]],
    new: Mapping[int, int] | None = None,
    freed: Sequence[int] = (),
    padding: Sequence[int] = (),
    rejected: Mapping[int, int] | None = None,
) -> StepFacts:
    """Make a step of one second."""
    return StepFacts(
        float(number),
        number + 1.0,
        0.9,
        0.8,
        [Chunk(*one, (), 0) for one in chunks],
        new or {},
        freed,
        padding,
        rejected or {},
    )


def test_a_prompt_and_its_tokens_are_two_runs() -> None:
    rows = BatchRows()
    rows.step(step(0, [(7, 2, 0, 5)], {2: 9}))
    rows.step(step(1, [(7, 2, 5, 4)]))
    for number in (2, 3, 4):
        rows.step(step(number, [(7, 2, 7 + number, 1)]))
    points, runs = rows.end_frame()
    assert [(run.work, run.start, run.end, run.tokens) for run in runs] == [(PREFILL, 0, 2, 9), (DECODE, 2, 5, 3)]
    assert {(run.row, run.sequence) for run in runs} == {(2, 7)}
    assert [(one.prompt, one.decode) for one in points] == [(5, 0), (4, 0), (0, 1), (0, 1), (0, 1)]
    assert rows.end_frame() == ([], []), "a frame has only new steps"


def test_tokens_recomputed_after_a_preemption_are_a_run_of_their_own() -> None:
    rows = BatchRows()
    rows.step(step(0, [(1, 0, 0, 6)], {0: 6}))
    assert rows.step(step(1, [(2, 0, 0, 4)], {0: 4}, freed=[0])) == [1], "it lost its row"
    rows.step(step(2, [(1, 0, 0, 7)], {0: 6}, freed=[0]))
    points, runs = rows.end_frame()
    assert [(run.sequence, run.work) for run in runs] == [(1, PREFILL), (2, PREFILL), (1, RECOMPUTED)]
    assert (points[2].recomputed, points[2].prompt) == (6, 1)


def test_a_row_that_is_held_and_not_computed_is_idle_or_padding() -> None:
    rows = BatchRows()
    rows.step(step(0, [(1, 0, 0, 2), (2, 1, 0, 2)], {0: 2, 1: 2}))
    rows.step(step(1, [(1, 0, 2, 1)]))
    rows.step(step(2, [(1, 0, 3, 1)], padding=[1]))
    _, runs = rows.end_frame()
    assert [run.work for run in runs if run.sequence == 2] == [PREFILL, IDLE, PADDING]


def test_wrong_drafts_are_counted_and_were_not_computed() -> None:
    rows = BatchRows()
    rows.step(step(0, [(1, 0, 0, 2)], {0: 2}))
    rows.step(step(1, [(1, 0, 2, 4)], rejected={1: 3}))
    rows.step(step(2, [(1, 0, 3, 1)]))
    points, runs = rows.end_frame()
    assert (points[1].decode, points[1].rejected) == (1, 3)
    assert RECOMPUTED not in [run.work for run in runs]


def test_many_steps_are_few_points_that_lose_nothing() -> None:
    rows = BatchRows()
    rows.step(step(0, [(1, 0, 0, 3)], {0: 3}))
    for number in range(1, 1000):
        rows.step(step(number, [(1, 0, 2 + number, 1)]))
    points, runs = rows.end_frame()
    assert len(points) <= MAX_POINTS and sum(one.steps for one in points) == 1000
    assert sum(one.prompt + one.decode for one in points) == 3 + 999 == sum(run.tokens for run in runs)
    assert runs[0].work == PREFILL, "a prompt is not lost among single tokens"
    assert (runs[0].start, runs[-1].end) == (0.0, 1000.0)


def test_a_pause_ends_a_run() -> None:
    rows = BatchRows()
    rows.step(step(0, [(1, 0, 0, 2)], {0: 2}))
    rows.step(step(1, [(1, 0, 2, 1)]))
    rows.step(step(9, [(1, 0, 3, 1)]))
    _, runs = rows.end_frame()
    assert [(run.start, run.end) for run in runs] == [(0, 1), (1, 2), (9, 10)]
