"""The last seconds of a record are found as by reading all of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inflight.records import recent
from inflight.records.recent import find_recent, position_at


@pytest.fixture
def record(tmp_path: Path) -> Path:
    lines = [json.dumps({"kind": "header", "settings": {"x": "y" * 90}})]
    for number in range(400):
        lines.append(json.dumps({"kind": "step", "plan": "p" * (number % 40), "committed": 0.5 * number}))
        if number % 7 == 0:
            lines.append(json.dumps({"kind": "attempts", "attempted": [1.0]}))
        if number % 11 == 0:
            lines.append(json.dumps({"kind": "request", "ended": 0.5 * number}))
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("piece", [64, 1000, 1 << 20])
@pytest.mark.parametrize("seconds", [0.0, 0.4, 7.3, 60.0, 199.0, 5000.0])
def test_the_lines_are_those_of_a_whole_reading(
    record: Path, monkeypatch: pytest.MonkeyPatch, piece: int, seconds: float
) -> None:
    monkeypatch.setattr(recent, "_PIECE", piece)
    content = record.read_bytes()
    found = find_recent(record, seconds)
    assert found.last == 199.5 and found.end == len(content)
    first = json.loads(content[found.begin :].splitlines()[0])
    assert first["kind"] == "step" and first["committed"] == max(0.0, 0.5 * -(-(199.5 - seconds) // 0.5))
    assert position_at(record, found.begin, 2).number == content[: found.begin].count(b"\n")


def test_a_line_that_is_being_written_is_left_out(record: Path) -> None:
    whole = record.stat().st_size
    with record.open("a") as file:
        file.write('{"kind":"step","committed":2')
    found = find_recent(record, 10.0)
    assert found.end == whole and found.last == 199.5


def test_a_record_without_times_has_no_end(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text('{"kind":"header"}\n')
    assert find_recent(path, 10.0)._replace(header=0) == (0, 18, 18, None)
    path.write_text("")
    assert find_recent(path, 10.0) == (0, 0, 0, None)
