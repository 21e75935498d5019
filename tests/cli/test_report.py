"""`inflight report`: records of real runs as text, data and a page; and files that are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inflight.cli import call

from .terminal import Caller, CommandResult, write_lines


@pytest.fixture
def record(inflight: Caller, tmp_path: Path) -> Path:
    """Record a real model, answering a few lines."""
    lines = write_lines(tmp_path / "in.jsonl", *({"prompt_token_ids": [1, 2, 3], "max_tokens": 4} for _ in range(6)))
    path = tmp_path / "first.jsonl"
    result = inflight("run", "--input", lines, "--output", tmp_path / "out.jsonl", "--record", path)
    assert result.code == 0, result.err
    return path


def report(capture: pytest.CaptureFixture[str], *arguments: object) -> CommandResult:
    capture.readouterr()
    code = call(["report", *(str(one) for one in arguments)])
    out, err = capture.readouterr()
    return CommandResult(code, out, err)


def test_text_has_figures_and_a_diagnosis(capfd: pytest.CaptureFixture[str], record: Path) -> None:
    result = report(capfd, record)
    assert result.code == 0
    assert "requests answered" in result.out and "TTFT p99" in result.out and "batch occupancy" in result.out
    assert "Diagnosis" in result.out


def test_data_has_the_same_by_key(capfd: pytest.CaptureFixture[str], record: Path) -> None:
    (column,) = json.loads(report(capfd, record, "--json").out)["columns"]
    assert column["figures"]["requests"]["value"] == 6
    assert column["figures"]["ttft_p50"]["unit"] == "s" and column["figures"]["ttft_p50"]["samples"] == 6


def test_files_stand_side_by_side_on_a_page(capfd: pytest.CaptureFixture[str], record: Path, tmp_path: Path) -> None:
    other = tmp_path / "second.jsonl"
    other.write_text(record.read_text())
    result = report(capfd, record, other, "--html", tmp_path / "page.html", "--title", "Both")
    assert "first" in result.out and "second" in result.out
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<title>Both</title>" in page and "second: " in page
    assert "page.html is written" in result.err


def test_what_files_name_does_not_steer_the_terminal(
    capfd: pytest.CaptureFixture[str], record: Path, tmp_path: Path
) -> None:
    evil = tmp_path / "a\x1b[2J\u202eb.jsonl"
    evil.write_text(record.read_text())
    result = report(capfd, evil)
    assert result.code == 0 and "a\\x1b[2J\\u202eb" in result.out and "\x1b" not in result.out
    evil.write_text("{}")
    result = report(capfd, evil)
    assert result.code == 1 and "a\\x1b[2J\\u202eb" in result.err and "\x1b" not in result.err


def test_a_cut_off_record_is_marked(capfd: pytest.CaptureFixture[str], record: Path) -> None:
    record.write_text(record.read_text()[:-100])
    assert "! The record is cut off" in report(capfd, record).out


def test_other_files_are_refused_with_what_was_looked_for(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for text in ("hello", '{"kind": "poem"}', "[1, 2]", '{"prompt": "x"}\n{"prompt": "y"}\n', " \n", "\x00\x01"):
        path = tmp_path / "other"
        path.write_text(text)
        sentence = report(capfd, path).sentence()
        assert "--record" in sentence and "inflight bench" in sentence, text
    (tmp_path / "other").write_bytes(bytes(range(256)))
    assert "--record" in report(capfd, tmp_path / "other").sentence()


def test_a_page_does_not_overwrite_its_source(capfd: pytest.CaptureFixture[str], record: Path) -> None:
    before = record.read_bytes()
    assert "would be overwritten" in report(capfd, record, "--html", record).sentence()
    assert record.read_bytes() == before


def test_missing_files_are_mistakes(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "does not exist" in report(capfd, tmp_path / "none").sentence()
    assert report(capfd).code == 2
