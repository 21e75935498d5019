"""Diagnosis: each rule by figures made for it, several by real records; and what it names exists."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from inflight.cli.options import engine_options, scheduling_options
from inflight.cli.serve import server_options
from inflight.core.strategies.chunked import Chunked
from inflight.core.strategies.continuous import Continuous
from inflight.core.strategies.static import Static
from inflight.metrics.definitions import percentiles
from inflight.metrics.observation import Observation
from inflight.metrics.summary import Summary, Trend, summarize
from inflight.report.columns import columns_of
from inflight.report.diagnosis import Evidence, diagnose
from inflight.report.diagnosis.diagnose import judge, mean_of
from inflight.report.engine_figures import EngineFigures, SnapshotFigures
from inflight.report.figures import figures_of
from inflight.report.run import Option, Report, Run, Setting

from .recorded import Engine, short_of_blocks, workload

CALM = summarize([Observation("a", 0.0, 1.0, first_token=0.1, last_token=1.0, output_tokens=4)])
STEADY = percentiles([0.02] * 100)
LONG_TAIL = percentiles([0.02] * 95 + [0.5] * 5)


def figures(**changed: Any) -> EngineFigures:
    """Figures of a run without findings."""
    calm: dict[str, Any] = {
        "steps": 100, "failed_steps": 0, "seconds": 10.0, "busy": 1.0, "steps_per_s": 10.0, "step_seconds": STEADY,
        "mixed_step": STEADY, "decode_step": STEADY, "step_tokens": percentiles([8.0] * 100),
        "prefill_tokens_per_s": 100.0, "decode_tokens_per_s": 100.0, "occupancy": 0.8, "occupancy_queued": None,
        "queued_share": 0.0, "padding_waste": 0.0, "kv_waste": 0.1, "kv_usage": 0.5, "kv_peak": 0.6, "preemptions": 0,
        "recomputed_tokens": 0, "computed_tokens": 1000, "moved_out": 0, "moved_back": 0, "prefix_share": 0.0,
        "waiting_mean": 0.0, "waiting_peak": 0.0,
        "time_in": {"queue": 0.0, "prefill": 1.0, "decode": 9.0, "preempted": 0.0, "other": 0.0},
        "queued_by": {"rows": 0.0, "blocks": 0.0, "budget": 0.0, "share": 0.0, "window": 0.0},
        "service": {"": 1000}, "fairness": 1.0, "outgrown": 0,
    }  # fmt: skip
    return EngineFigures(**{**calm, **changed})


def queued(reason: str, seconds: float = 20.0) -> dict[str, Any]:
    return {
        "time_in": {"queue": seconds, "prefill": 1.0, "decode": 9.0, "preempted": 0.0, "other": 0.0},
        "queued_by": {**dict.fromkeys(("rows", "blocks", "budget", "share", "window"), 0.0), reason: seconds},
    }


def summary(**changed: Any) -> Summary:
    return replace(CALM, **changed)


TRIGGERED = {
    "growing": (Evidence(summary(ttft_trend=Trend(9.0, 4.0, 2.0))), "More was offered", "--admission slo"),
    "growing until the last came": (
        Evidence(CALM, arrivals=Trend(9.0, 4.0, 2.0)),
        "More was offered",
        "--max-queued-requests",
    ),
    "ttft tail": (
        Evidence(summary(ttft=percentiles([0.1] * 97 + [9.0] * 3)), figures()),
        "A few wait far longer",
        "--policy sjf",
    ),
    "prompts stall": (
        Evidence(summary(itl=LONG_TAIL), figures(mixed_step=LONG_TAIL), {"strategy": "continuous"}),
        "Prompts stall the running streams",
        "--strategy chunked",
    ),
    "budget too large": (
        Evidence(summary(itl=LONG_TAIL), figures(mixed_step=LONG_TAIL), {"strategy": "chunked"}),
        "Prompts stall the running streams",
        "A smaller --max-num-batched-tokens",
    ),
    "gaps, no steps": (Evidence(summary(itl=LONG_TAIL)), "Streams stand still", "--itl-target"),
    "rows": (Evidence(CALM, figures(**queued("rows"))), "wait for rows", "--max-num-seqs"),
    "blocks": (Evidence(CALM, figures(**queued("blocks"))), "wait for blocks", "--kv-memory"),
    "budget": (Evidence(CALM, figures(**queued("budget"))), "step's budget", "larger --max-num-batched-tokens"),
    "share": (Evidence(CALM, figures(**queued("share"))), "lane's share", "[lanes.NAME]"),
    "window": (Evidence(CALM, figures(**queued("window"))), "batch before them", "--max-wait"),
    "grammar": (Evidence(CALM, figures(**queued("grammar"))), "their grammars", "asked for before"),
    "room": (Evidence(CALM, figures(occupancy=0.2)), "The engine has room", "Nothing needs to change"),
    "padding": (Evidence(CALM, figures(padding_waste=0.3), {"strategy": "static"}), "padding", "--buckets"),
    "lay ready": (
        Evidence(
            CALM,
            figures(time_in={"queue": 0.0, "prefill": 1.0, "decode": 5.0, "preempted": 0.0, "other": 4.0}),
            {"strategy": "dynamic"},
        ),
        "Finished answers wait",
        "--batch-size",
    ),
    "pressure": (
        Evidence(summary(offered=100), figures(kv_peak=1.0, preemptions=1)),
        "KV memory is the limit",
        "--kv-memory",
    ),
    "preemptions": (
        Evidence(CALM, figures(preemptions=3, recomputed_tokens=100)),
        "pushed out",
        "--preemption auto with --swap-space",
    ),
    "reserved": (
        Evidence(CALM, figures(kv_waste=0.6), {"kv_allocation": "reserve-max", "strategy": "chunked"}),
        "held and not used",
        "--kv-allocation paged",
    ),
    "prefixes": (
        Evidence(CALM, figures(prefix_share=0.1), {"prefix_caching": False}, repeated_prompts=0.7),
        "computed again",
        "--no-prefix-caching",
    ),
    "prefixes without snapshots": (
        Evidence(CALM, figures(prefix_share=0.1, snapshots=SnapshotFigures(1.0, 50, 30, 5)), repeated_prompts=0.7),
        "computed again",
        "--state-memory",
    ),
    "outgrown": (Evidence(CALM, figures(outgrown=2)), "cut because memory", "--max-model-len"),
    "tenants": (
        Evidence(CALM, figures(service={"a": 900, "b": 10}), tenant_ttft={"a": 5.0, "b": 0.5}),
        "Tenants wait very differently",
        "--policy fair",
    ),
    "refusals": (
        Evidence(summary(offered=100, rejected=40, attainment=0.6)),
        "Requests are refused",
        "--max-queued-requests",
    ),
    "failures": (Evidence(summary(offered=10, failed=2), figures(failed_steps=1)), "Requests failed", "--log-level"),
}


@pytest.mark.parametrize("case", TRIGGERED)
def test_each_rule_finds_what_it_is_for_and_nothing_else_does(case: str) -> None:
    evidence, title, change = TRIGGERED[case]
    (finding,) = judge(evidence).findings
    assert title in finding.title
    assert change in finding.change
    assert re.search(r"\d|growing", finding.figures), "a finding names the figures that led to it"
    assert finding.cause.endswith(".") and finding.change.endswith(".")


def test_names_are_no_paragraphs() -> None:
    hostile = "a\n\nMore was offered\n\nb"
    waits = {hostile: 5.0, "b": 0.5}
    (finding,) = judge(Evidence(CALM, figures(service={hostile: 900, "b": 10}), tenant_ttft=waits)).findings
    assert finding.title == "Tenants wait very differently"
    assert "5 s for a More was offered b and 500 ms for b. They were served 900 and 10 tokens." in finding.figures
    strange = Evidence(CALM, figures(padding_waste=0.3, kv_waste=0.6), {"strategy": "x\n\ny", "kv_allocation": "\n\n"})
    assert len(judge(strange).findings) == 2


def test_a_budget_that_is_too_small_and_too_large_is_no_contradiction() -> None:
    figures_of_both = figures(mixed_step=LONG_TAIL, **queued("budget"))
    stalls, waits = judge(Evidence(summary(itl=LONG_TAIL), figures_of_both, {"strategy": "chunked"})).findings
    assert "smaller --max-num-batched-tokens" in stalls.change
    assert "--max-num-batched-tokens" not in waits.change and "--threads" in waits.change
    (alone,) = judge(Evidence(CALM, figures(**queued("budget")), {"strategy": "chunked"})).findings
    assert "larger --max-num-batched-tokens" in alone.change


def test_nothing_is_an_answer_too() -> None:
    diagnosis = judge(Evidence(CALM, figures()))
    assert not diagnosis.findings
    assert "occupancy 80 %" in diagnosis.looked_at and "KV waste 10 %" in diagnosis.looked_at
    assert "steps are not known" in judge(Evidence(CALM)).looked_at


@pytest.mark.parametrize(
    ("strategy", "policy"), [("continuous", "fcfs"), ("chunked", "sjf"), ("adaptive", "fair"), ("static", "deadline")]
)
def test_every_option_that_is_named_exists(strategy: str, policy: str) -> None:
    """Whatever the settings are that a change is advised for."""
    known = options_of_serve()
    named = set()
    for evidence, _, _ in TRIGGERED.values():
        changed = replace(evidence, settings={**evidence.settings, "strategy": strategy, "policy": policy})
        for one in (evidence, changed):
            for finding in judge(one).findings:
                named |= set(re.findall(r"--[a-z][a-z-]+", f"{finding.cause} {finding.change}"))
    assert len(named) > 15
    assert named <= known


def options_of_serve() -> set[str]:
    @engine_options
    @scheduling_options
    @server_options
    def command(**values: Any) -> None: ...

    options = click.command()(command).params
    return {name for option in options for name in option.opts}


# -- real records -----------------------------------------------------------------------------------------------


def titles(run: Any, **settings: str) -> str:
    options = {name: Option(value) for name, value in settings.items()}
    return "; ".join(finding.title for finding in diagnose([run], [figures_of(run).engine], options).findings)


def test_static_batching_is_found_to_pad_and_to_wait(tmp_path: Path) -> None:
    found = titles(Engine(Static(6, 0.1)).run(tmp_path, workload(30)), strategy="static")
    assert "Much of the work is padding" in found
    assert "Requests wait for the batch before them" in found
    assert "Memory is held and not used" in found


def test_whole_prompts_are_found_to_stall_streams(tmp_path: Path) -> None:
    mixed = workload(40, gap=0.15, prompts=(10, 10, 10, 400))
    engine = Engine(Continuous(512), num_blocks=400, max_rows=12)
    assert "Prompts stall the running streams" in titles(engine.run(tmp_path, mixed), strategy="continuous")
    chunked = Engine(Chunked(24), num_blocks=400, max_rows=12)
    assert "Prompts stall" not in titles(chunked.run(tmp_path, mixed), strategy="chunked")


def test_too_few_blocks_are_found(tmp_path: Path) -> None:
    found = titles(short_of_blocks(tmp_path), strategy="chunked")
    assert "Requests wait for blocks" in found
    assert "KV memory is the limit" in found
    assert "Running requests are pushed out" in found


def test_a_queue_that_grows_as_long_as_requests_come_is_found(tmp_path: Path) -> None:
    """Also where most of the run is the drain after the last arrival."""
    assert "More was offered than can be served" in titles(Engine().run(tmp_path, workload(60, gap=0.02)))


def test_prefixes_that_are_not_kept_are_found(tmp_path: Path) -> None:
    shared = workload(20, gap=0.3, prefix=160)
    engine = Engine(num_blocks=200, prefix_caching=False)
    assert "Shared prefixes are computed again" in titles(engine.run(tmp_path, shared), prefix_caching="off")
    kept = Engine(num_blocks=200)
    assert "Shared prefixes" not in titles(kept.run(tmp_path, shared))


def test_an_idle_engine_is_found_to_have_room(tmp_path: Path) -> None:
    found = titles(Engine(num_blocks=400, max_rows=32).run(tmp_path, workload(10, gap=2.0)))
    assert found == "The engine has room"


def test_an_engine_that_hardly_computes_is_given_no_advice() -> None:
    """Tails of single requests are their own; a run without a queue says nothing of settings."""
    tails = summary(ttft=percentiles([0.1] * 97 + [9.0] * 3), itl=LONG_TAIL)
    wasteful = figures(busy=0.02, padding_waste=0.3, kv_waste=0.6, mixed_step=LONG_TAIL)
    (finding,) = judge(Evidence(tails, wasteful)).findings
    assert finding.title == "The engine has room" and "2 % of the time" in finding.figures
    assert "--" not in finding.change
    crowded = replace(wasteful, queued_share=0.5, **queued("rows"))
    assert len(judge(Evidence(tails, crowded)).findings) > 2, "a burst within a long idle run is diagnosed"
    failed = judge(Evidence(summary(offered=10, failed=2), figures(busy=0.02))).findings
    assert [one.title for one in failed] == ["Requests failed", "The engine has room"]


# -- repeats ----------------------------------------------------------------------------------------------------


def tail_of(ttft: float) -> Run:
    return Run([], summary(ttft=percentiles([0.1] * 97 + [ttft] * 3), offered=100))


def test_repeats_are_judged_by_the_means_of_the_table() -> None:
    """One of three has a tail, which the mean does not have; and a tail of all three is that of their mean."""
    runs = [tail_of(1.0), tail_of(0.1), tail_of(0.1)]
    assert titles(runs[0]) and not diagnose(runs, [None] * 3, {}).findings
    (column,) = columns_of(Report("r", [Setting("s", [tail_of(2.0), tail_of(3.0), tail_of(4.0)])]))
    (finding,) = column.diagnosis.findings
    mean = column.mean("ttft_p99")
    assert mean is not None and mean.mean == pytest.approx(3.0)
    assert "TTFT p99 is 3 s" in finding.figures


def test_means_over_repeats_leave_out_what_a_repeat_lacks() -> None:
    first = Evidence(summary(offered=10), None, {"strategy": "static"}, tenant_ttft={"a": 1.0})
    mean = mean_of([first, replace(first, summary=summary(offered=20), tenant_ttft={"a": 3.0, "b": 5.0})])
    assert (mean.summary.offered, mean.tenant_ttft, mean.strategy) == (15, {"a": 2.0, "b": 5.0}, "static")
    trends = [None, Trend(1.0, 0.5, 2.0), Trend(9.0, 4.0, 2.0)]
    assert mean_of([replace(first, arrivals=one) for one in trends]).arrivals == trends[2]


def test_a_run_that_is_not_valid_is_not_judged() -> None:
    (finding,) = diagnose([replace(tail_of(9.0), valid=False), tail_of(9.0)], [None, None], {}).findings
    assert "not to be believed" in finding.title and "not valid" in finding.figures
