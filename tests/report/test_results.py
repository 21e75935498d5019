"""Result files of the load client: read with or without single requests, as one run or as a sweep."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from inflight.bench.result import request_row, summary_record
from inflight.metrics.observation import Targets
from inflight.metrics.summary import Summary, Window, summarize
from inflight.records.result import BenchRecord, ResultError, SeriesRecord
from inflight.report.page import render
from inflight.report.result import as_json, as_text
from inflight.report.results import read_results
from inflight.report.run import Report

from .pages import Page, figures, titled
from .test_page import client_side


def summary_of(summary: Summary, saturated: bool = False) -> dict[str, Any]:
    """Return the client's record, with another goodput than its requests have."""
    found: dict[str, Any] = {**summary_record(summary), "goodput_per_s": 3.5, "attainment": 0.25}
    if saturated:
        found |= {"saturated_at_per_s": summary.requests_per_s, **dict.fromkeys(("ttft_s", "tpot_s", "itl_s", "e2e_s"))}
    return found


def result(slow: float = 1.0, rows: bool = True, saturated: bool = False, **changed: Any) -> dict[str, Any]:
    seen = client_side(60, slow).observations
    summary = summarize(seen, Window(0.0, 8.0))
    record = {
        "kind": "bench",
        "version": 1,
        "created": "2026-01-01T00:00:00+00:00",
        "program": "inflight 0",
        "valid": True,
        "faults": [],
        "partial": False,
        "settings": {"rate": 10.0, "model": None},
        "target": {},
        "workload": {"name": "w", "notes": ["3 rows were dropped."]},
        "window": {"start_s": 0.0, "end_s": 8.0, "part": "all"},
        "summary": summary_of(summary, saturated),
        "by_class": {"chat": summary_of(summary), "document": summary_of(summary, True)},
        "by_lane": {"": summary_of(summary)},
        "by_tenant": {"": summary_of(summary)},
        "health": {},
        "notes": [],
        "series": {"step_s": 1, "offered": [10, 5], "completed": [3, 12], "output_tokens": [9, 66], "running": [2, 3]},
    }
    if rows:
        targets = {"ttft": 0.3, "tpot": None, "itl": None, "e2e": None}
        record["requests"] = [{**request_row(one), "targets_s": targets} for one in seen]
    return record | changed


def write(path: Path, record: dict[str, Any]) -> Path:
    path.write_text(json.dumps(record))
    return path


def test_figures_are_those_of_the_file(tmp_path: Path) -> None:
    setting = read_results(write(tmp_path / "a.json", result()))
    (run,) = setting.runs
    expected = summarize(client_side(60).observations, Window(0.0, 8.0))
    assert run.summary.ttft == expected.ttft and run.summary.itl == expected.itl
    assert (run.summary.goodput, run.summary.attainment) == (3.5, 0.25)
    assert run.notes == ("3 rows were dropped.",)
    assert list(setting.options) == ["rate"]
    assert set(run.groups) == {"class chat", "class document"}
    assert run.observations[0].targets == Targets(ttft=0.3)
    assert [one.ttft for one in run.observations] == [one.ttft for one in client_side(60).observations]


def test_without_rows_the_page_has_what_there_is(tmp_path: Path) -> None:
    text = render(Report("r", [read_results(write(tmp_path / "a.json", result(rows=False)))]))
    titles = [one.title for one in figures(text)]
    assert {"TTFT, percentiles", "Offered and completed", "In flight"} <= set(titles)
    assert "TTFT, cumulative" not in titles
    assert "class document" in Page(text).words and "growing" in Page(text).words


@pytest.mark.parametrize("rows", [True, False])
def test_a_saturated_result_stays_saturated(tmp_path: Path, rows: bool) -> None:
    (run,) = read_results(write(tmp_path / "a.json", result(rows=rows, saturated=True))).runs
    assert run.summary.saturated
    content = Page(render(Report("r", [read_results(tmp_path / "a.json")]))).words
    assert "Saturated at" in content and "was still growing" in content and "inf s" not in content


