"""`inflight compare`: one workload under several engine settings, or on several servers, in turns."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from inflight.bench.offering import Load, Offer, span_of
from inflight.bench.run import Warmup
from inflight.cli.bench_options import (
    LoadOptions,
    ServerOptions,
    WorkloadOptions,
    offer_of,
    request_options_of,
    sweep_values,
    target_of,
    warmup_of,
    workload_options,
)
from inflight.cli.files import check_writable
from inflight.cli.options import engine_options, options_of, scheduling_options
from inflight.cli.progress import Interrupt, Progress, Remaining, open_engine
from inflight.cli.summary import show
from inflight.cli.variants import FIELD, ServedVariant, Variant, read_served, read_variants
from inflight.cli.verb import Verb, grouped
from inflight.counted import printable
from inflight.records.json_text import json_text
from inflight.workload.arrivals import AtOnce
from inflight.workload.workload import Workload

if TYPE_CHECKING:
    from inflight.cli.comparison_targets import ComparisonTarget

_WRITTEN = click.Path(dir_okay=False, path_type=Path)
SHARE = 0.7


@click.command("compare", cls=Verb)
@grouped(
    "What is compared",
    click.option(
        "--setting", "settings", multiple=True, metavar="NAME=OPTIONS", help="Options of one engine; several."
    ),
    click.option(
        "--serve",
        "served",
        multiple=True,
        metavar="NAME=OPTIONS",
        help="A server that is started with these options, replicas and routers among them; several.",
    ),
    click.option("--server", "servers", multiple=True, metavar="NAME=URL", help="A server that is up; several times."),
)
@engine_options
@scheduling_options
@grouped(
    "Load",
    click.option("--rate", "rates", metavar="A,B,…", help="Poisson arrivals at each of these rates (requests/s)."),
    click.option("--concurrency", "places", metavar="A,B,…", help="A closed loop of each of these sizes."),
    click.option("--requests", type=int, help="Of each run.  [default: 64]"),
    click.option("--duration", type=float, help="Seconds in which requests are sent."),
    click.option("--repeats", type=int, default=3, show_default=True, help="Rounds through all settings at each load."),
    click.option("--warmup", default="10%", show_default=True, help="Not counted: 20 (requests), 5s or 10%."),
)
@workload_options
@click.option(
    "--api-key", envvar="OPENAI_API_KEY", metavar="KEY", help="For servers. Or OPENAI_API_KEY, or INFLIGHT_API_KEY."
)
@click.option("--html", type=_WRITTEN, help="Write a page with pictures here.")
@click.option("--records", type=click.Path(file_okay=False, path_type=Path), help="Keep the step records here.")
@click.option("--json", "as_data", is_flag=True, help="Print figures and findings as JSON.")
def command(**values: Any) -> int:
    """The same requests under several engine settings, in turns: throughput, latency, rows, memory, side by side.

    \b
    inflight compare --model DIR --setting 'small=--max-num-seqs 8' --setting 'large=--max-num-seqs 64'
    inflight compare --serve 'one=' --serve 'two=--replicas 2 --router prefix-aware' --rate 4

    Options that are given outside of --setting and --serve hold for all of them. An engine of --setting is asked in
    this process, a server of --serve over HTTP, as its clients would: compare one kind with itself. Without any of
    them, and without --server, the strategies of the field are compared. Without --rate, --concurrency and --trace, all
    requests come at once, and then as Poisson arrivals at 0.7 of what the fastest got through.

    Figures and diagnosis go to standard output; the first setting is what the others are compared with.
    """
    texts, servers = values.pop("settings"), [_named(text) for text in values.pop("servers")]
    started = read_served(values.pop("served"))
    variants = read_variants(texts or (() if servers or started else FIELD))
    names = [*(one.name for one in variants), *(one.name for one in started), *(name for name, _ in servers)]
    if len(set(names)) < len(names):
        raise click.UsageError(f"Two of {', '.join(names)} have the same name; give each its own.")
    if values["repeats"] < 1:
        raise click.UsageError(f"--repeats is {values['repeats']}; give a number from 1.")
    asked = options_of(WorkloadOptions, values)
    check_writable(values["html"], reads=[asked.trace, asked.classes])
    warmup, points = warmup_of(values["warmup"]), _points(values)
    load = LoadOptions(requests=values["requests"], duration=values["duration"], seed=values["seed"])
    offer = offer_of(load, _counted(asked, variants))
    with tempfile.TemporaryDirectory() as scratch, Interrupt() as interrupt:
        records = values["records"] or Path(scratch)
        records.mkdir(parents=True, exist_ok=True)
        targets, longest = _targets(variants, started, servers, values, offer, warmup, records, interrupt)
        return _compare(targets, replace(offer, max_model_len=longest), points, values, interrupt)


def _counted(asked: WorkloadOptions, variants: Sequence[Variant]) -> WorkloadOptions:
    """Count a trace's texts with the tokenizer of the compared model."""
    if asked.trace is None or asked.tokenizer is not None or not variants:
        return asked
    from inflight.build import model_folder
    from inflight.models.gguf.gguf_model import is_gguf

    folder = model_folder(variants[0].engine)
    has_tokenizer = is_gguf(folder) or (folder / "tokenizer.json").is_file()
    return replace(asked, tokenizer=folder) if has_tokenizer else asked


