"""Drafts in a report: what was taken back is no recomputation, tokens of a step come together, and pictures say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inflight.records.json_text import json_text
from inflight.report.engine_figures import engine_figures
from inflight.report.page import render
from inflight.report.pictures import draft_pictures, tokens_per_step
from inflight.report.reading import read_record
from inflight.report.run import Report, Run, Setting

from .recorded import Engine, engine_of, workload

CAPACITY = {"num_blocks": 8, "block_size": 16, "max_rows": 2, "max_model_len": 64, "vocab_size": 100}


def chunk(start: int, drafts: int = 0, length: int = 1, **more: Any) -> dict[str, Any]:
    """A chunk of the one sequence."""
    counts = {"num_drafts": drafts} if drafts else {}
    return {
        "sequence": 0, "row": 0, "start": start, "length": length + drafts, "new_blocks": [], "sample": True,
        **counts, **more,
    }  # fmt: skip


def step(number: int, one: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A second each, as records of version 1 have it."""
    return {
        "kind": "step", "step": number, "planned": float(number), "committed": number + 1.0, "seconds": 1.0,
        "chunks": [one], "new_rows": [], "freed_rows": [], "padding": [], "moves": {"out": [], "back": []},
        "features": {"tokens": 1, "rows": 1, "samples": 1, "decode_context": 1, "prefill_context": 0.0},
        **more,
    }  # fmt: skip


STEPS = [
    step(0, chunk(0, length=5, new_blocks=[3]), new_rows=[{"row": 0, "tokens": 5, "prompt_tokens": 5}]),
    step(1, chunk(5, drafts=3), accepted=[[0, 2]], draft_seconds=0.25),
    step(2, chunk(8, drafts=2), accepted=[[0, 0]], draft_seconds=0.25),
    step(3, chunk(9)),
]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    header = {"kind": "header", "version": 1, "capacity": CAPACITY, "settings": {"speculation": "heads"}}
    path = tmp_path / "drafted.jsonl"
    path.write_text("".join(json_text(line) + "\n" for line in (header, *STEPS)), encoding="utf-8")
    return read_record(path).runs[0]


def test_tokens_of_one_step_come_at_one_time(run: Run) -> None:
    (one,) = run.observations
    assert list(one.token_times) == [1.0, 2.0, 2.0, 2.0, 3.0, 4.0]
    assert one.gaps == [1.0, 1.0, 1.0]
    assert one.tpot == 3.0 / 5


def test_what_was_taken_back_is_computed_again_and_no_recomputation(run: Run) -> None:
    steps = engine_of(run).steps
    assert list(steps.decode) == [0, 3, 1, 1]
    assert list(steps.rejected) == [0, 1, 2, 0]
    assert list(steps.recomputed) == [0, 0, 0, 0]
    assert [steps.tokens(index) for index in range(4)] == [5, 4, 3, 1]
    assert list(steps.used) == [5, 8, 9, 10]


def test_figures(run: Run) -> None:
    figures = engine_figures(engine_of(run)).drafts
    assert figures is not None
    assert (figures.draft_tokens, figures.accepted_share, figures.tokens_with_drafts) == (5, 0.4, 2.0)
    assert (figures.draft_steps, figures.draft_time) == (0.5, 0.125)


def test_charts_show_accepted_drafts(run: Run) -> None:
    position, lengths, over_time = draft_pictures(engine_of(run))
    assert position.table.head[1:] == ("accepted", "rejected", "behind a rejected one", "above it")
    assert [row[:4] for row in position.table.rows] == [
        ("1", "1 drafts", "1 drafts", "0 drafts"),
        ("2", "1 drafts", "0 drafts", "1 drafts"),
        ("3", "0 drafts", "1 drafts", "0 drafts"),
    ]
    assert lengths.table.rows == (("0", "50 %"), ("1", "0 %"), ("2", "50 %"))
    assert "Of the 2 times" in lengths.description and "1.00 on average" in lengths.description
    assert [one.name for one in over_time.plot.series] == ["accepted", "rejected, or behind a rejected one"]
    assert "rejected drafts" in [one.name for one in tokens_per_step(engine_of(run)).plot.series]


def test_the_page_has_them_where_there_are_any(run: Run, tmp_path: Path) -> None:
    page = render(Report("Drafted", [Setting("drafted", [run])]))
    assert "Drafts by position" in page and "drafts accepted" in page
    plain = Engine().setting(tmp_path, workload(6))
    assert draft_pictures(engine_of(plain.runs[0])) == []
    assert engine_figures(engine_of(plain.runs[0])).drafts is None
    assert "Drafts by position" not in render(Report("Plain", [plain]))
