"""The figures of finished rounds in a file, so that a contest can go on another day."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.contest import Contest, Figure


def write(path: Path, contests: Sequence[Contest]) -> None:
    """Keep what is there of other precisions."""
    precisions = {contest.precision for contest in contests}
    lines = [line for line in _lines(path) if line["precision"] not in precisions]
    for contest in contests:
        lines += [
            {"precision": contest.precision, "engine": engine, "version": words}
            for engine, words in contest.versions.items()
        ]
        lines += [
            {"precision": contest.precision, "round": number, "load": load} for number, load in contest.loads.items()
        ]
        lines += [dataclasses.asdict(figure) for figure in contest.figures]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def read(path: Path, contests: Sequence[Contest]) -> None:
    """Into the contests of the same precisions."""
    by_precision = {contest.precision: contest for contest in contests}
    for line in _lines(path):
        contest = by_precision.get(line["precision"])
        if contest is None:
            continue
        if "version" in line:
            contest.versions[line["engine"]] = line["version"]
        elif "load" in line:
            contest.loads[line["round"]] = line["load"]
        else:
            contest.figures.append(Figure(**line))


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
