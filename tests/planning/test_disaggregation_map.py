"""The map of disaggregation as a page: what a cell says, and what is not there."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from benchmarks.disaggregation import map as maps
from benchmarks.disaggregation.shapes import ANSWERS, LINKS, PROMPTS, PUBLISHED, SLOS
from inflight.metrics.slo import parse_slos
from inflight.workload.lengths import parse_lengths

USUAL = maps.Cell(256, 32, "usual", 10.0, "chunked", (2, 1), dict(zip(LINKS, (5.0, 10.5, 15.0), strict=True)))
NEVER = maps.Cell(1024, 32, "usual", 0.0, "chunked", (1, 1), dict(zip(LINKS, (0.0, 0.0, 2.0), strict=True)))


def test_a_cell_is_a_ratio_for_each_link() -> None:
    assert [USUAL.ratio(link) for link in LINKS] == [0.5, 1.05, 1.5]
    assert [NEVER.ratio(link) for link in LINKS] == [None, None, float("inf")]
    text = maps.short([USUAL, NEVER])
    assert "| prompts of 256 | 0.50 / 1.05 / **1.50** |  |  |" in text
    assert "| prompts of 1,024 | - / - / only disaggregated |  |  |" in text
    assert f"2 of {len(SLOS) * len(PROMPTS) * len(ANSWERS)} cells were run." in maps.report([USUAL, NEVER])


def test_cells_that_are_kept_are_not_searched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "cells.jsonl"
    kept.write_bytes(msgspec.json.encode(USUAL) + b"\n")
    assert maps.cells(kept, search=False) == [USUAL]
    searched = []

    def cell(prompts: int, answers: int, slos: str) -> maps.Cell:
        searched.append((prompts, answers, slos))
        return msgspec.structs.replace(USUAL, prompts=prompts, answers=answers, slos=slos)

    monkeypatch.setattr(maps, "cell", cell)
    every = len(SLOS) * len(PROMPTS) * len(ANSWERS)
    assert len(maps.cells(kept, search=True)) == every and len(searched) == every - 1
    assert maps.cells(kept, search=False) == maps.cells(kept, search=True) and len(searched) == every - 1


def test_the_map_is_written_between_its_marks_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "scaling.md"
    before = maps.SCALING.read_text(encoding="utf-8")
    page.write_text(before, encoding="utf-8")
    monkeypatch.setattr(maps, "SCALING", page)
    maps.write_map([USUAL])
    once = page.read_text(encoding="utf-8")
    assert "0.50 / 1.05 / **1.50**" in once
    maps.write_map([USUAL])
    assert page.read_text(encoding="utf-8") == once
    begin, end = f"<!-- begin {maps.MARK} -->", f"<!-- end {maps.MARK} -->"
    assert once.partition(begin)[0] == before.partition(begin)[0]
    assert once.partition(end)[2] == before.partition(end)[2]


def test_what_is_asked_can_be_asked() -> None:
    for slo in SLOS.values():
        assert len(parse_slos([slo])) == 2
    for one in PUBLISHED:
        assert parse_lengths(one.prompts) and parse_lengths(one.answers)
        assert (one.slos is None) != (one.slowdowns is None)
        assert one.pays == (one.name != "a small deployment")