def _named(text: str) -> tuple[str, str]:
    name, separator, url = text.partition("=")
    if not separator or not name.strip() or not url.strip():
        raise click.UsageError(f"--server is {text!r}; write NAME=URL, such as other=http://127.0.0.1:8001.")
    return name.strip(), url.strip()


def _points(values: dict[str, Any]) -> list[Load]:
    """Return the loads of --rate or --concurrency; none: the default ones."""
    if values["rates"] is not None and values["places"] is not None:
        raise click.UsageError("--rate is an open loop, --concurrency a closed one; compare one after the other.")
    if values["rates"] is not None:
        return [Load("rate", value) for value in sweep_values(values["rates"], False, "--rate")]
    if values["places"] is not None:
        return [Load("concurrency", value) for value in sweep_values(values["places"], True, "--concurrency")]
    return []


def _targets(
    variants: Sequence[Variant],
    started: Sequence[ServedVariant],
    servers: Sequence[tuple[str, str]],
    values: dict[str, Any],
    offer: Offer,
    warmup: Warmup,
    records: Path,
    interrupt: Interrupt,
) -> tuple[list[ComparisonTarget], int]:
    """Return the targets, and the longest request that all of them take."""
    # Loaded only now, so that errors above are reported at once.
    from inflight.bench.client import send
    from inflight.bench.preparing import prepare
    from inflight.bench.run import Runner
    from inflight.bench.served_model import look
    from inflight.cli.comparison_targets import EngineTarget, ServerTarget, StartedTarget
    from inflight.cli.started_server import started as started_server

    def stop() -> bool:
        return interrupt.wanted

    found: list[ComparisonTarget] = []
    longest = sys.maxsize
    for one in variants:
        engine = open_engine(one.engine, one.scheduling)  # also reads the model's files, before the first run
        longest = min(longest, engine.capacity.max_model_len)
        engine.loop.close()
        found.append(EngineTarget(one, records, warmup, values["seed"], stop))

    def runner(url: str) -> tuple[Runner, int | None]:
        given = ServerOptions(api_key=values["api_key"])
        target, options = target_of(given, url), request_options_of(given, values["tokenizer"])
        model = look(target, options.model)
        prepared = prepare(target, model, offer.workload(Load("rate", 1.0)), options)
        return Runner(prepared, send, warmup, values["seed"], interrupt=stop), model.max_model_len

    for served in started:
        with started_server(served.name, served.words, show) as address:  # errors are shown before any run
            longest = min(longest, runner(address)[1] or longest)
        found.append(StartedTarget(served, lambda address: runner(address)[0], show))
    for name, url in servers:
        asked, length = runner(url)
        longest = min(longest, length or longest)
        found.append(ServerTarget(name, asked))
    return found, longest


def _loads(offer: Offer, points: Sequence[Load]) -> list[tuple[str, Workload]]:
    """Return the loads that are known beforehand."""
    if points:
        return [(str(point), offer.workload(point)) for point in points]
    if offer.trace is not None:
        return [("as in the trace", offer.workload())]
    return [("at once", replace(offer, arrivals=AtOnce()).workload())]


def _compare(
    targets: list[ComparisonTarget], offer: Offer, points: list[Load], values: dict[str, Any], interrupt: Interrupt
) -> int:
    from inflight.cli.comparison_targets import Comparison
    from inflight.report.page import render
    from inflight.report.result import as_json, as_text
    from inflight.report.run import Report

    progress, repeats = Progress("compare", "requests"), values["repeats"]

    def say(sentence: str) -> None:
        progress.close()
        show(sentence)

    loads = _loads(offer, points)
    rounds = repeats * len(targets)
    known = None if any(one.closed for _, one in loads) else rounds * sum(span_of(one) for _, one in loads)
    at_once = not points and offer.trace is None  # then another load follows, from their throughput
    remaining = Remaining(rounds * (len(loads) + at_once), None if at_once else known, say)
    comparison = Comparison(
        targets,
        remaining.begin,
        lambda what, total, done: progress.update(done, total, what),
        lambda: interrupt.wanted,
    )
    try:
        for name, workload in loads:
            comparison.run(name, workload, repeats)
        point = Load("rate", SHARE * comparison.fastest())
        if at_once and not interrupt.wanted and point.value > 0:
            comparison.run(str(point), offer.workload(point), repeats)
    finally:
        progress.close()
    settings = [one for one in comparison.settings if one.runs]
    if not settings:
        print("Stopped before the first round was complete; there is nothing to compare.", file=sys.stderr)
        return 130
    report = Report("Comparison: " + " · ".join(one.name for one in settings), settings)
    if values["html"] is not None:
        values["html"].write_text(render(report), encoding="utf-8")
        print(f"{values['html']} is written; open it in a browser.", file=sys.stderr)
    print(json_text(as_json(report), indent=2) if values["as_data"] else printable(as_text(report), keep="\n"))
    if interrupt.wanted:
        print("Stopped; the figures are of the completed rounds.", file=sys.stderr)
        return 130
    return 0 if all(run.valid for one in settings for run in one.runs) else 1
