"""The report as text and as data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from inflight.core.strategies.static import Static
from inflight.report.result import as_json, as_text
from inflight.report.run import Report, Setting

from .recorded import Engine, workload
from .test_page import client_side


def test_settings_stand_side_by_side(tmp_path: Path) -> None:
    settings = [
        Engine(Static(6, 0.1)).setting(tmp_path, workload(14), "static"),
        Engine().setting(tmp_path, workload(14), "chunked"),
    ]
    text = as_text(Report("Two", settings))
    head = next(line for line in text.splitlines() if line.startswith("Throughput"))
    assert head.split() == ["Throughput", "static", "chunked"]
    assert "Much of the work is padding" in text
    assert {len(line.rstrip()) <= 120 for line in text.partition("Diagnosis")[0].splitlines()} == {True}


def test_a_single_run_beside_a_sweep_has_a_heading_and_a_name() -> None:
    sweep = Setting("sweep", [client_side(20, slow) for slow in (1.0, 2.0)])
    report = Report("r", [Setting("one", [replace(client_side(20), load="")]), sweep])
    assert "──  ──" not in as_text(report)
    assert as_json(report)["columns"][0]["name"] == "one"


def test_what_is_not_to_be_believed_is_said_first() -> None:
    run = replace(client_side(20), notes=("The client was late.",), valid=False)
    text = as_text(Report("r", [Setting("s", [run])]))
    assert 0 < text.index("! The client was late.") < text.index("! This run is not valid") < text.index("Throughput")


def test_data_holds_means_ratios_and_findings() -> None:
    fast = Setting("fast", [replace(client_side(60, slow), load="") for slow in (1.0, 1.02, 0.98)])
    slow = Setting("slow", [replace(client_side(60, slow), load="") for slow in (2.0, 2.04, 1.96)])
    first, second = as_json(Report("r", [fast, slow]))["columns"]
    assert "ratio" not in first["figures"]["ttft_p50"]
    ratio = second["figures"]["ttft_p50"]["ratio"]
    assert 1.99 < ratio["mean"] < 2.01 and ratio["interval"][0] > 1.9
    assert second["repeats"] == 3
