"""`inflight bench`: measure a server under a load: one run, a search for its capacity, or a curve over loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Any

import click

from inflight.bench.capacity import find_capacity, starting_rate
from inflight.bench.client_types import Progress as Counts
from inflight.bench.client_types import Target
from inflight.bench.offering import CONCURRENCY, Load, Offer, span_of
from inflight.bench.preparing import prepare
from inflight.bench.result import About, bench_record, sweep_record, vllm_record, write_csv
from inflight.bench.run import Measured, Runner, sweep
from inflight.cli import bench_table
from inflight.cli.bench_options import (
    LoadOptions,
    OutcomeOptions,
    ServerOptions,
    WorkloadOptions,
    load_options,
    offer_of,
    outcome_options,
    request_options_of,
    server_options,
    share_of,
    sweep_values,
    target_of,
    warmup_of,
    workload_options,
)
from inflight.cli.declared import options_of
from inflight.cli.files import check_writable
from inflight.cli.progress import Interrupt, Progress, Remaining
from inflight.cli.summary import figure, show
from inflight.cli.verb import Verb
from inflight.config.setting import option
from inflight.metrics.slo import parse_slos
from inflight.records.json_text import json_text
from inflight.records.result import BenchRecord, PointRecord, SweepRecord
from inflight.workload.workload import Workload

_ANY_SEED = 1 << 31
ESTIMATE_CONCURRENCY, ESTIMATE_REQUESTS = 16, 64  # of the closed loop from which a search for the capacity begins


@click.command("bench", cls=Verb)
@click.argument("address", required=False, metavar="[URL]")
@server_options
@load_options
@workload_options
@outcome_options
def command(address: str | None, **values: Any) -> int:
    """Measure the OpenAI-compatible server at URL.

    Without options: 64 requests with the lengths of a chat, 8 at a time. With --rate or --arrivals requests are sent at
    their own times, however slow the server is (open loop); with --concurrency alone, each is sent when an earlier one
    has ended (closed loop). Latencies count from the time at which a request was to be sent.

    The table goes to standard error. The exit code is 1 when nothing was completed, or when the client itself could not
    keep up, so that the figures are invalid.
    """
    server, load = options_of(ServerOptions, values), options_of(LoadOptions, values)
    asked, outcome = options_of(WorkloadOptions, values), options_of(OutcomeOptions, values)
    target, options = target_of(server, address), request_options_of(server, asked.tokenizer)
    warmup, share = warmup_of(load.warmup), _check_outcome(outcome, load, asked)
    points = sweep_values(outcome.sweep, outcome.by == "concurrency") if outcome.sweep is not None else []
    written = (outcome.output, outcome.csv_path, outcome.vllm_json, outcome.html)
    check_writable(*written, reads=[asked.trace, asked.classes])
    wanted = offer_of(load, asked)

    # Imported only now, so that errors above are reported at once.
    from inflight.bench.client import send
    from inflight.bench.served_model import look

    served = look(target, options.model)
    if server.endpoint is None and served.embeds:
        target = replace(target, endpoint="embeddings")
    _check_answers(target, asked)
    offer = replace(wanted, max_model_len=served.max_model_len, answers=target.answers)
    by, several = outcome.by, bool(points) or outcome.find_capacity
    first = offer.workload(Load(by, _start(load, by)) if several else None)
    prepared = prepare(target, served, first, options)
    seed = load.prompt_seed if load.prompt_seed is not None else SystemRandom().randrange(_ANY_SEED)
    about = About(prepared, _settings(values, target.url, seed), outcome.save_requests)
    show(f"{target.endpoint} of {served.model} at {target.url}")
    if several:
        bench_table.print_notes((*prepared.notes, *first.notes))
    with Interrupt() as interrupt:
        runner = Runner(prepared, send, warmup, seed, server.processes, interrupt=lambda: interrupt.wanted)
        work = _Measurement(runner, offer, about, outcome)
        if outcome.find_capacity:
            start = work.estimate() if by == "rate" and load.rate is None else _start(load, by)
            if interrupt.wanted:
                show("Stopped before the search began.")
                return 130
            return work.capacity(by, start, share)
        return work.sweep(by, points) if points else work.single(first)


@dataclass(frozen=True, slots=True)
class _Measurement:
    """The three kinds of measurement, with their output."""

    runner: Runner
    offer: Offer
    about: About
    outcome: OutcomeOptions

    def single(self, workload: Workload) -> int:
        """Measure one run. Return the exit code."""
        measured = self._measured(workload)
        bench_table.print_measured(measured, self.about.prepared.notes)
        self._write(bench_record(measured, self.about))
        if self.outcome.csv_path is not None:
            write_csv(self.outcome.csv_path, measured.observations)
        if self.outcome.vllm_json is not None:
            burstiness = getattr(self.offer.arrivals, "burstiness", 1.0)
            _dump(self.outcome.vllm_json, vllm_record(measured, self.about.prepared, self.offer.rate, burstiness))
        self._picture([(measured.workload.name, measured)])
        return _code([measured])

    def sweep(self, by: str, values: list[float]) -> int:
        """Measure a run at each load. Return the exit code."""
        spans = [span_of(self.offer.workload(Load(by, value))) for value in values]
        remaining = Remaining(len(values), sum(spans) if all(spans) else None, show)
        bench_table.print_header(by, self.offer.answers)

        def run(value: float) -> Measured:
            remaining.begin(str(Load(by, value)))
            return self._at(by)(value)

        found = sweep(run, values, partial(bench_table.print_point, answers=self.offer.answers))
        points: list[PointRecord] = [
            {"value": point.value, "result": bench_record(point.measured, self.about)} for point in found
        ]
        runs = [point.measured for point in found]
        self._write(sweep_record(by, points, any(one.partial for one in runs)))
        self._picture([(str(Load(by, point.value)), point.measured) for point in found])
        return _code(runs)

    def estimate(self) -> float:
        """Return a rate near the capacity, from a short closed loop, whose requests are no part of the result."""
        loop = Load("concurrency", ESTIMATE_CONCURRENCY)
        requests = min(ESTIMATE_REQUESTS, self.offer.requests or ESTIMATE_REQUESTS)
        figure("estimate", f"first {requests} requests, {ESTIMATE_CONCURRENCY} at a time")
        measured = self._measured(replace(self.offer, requests=requests, duration_s=None).workload(loop))
        found = starting_rate(measured)
        bench_table.print_estimate(measured, ESTIMATE_CONCURRENCY, found)
        return 1.0 if found is None else found

    def capacity(self, by: str, start: float, share: float) -> int:
        """Search the capacity. Return the exit code."""
        bench_table.print_header(by, self.offer.answers)

        def begin(value: float, left: int | None) -> None:
            load = Load(by, value)
            bench_table.print_next(load, span_of(self.offer.workload(load)), left)

        report = partial(bench_table.print_probe, answers=self.offer.answers)
        found = find_capacity(self._at(by), start, share=share, whole=by == "concurrency", begin=begin, report=report)
        bench_table.print_capacity(found, by, self.offer.targets)
        points: list[PointRecord] = [
            {"value": one.value, "met": one.met, "why": one.why, "result": bench_record(one.measured, self.about)}
            for one in found.probes
        ]
        partial_ = found.ended == "interrupted"
        self._write(sweep_record(by, points, partial_, capacity=found.met, refused=found.missed, share=share))
        probes = sorted(found.probes, key=lambda one: one.value)
        self._picture([(str(Load(by, one.value)), one.measured) for one in probes])
        return 130 if partial_ else int(bool(found.ended) or found.met is None)

    def _at(self, by: str) -> Callable[[float], Measured]:
        return lambda value: self._measured(self.offer.workload(Load(by, value)))

    def _measured(self, workload: Workload) -> Measured:
        """Run a workload, with progress on standard error."""
        shown = Progress("bench", "requests")
        total = None if workload.until is not None else len(workload.entries)

        def report(counts: Counts) -> None:
            bad = counts.rejected + counts.failed
            rate = counts.output_tokens / counts.elapsed_s if counts.elapsed_s > 0 else 0.0
            note = f"{counts.in_flight:,} in flight, {rate:,.0f} tokens/s" + (f", {bad:,} not answered" if bad else "")
            shown.update(counts.completed + bad, total, note)

        self.runner.progress = report
        try:
            return self.runner.run(workload)
        finally:
            shown.close()

    def _picture(self, measured: list[tuple[str, Measured]]) -> None:
        """Write the page of --html, with a run for every load."""
        path = self.outcome.html
        if path is None or not measured:
            return
        from inflight.report.page import render
        from inflight.report.results import about_of, run_of
        from inflight.report.run import Report, Setting

        whole = replace(self.about, save_requests=True)
        records = [bench_record(one, whole) for _, one in measured]
        loads = [load for load, _ in measured]
        runs = [run_of(record, load) for record, load in zip(records, loads, strict=True)]
        name = f"{self.about.prepared.served.model} at {self.about.prepared.target.url}"
        about = (f"{about_of(records, loads)}.", *self.about.prepared.notes)
        page = render(Report(f"inflight bench: {name}", [Setting(name, runs)], about))
        path.write_text(page, encoding="utf-8")
        show(f"{path} is written; open it in a browser.")

    def _write(self, record: BenchRecord | SweepRecord) -> None:
        if self.outcome.output is not None:
            _dump(self.outcome.output, record)
        if self.outcome.as_json:
            print(json_text(record))


def _check_answers(target: Target, asked: WorkloadOptions) -> None:
    """Refuse options of answers where a server returns vectors."""
    if target.answers:
        return
    for name in ("output_tokens", "max_tokens", "turns", "think"):
        if getattr(asked, name) is not None:
            raise click.UsageError(
                f"{option(name)} has no effect with embeddings, whose answers are vectors; leave it out."
            )
    if limits := [str(slo) for slo in parse_slos(asked.slo) if slo.metric != "e2e"]:
        raise click.UsageError(f"--slo {limits[0]} limits tokens, and embeddings are vectors; give e2e.")


def _start(load: LoadOptions, by: str) -> float:
    """Return the first load of a search, or of a sweep."""
    return float(load.rate or 1.0) if by == "rate" else float(load.concurrency or CONCURRENCY)


def _check_outcome(outcome: OutcomeOptions, load: LoadOptions, asked: WorkloadOptions) -> float:
    """Check what goes together, and return the share of requests that must meet their targets."""
    if outcome.find_capacity and outcome.sweep is not None:
        raise click.UsageError("--find-capacity and --sweep are two measurements; make one after the other.")
    several = outcome.find_capacity or outcome.sweep is not None
    for name, path in (("--csv", outcome.csv_path), ("--vllm-json", outcome.vllm_json)):
        if several and path is not None:
            raise click.UsageError(f"{name} has room for one run, and there will be several; use --output.")
    if outcome.find_capacity and not asked.slo and asked.classes is None:
        raise click.UsageError("--find-capacity needs targets; give --slo, such as --slo ttft=500.")
    if outcome.by == "concurrency":
        if not several:
            raise click.UsageError("--by says what --find-capacity or --sweep varies; give one of them.")
        for name, given in (("--rate", load.rate), ("--arrivals", load.arrivals)):
            if given is not None:
                raise click.UsageError(
                    f"--by concurrency is a closed loop, in which {name} has no effect; leave it out."
                )
    if outcome.save_requests and outcome.output is None and not outcome.as_json:
        raise click.UsageError("--save-requests saves them in the result; give --output or --json for that.")
    return share_of(asked.slo, outcome.share)


def _settings(values: Mapping[str, Any], url: str, prompt_seed: int) -> dict[str, Any]:
    """Return the options in force for the record, without keys."""
    named = {name.removesuffix("_path"): value for name, value in values.items() if name not in ("api_key", "as_json")}
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in named.items()}
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}
    return {name: value for name, value in given.items() if value not in (None, False, [])} | {
        "url": url,
        "prompt_seed": prompt_seed,
    }


def _dump(path: Path, record: Any) -> None:
    path.write_text(json_text(record) + "\n", encoding="utf-8")


def _code(runs: list[Measured]) -> int:
    """Return the exit code; where the figures are invalid, print why."""
    if any(one.partial for one in runs):
        show("Stopped; the result has the requests until then.")
        return 130
    invalid = [one for one in runs if not one.believed]
    if invalid:
        cause = "the client could not keep up; raise --processes, or lower the load"
        if invalid[0].valid:
            cause = "no request was completed; the server's log may say why"
        show(f"inflight: these figures are invalid: {cause}.")
    return int(bool(invalid))
