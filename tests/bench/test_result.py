"""Results as files: our own keys, vLLM's, CSV, and back again."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pytest

from inflight.bench.client_types import Target
from inflight.bench.preparing import Prepared
from inflight.bench.result import About, bench_record, sweep_record, vllm_record, write_csv
from inflight.bench.run import Measured, Warmup, measure
from inflight.bench.served_model import ServedModel
from inflight.bench.server_capabilities import ServerCapabilities
from inflight.metrics.observation import Targets
from inflight.metrics.summary import summarize
from inflight.records.result import (
    BenchRecord,
    PercentilesRecord,
    RequestRow,
    ResultError,
    SummaryRecord,
    read_result,
)
from inflight.report.results import read_results
from inflight.workload.traces import load
from inflight.workload.workload import Entry, Workload

from .scripted import FakeSend
from .test_run import NoBodies

PREPARED = Prepared(
    Target("http://h"), ServedModel("m", 1024), ServerCapabilities(notes=("a note",)), None, {}, ("a note",)
)
ABOUT = About(PREPARED, {"rate": 2.0}, save_requests=True)


def measured(count=40, rate=2.0, send=None, targets=Targets(e2e=0.2)) -> Measured:  # noqa: B008  (frozen)
    entries = tuple(Entry(k / rate, 10, 4, traffic="chat", targets=targets) for k in range(count))
    workload = Workload(entries, "evenly", notes=("3 rows dropped",))
    sent = (send or FakeSend(seconds=0.1))(workload, Target(""), NoBodies())
    return measure(workload, sent, Warmup(requests=4))


def keys(kind: type) -> set[str]:
    return set(kind.__annotations__)


def test_the_record_has_the_documented_keys_and_no_others():
    record = bench_record(measured(), ABOUT)
    assert set(record) == keys(BenchRecord)
    assert set(record["summary"]) == keys(SummaryRecord)
    assert set(record["summary"]["ttft_s"]) == keys(PercentilesRecord)
    assert all(set(row) == keys(RequestRow) for row in record["requests"])
    assert json.loads(json.dumps(record)) == record


def test_the_record_says_what_was_measured():
    record = bench_record(measured(), ABOUT)
    summary = record["summary"]
    assert (record["valid"], record["partial"], record["faults"]) == (True, False, [])
    assert record["target"]["model"] == "m"
    assert record["notes"] == ["a note", "3 rows dropped"]
    assert (summary["offered"], summary["completed"], summary["attainment"]) == (36, 36, 1.0)
    assert summary["e2e_s"]["p50"] == pytest.approx(0.1)
    assert record["by_class"]["chat"]["offered"] == 36
    assert sum(record["series"]["offered"]) == 40  # the warm-up too
    assert sum(record["series"]["output_tokens"]) == 160


def test_a_saturated_run_has_no_percentiles():
    summary = bench_record(measured(200, 20.0), ABOUT)["summary"]
    assert summary["saturated_at_per_s"] == pytest.approx(10.0, rel=0.05)
    assert summary["ttft_s"] is summary["itl_s"] is summary["e2e_s"] is None


def test_requests_are_kept_only_when_asked_for():
    assert "requests" not in bench_record(measured(), About(PREPARED, {}))


def test_a_file_gives_back_the_figures_it_was_made_of(tmp_path):
    def fate(index, one):
        return replace(one, outcome="rejected", status=429, error="HTTP 429") if index == 7 else one

    run = measured(send=FakeSend(seconds=0.1, fate=fate))
    path = tmp_path / "result.json"
    path.write_text(json.dumps(bench_record(run, ABOUT)))
    (kept,) = read_results(path).runs
    again = summarize(kept.observations, kept.window)
    assert (again.offered, again.requests, again.rejected) == (36, 35, 1)
    assert again.attainment == run.summary.attainment
    assert again.ttft.p99 == pytest.approx(run.summary.ttft.p99)
    assert again.itl.samples == run.summary.itl.samples


def test_a_sweeps_runs_are_found_in_its_file(tmp_path):
    points = [{"value": rate, "result": bench_record(measured(rate=rate), ABOUT)} for rate in (1.0, 2.0)]
    path = tmp_path / "sweep.json"
    path.write_text(json.dumps(sweep_record("rate", points, False)))
    record = read_result(path)
    assert record["kind"] == "sweep"
    runs = [point["result"] for point in record["points"]]
    assert [one["summary"]["offered_per_s"] for one in runs] == pytest.approx([1.0, 2.0], rel=0.05)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no result: not JSON"),
        ('{"kind": "header", "version": 1}', "has kind 'header'"),
        ('{"kind": "bench", "version": 99}', "version 99"),
        ("[]", "has kind None"),
        ('{"kind": "bench", "version": 1}', "lacks '"),
    ],
)
def test_other_files_are_refused_with_a_message(tmp_path, text, message):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ResultError, match=message):
        read_results(path)


def test_csv_has_a_line_for_each_request(tmp_path):
    path = tmp_path / "requests.csv"
    run = measured()
    write_csv(path, run.observations)
    rows = list(csv.DictReader(path.open()))
    assert len(rows) == 40
    assert float(rows[3]["ttft_s"]) == pytest.approx(run.observations[3].ttft)
    assert rows[3]["outcome"] == "completed"


VLLM = [
    "date",
    "backend",
    "label",
    "model_id",
    "tokenizer_id",
    "num_prompts",
    "request_rate",
    "burstiness",
    "max_concurrency",
    "duration",
    "completed",
    "failed",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    "mean_ttft_ms",
    "median_ttft_ms",
    "std_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "median_tpot_ms",
    "std_tpot_ms",
    "p99_tpot_ms",
    "mean_itl_ms",
    "median_itl_ms",
    "std_itl_ms",
    "p99_itl_ms",
    "mean_e2el_ms",
    "median_e2el_ms",
    "std_e2el_ms",
    "p99_e2el_ms",
    "input_lens",
    "output_lens",
    "ttfts",
    "itls",
    "start_times",
    "generated_texts",
    "errors",
]


def test_vllms_names_and_units():
    record = vllm_record(measured(), PREPARED, 2.0, 1.0)
    assert set(VLLM) <= set(record)
    assert record["request_rate"] == 2.0
    assert (record["num_prompts"], record["completed"], record["failed"]) == (40, 36, 0)
    assert record["median_e2el_ms"] == pytest.approx(100.0)
    assert record["std_e2el_ms"] == pytest.approx(0.0, abs=1e-6)
    assert record["mean_tpot_ms"] == pytest.approx(25.0)
    lists = [record[name] for name in ("input_lens", "output_lens", "ttfts", "itls", "start_times", "errors")]
    assert {len(one) for one in lists} == {40}


def test_vllms_file_is_a_trace_again(tmp_path):
    path = tmp_path / "vllm.json"
    path.write_text(json.dumps(vllm_record(measured(), PREPARED, None, 1.0)))
    trace = load(path)
    assert [entry.arrival for entry in trace.entries[:3]] == pytest.approx([0.0, 0.5, 1.0])
    assert {(entry.prompt_tokens, entry.output_tokens) for entry in trace.entries} == {(10, 4)}