def test_a_sweep_has_a_run_for_each_point_by_value(tmp_path: Path) -> None:
    points = [{"value": 8, "result": result(2.0)}, {"value": 4, "result": result(1.0)}]
    points.append({"value": 16, "result": result(3.0, saturated=True)})
    sweep = {"kind": "sweep", "version": 1, "by": "rate", "partial": True, "points": points}
    setting = read_results(write(tmp_path / "a.json", sweep))
    assert setting.loads == ["4 requests/s", "8 requests/s", "16 requests/s"]
    assert "interrupted" in setting.runs[0].notes[0]
    assert "Without a point: 1 load" in titled(render(Report("r", [setting])), "TTFT p99 against throughput").html


def test_an_invalid_run_says_why(tmp_path: Path) -> None:
    (run,) = read_results(write(tmp_path / "a.json", result(valid=False, faults=["The client was late."]))).runs
    assert not run.valid and "The client was late." in run.notes


def test_a_result_says_who_was_asked_for_what(tmp_path: Path) -> None:
    target = {"url": "http://127.0.0.1:8000", "endpoint": "completions", "model": "tiny"}
    named = result(target=target, workload={"name": "closed loop of 8; default: 256 in; seed 0", "notes": []})
    setting = read_results(write(tmp_path / "a.json", named))
    whom = "completions of tiny at http://127.0.0.1:8000"
    assert setting.about == f"{whom}; closed loop of 8; default: 256 in; seed 0"
    report = Report("r", [setting])
    assert setting.about in Page(render(report)).words and setting.about in as_text(report)
    assert as_json(report)["columns"][0]["about"] == setting.about


def test_a_sweep_is_not_said_to_be_its_first_load(tmp_path: Path) -> None:
    points = [
        {"value": load, "result": result(workload={"name": f"closed loop of {load}; default; seed 0", "notes": []})}
        for load in (1, 4, 16)
    ]
    sweep = {"kind": "sweep", "version": 1, "by": "concurrency", "partial": False, "points": points}
    about = read_results(write(tmp_path / "a.json", sweep)).about
    assert about == "1 at once to 16 at once; default; seed 0"


def test_pieces_of_a_second_are_not_said_to_be_shorter(tmp_path: Path) -> None:
    page = render(Report("r", [read_results(write(tmp_path / "a.json", result()))]))
    for title in ("Offered and completed", "In flight"):
        (caption,) = re.findall(r'<p class="about">(.*?)</p>', titled(page, title).html)
        assert "mean over 1 s." in caption and " ms" not in caption


def test_a_point_that_is_not_valid_is_crossed_out(tmp_path: Path) -> None:
    points = [{"value": 4, "result": result(1.0)}, {"value": 8, "result": result(2.0, valid=False)}]
    sweep = {"kind": "sweep", "version": 1, "by": "rate", "partial": False, "points": points}
    page = render(Report("r", [read_results(write(tmp_path / "a.json", sweep))]))
    curve = titled(page, "TTFT p99 against throughput")
    assert curve.plot is not None
    assert [one.get("crossed", False) for one in curve.plot["series"][0]["points"]] == [False, True]
    assert "Crossed out (1 run)" in curve.html and curve.table[2][2].endswith("not valid")
    assert "do not believe" in Page(page).words
    assert "Distributions: of 4 requests/s." in Page(page).words


def test_what_lacks_a_key_is_refused(tmp_path: Path) -> None:
    record = result()
    del record["summary"]["goodput_per_s"]
    with pytest.raises(ResultError, match="lacks 'goodput_per_s'"):
        read_results(write(tmp_path / "a.json", record))
    with pytest.raises(ResultError, match="0 points"):
        sweep = {"kind": "sweep", "version": 1, "by": "rate", "partial": False, "points": []}
        read_results(write(tmp_path / "b.json", sweep))


def test_these_tests_write_what_the_client_writes() -> None:
    """Keys of the schema, so that a change of it is seen here."""
    record = result()
    assert set(record) == set(BenchRecord.__annotations__)
    assert set(record["series"]) == set(SeriesRecord.__annotations__)
