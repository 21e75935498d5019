"""Reading records: a record agrees with the engine's own accounts, and broken files are reported, not hidden."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from core.builders import request

from inflight.core.strategies.continuous import Continuous
from inflight.core.strategies.dynamic import Dynamic
from inflight.core.strategies.static import Static
from inflight.records.schema import RecordError
from inflight.report.charts.quantity import MISSING
from inflight.report.engine_figures import engine_figures
from inflight.report.page import render
from inflight.report.reading import read_record
from inflight.report.result import as_json
from inflight.report.run import Report, Setting

from .pages import Page
from .recorded import Engine, engine_of, lines, short_of_blocks, workload


@pytest.mark.parametrize("strategy", [Static(6, 0.1), Dynamic(6, 0.1, 3), Continuous(512)], ids=lambda one: one.name)
@pytest.mark.parametrize("depth", [1, 2])
def test_first_tokens_and_ends_are_those_of_the_engines_accounts(tmp_path: Path, strategy, depth: int) -> None:  # type: ignore[no-untyped-def]
    run = Engine(strategy, depth=depth).run(tmp_path, workload(14))
    accounts = {one.request_id: one for one in engine_of(run).requests}
    assert len(run.observations) == 14
    for one in run.observations:
        timings = accounts[one.request_id].timings
        assert one.ttft == pytest.approx(timings.ttft_ms / 1e3, abs=1e-5)
        assert one.ended - one.intended == pytest.approx(timings.total_ms / 1e3, abs=1e-5)
        assert len(one.token_times) == one.output_tokens


def test_a_batch_hands_its_tokens_out_together(tmp_path: Path) -> None:
    run = Engine(Static(6, 0.1)).run(tmp_path, workload(12, gap=0.0))
    assert {len(set(one.token_times)) for one in run.observations} == {1}
    assert len({one.ended for one in run.observations}) == 2, "two batches of six"
    assert run.summary.itl.samples == 0, "no client waits between tokens that come together"


def test_recomputed_swapped_and_cached_agree_with_the_accounts(tmp_path: Path) -> None:
    run = engine_of(short_of_blocks(tmp_path, "swap", host_blocks=40))
    timings = [account.timings for account in run.requests]
    figures = engine_figures(run)
    assert figures.preemptions == sum(timeline.preemptions for timeline in run.rows.timelines.values()) > 0
    assert figures.recomputed_tokens == sum(one.recomputed_tokens for one in timings)
    assert figures.moved_out >= figures.moved_back == sum(one.swapped_blocks for one in timings) > 0
    prompts = sum(account.prompt_tokens for account in run.requests)
    assert figures.prefix_share == sum(one.cached_tokens for one in timings) / prompts > 0
    assert sum(figures.time_in.values()) == pytest.approx(sum(one.total_ms for one in timings) / 1e3)
    assert sum(figures.queued_by.values()) == pytest.approx(figures.time_in["queue"], abs=1e-3)


def test_a_record_that_does_not_say_what_was_waited_for_is_shown(tmp_path: Path) -> None:
    path = Engine(max_rows=1).record(tmp_path / "a.jsonl", workload(4, gap=0.0))
    old = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for one in old:
        one.get("timings", {}).pop("queued_by", None)
    path.write_text("".join(json.dumps(one) + "\n" for one in old), encoding="utf-8")
    setting = read_record(path)
    figures = engine_figures(engine_of(setting.runs[0]))
    assert figures.time_in["queue"] > 0 == sum(figures.queued_by.values())
    assert MISSING in render(Report("r", [setting]))


def test_what_admission_refused_was_offered_too(tmp_path: Path) -> None:
    """Two may wait, and twenty come at once; one of them could never be served."""
    asked = [*workload(20, gap=0.0, tenants=("anna", "bob")), request("long", range(3000), tenant="cleo")]
    run = Engine(max_rows=1, max_queued_requests=2).run(tmp_path, asked)
    rejected = [one for one in run.observations if one.outcome == "rejected"]
    assert len(run.observations) == run.summary.offered == 21
    assert len(rejected) == run.summary.rejected > 10 and run.summary.requests == 20 - len(rejected)
    assert all("may" in one.error and one.sent is not None and one.tenant for one in rejected)
    (never,) = (one for one in run.observations if one.outcome == "failed")
    assert (never.request_id, never.prompt_tokens, never.tenant) == ("long", 3000, "cleo")
    report = Report("r", [Setting("s", [run])])
    content = Page(render(report)).words
    assert f"{len(rejected)} of 21 offered requests" in content and "can never be served" in content
    assert as_json(report)["columns"][0]["figures"]["rejected"]["value"] == len(rejected)


def test_samples_of_one_request_are_one_observation(tmp_path: Path) -> None:
    run = Engine().run(tmp_path, [request("a", range(20), output=5, n=3)])
    (one,) = run.observations
    assert (one.output_tokens, one.longest_output, len(one.token_times)) == (15, 5, 15)
    assert len(one.gaps) == 3 * 4 and min(one.gaps) > 0.02, "between tokens of a sample lies a step"
    assert run.summary.itl.p50 == pytest.approx(one.tpot, rel=0.2)
    assert engine_of(run).requests[0].sequences == (0, 1, 2)


def test_settings_come_with_their_reasons_or_bare(tmp_path: Path) -> None:
    path = Engine(settings={"policy": "fcfs"}).record(tmp_path / "a.jsonl", workload(2))
    assert read_record(path).options["policy"].reason == "as set"
    first, *rest = lines(path)
    header = json.loads(first)
    header["settings"] = {"strategy": "chunked"}
    path.write_text(json.dumps(header) + "\n" + "".join(rest))
    assert read_record(path).options["strategy"].value == "chunked"


def test_a_cut_off_record_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = Engine().record(tmp_path / "a.jsonl", workload(14))
    whole = read_record(path).runs[0]
    text = path.read_text()
    path.write_text(text[: int(len(text) * 0.6)])
    cut = read_record(path).runs[0]
    assert "cut off" in cut.notes[0] and "line " in cut.notes[0]
    assert "running" in cut.notes[1]
    assert 0 < cut.summary.requests < whole.summary.requests
    assert cut.summary.unfinished > 0
    assert len(engine_of(cut).steps) < len(engine_of(whole).steps)


def test_a_run_that_was_killed_between_lines_is_marked_too(tmp_path: Path) -> None:
    path = Engine().record(tmp_path / "a.jsonl", workload(3, gap=0.0))
    path.write_text("".join(lines(path)[:6]))
    (note,) = read_record(path).runs[0].notes
    assert note.startswith("The record ended with 3 sequences running")


def test_a_line_that_lacks_a_key_ends_the_reading(tmp_path: Path) -> None:
    path = Engine().record(tmp_path / "a.jsonl", workload(3, gap=0.0))
    kept = lines(path)
    step = json.loads(kept[5])
    del step["plan"]["chunks"]
    path.write_text("".join([*kept[:5], json.dumps(step) + "\n", *kept[6:]]))
    run = read_record(path).runs[0]
    assert "Line 6" in run.notes[0] and "chunks" in run.notes[0]
    assert len(engine_of(run).steps) == 4


def test_a_record_without_steps_is_refused(tmp_path: Path) -> None:
    path = Engine().record(tmp_path / "a.jsonl", [])
    with pytest.raises(RecordError, match="no step: nothing was computed"):
        read_record(path)


def test_a_header_without_capacity_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"kind": "header", "version": 1, "settings": {}}\n')
    with pytest.raises(RecordError, match="capacity"):
        read_record(path)


def test_aborted_and_failed_requests_do_not_count_as_answered(tmp_path: Path) -> None:
    path = Engine().record(tmp_path / "a.jsonl", workload(3, gap=0.0))
    changed = []
    for line in lines(path):
        record = json.loads(line)
        if record["kind"] == "request" and record["request"]["request_id"] == "1":
            record["samples"][0]["finish"] = {"reason": "error", "detail": "Step 6 broke."}
        if record["kind"] == "request" and record["request"]["request_id"] == "2":
            record["samples"][0]["finish"]["reason"] = "abort"
        changed.append(json.dumps(record) + "\n")
    path.write_text("".join(changed))
    run = read_record(path).runs[0]
    assert (run.summary.requests, run.summary.failed) == (1, 2)
    assert {one.request_id: one.error for one in run.observations} == {"0": "", "1": "Step 6 broke.", "2": "aborted"}
