"""Figures of rounds in a file: those of other precisions stay where one is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.peers import record

from .builders import contest, job


def test_what_is_on_record_of_another_precision_stays(tmp_path: Path) -> None:
    path = tmp_path / "figures.jsonl"
    bf16, int8 = contest({"a": job()}), replace(contest({"a": job()}), precision="int8")
    for one, load in ((bf16, 0.25), (int8, 0.5), (bf16, 0.75)):
        one.loads[0] = load
        record.write(path, [one])
    read = [contest({"a": job()}), replace(contest({"a": job()}), precision="int8")]
    record.read(path, read)
    assert [one.loads for one in read] == [{0: 0.75}, {0: 0.5}]
