"""Read result files of `inflight bench` as settings and runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from inflight.metrics.definitions import Percentiles
from inflight.metrics.observation import Observation, Targets
from inflight.metrics.summary import Series, Summary, Trend, Window, summarize
from inflight.records.result import BenchRecord, PercentilesRecord, RequestRow, ResultError, SummaryRecord, read_result
from inflight.report.run import Option, Run, Setting

_UNITS = {"rate": "requests/s", "concurrency": "at once"}


def read_results(path: Path) -> Setting:
    """Read a setting, with a run for each point of a sweep. Raises ResultError for a file that is no result, or lacks a
    key."""
    record = read_result(path)
    try:
        if record["kind"] == "bench":
            records, cut = [record], False
            runs, options = [run_of(record)], record["settings"]
        else:
            unit = _UNITS.get(record["by"], record["by"])
            points = sorted(record["points"], key=lambda point: point["value"])
            runs = [run_of(point["result"], f"{point['value']:g} {unit}") for point in points]
            records = [point["result"] for point in points]
            options = records[0]["settings"] if records else {}
            cut = record["partial"]
        about = about_of(records, [run.load for run in runs])
    except (KeyError, TypeError, IndexError) as error:
        raise ResultError(f"{path} lacks {error}, which a result of inflight bench has; measure again.") from None
    if not runs:
        raise ResultError(f"{path} holds no run: 0 points were measured.")
    if cut:
        interrupted = "The series of runs was interrupted; the measured part is shown."
        runs[0] = replace(runs[0], notes=(interrupted, *runs[0].notes))
    named = {name: Option(value) for name, value in options.items() if value is not None}
    return Setting(path.stem, runs, named, record.get("created", ""), about)


def about_of(records: Sequence[BenchRecord], loads: Sequence[str]) -> str:
    """Describe endpoint, model and address; loads, where there are several; and the common part of all workloads."""
    if not records:
        return ""
    target = records[0]["target"]
    named = (("", target.get("endpoint")), ("of ", target.get("model")), ("at ", target.get("url")))
    whom = " ".join(f"{word}{name}" for word, name in named if name)
    first, *others = (record["workload"]["name"].split("; ") for record in records)
    common = [part for part in first if all(part in other for other in others)]
    several = [f"{loads[0]} to {loads[-1]}"] if others else []
    return "; ".join([*filter(None, [whom]), *several, *common])


def run_of(record: BenchRecord, load: str = "") -> Run:
    """Return a measured run with the figures of the file."""
    observations = [_observation(row) for row in record.get("requests", ())]
    window = Window(record["window"]["start_s"], record["window"]["end_s"])
    cut = ["The run was interrupted; the part until then is shown."] if record["partial"] else []
    series = record["series"]
    groups = {
        f"{kind} {name or '(no name)'}": _summary(one)
        for kind in ("class", "lane", "tenant")
        for name, one in record[f"by_{kind}"].items()  # type: ignore[literal-required]
        if len(record[f"by_{kind}"]) > 1  # type: ignore[literal-required]
    }
    return Run(
        observations,
        _summary(record["summary"], observations, window),
        window,
        load,
        notes=(*cut, *record["faults"], *record["notes"], *record["workload"]["notes"]),
        valid=record["valid"],
        series=Series(
            series["step_s"],
            tuple(series["offered"]),
            tuple(series["completed"]),
            tuple(series["output_tokens"]),
            tuple(series["running"]),
        ),
        groups=groups,
    )


def _summary(record: SummaryRecord, observations: Sequence[Observation] = (), window: Window | None = None) -> Summary:
    trend = None
    if record["saturated_at_per_s"] is not None:
        trend = summarize(observations, window).ttft_trend if observations else None
        if trend is None or not trend.growing:
            trend = Trend(math.inf, math.inf, 0.0)  # the file does not say by how much it grew
    return Summary(
        requests=record["completed"],
        failed=record["failed"],
        rejected=record["rejected"],
        unfinished=record["unfinished"],
        offered=record["offered"],
        wall_seconds=record["window_s"],
        prompt_tokens=record["prompt_tokens"],
        cached_tokens=record["cached_tokens"],
        output_tokens=record["output_tokens"],
        requests_per_s=record["completed_per_s"],
        offered_per_s=record["offered_per_s"],
        input_tokens_per_s=record["input_tokens_per_s"],
        output_tokens_per_s=record["output_tokens_per_s"],
        total_tokens_per_s=record["total_tokens_per_s"],
        goodput=record["goodput_per_s"],
        attainment=record["attainment"],
        concurrency=record["concurrency"],
        concurrency_by_little=record["concurrency_by_little"],
        ttft=_percentiles(record["ttft_s"]),
        tpot=_percentiles(record["tpot_s"]),
        itl=_percentiles(record["itl_s"]),
        e2e=_percentiles(record["e2e_s"]),
        delay=_percentiles(record["delay_s"]),
        ttft_trend=trend,
        jct=_percentiles(record.get("jct_s")),
    )


def _percentiles(record: PercentilesRecord | None) -> Percentiles:
    if record is None:
        return Percentiles(0, None, None, None, None)
    values: Mapping[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in record.items()
    }
    return Percentiles(**values)


def _observation(row: RequestRow) -> Observation:
    times = row["token_times_s"]
    return Observation(
        request_id=row["id"],
        intended=row["intended_s"],
        ended=row["ended_s"],
        outcome=row["outcome"],
        sent=row["sent_s"],
        first_token=row["first_token_s"],
        last_token=row["last_token_s"],
        token_times=times,
        prompt_tokens=row["prompt_tokens"],
        cached_tokens=row["cached_tokens"],
        output_tokens=row["output_tokens"],
        longest_output=row["output_tokens"],
        traffic=row["traffic"],
        lane=row["lane"],
        tenant=row["tenant"],
        program=row.get("program", ""),
        targets=Targets(**row["targets_s"]),
        status=row["status"],
        error=row["error"],
    )
