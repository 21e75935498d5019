"""`inflight compare`: one workload under several engine settings, or on several servers, in turns."""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from inflight.bench.offering import REQUESTS, Load, Offer, span_of
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
)
from inflight.cli.declared import takes
from inflight.cli.files import check_writable
from inflight.cli.options import measured_engine_options, scheduling_options
from inflight.cli.progress import Interrupt, Progress, Remaining, open_engine
from inflight.cli.summary import show
from inflight.cli.variants import FIELD, ServedVariant, Variant, read_served, read_variants
from inflight.cli.verb import Verb
from inflight.config.setting import at_least, setting
from inflight.counted import printable
from inflight.records.json_text import json_text
from inflight.workload.arrivals import AtOnce
from inflight.workload.workload import Workload

if TYPE_CHECKING:
    from inflight.bench.run import Runner
    from inflight.cli.comparison_targets import ComparisonTarget

SHARE = 0.7
SHARE_SECONDS = 5.0  # of that load, or as long as REQUESTS take: eighteen runs of it are a minute and a half


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedOptions:
    """Engines and servers to compare."""

    settings: tuple[str, ...] = setting(
        (), "Options of one engine; several.", "What is compared", flags=("--setting",), metavar="NAME=OPTIONS"
    )
    served: tuple[str, ...] = setting(
        (),
        "A server that is started with these options, replicas and routers among them; several.",
        flags=("--serve",),
        metavar="NAME=OPTIONS",
    )
    servers: tuple[str, ...] = setting(
        (), "A server that is up; several times.", flags=("--server",), metavar="NAME=URL"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOptions:
    """Loads, and rounds through all that is compared."""

    rates: str | None = setting(
        None, "Poisson arrivals at each of these rates (requests/s).", "Load", flags=("--rate",), metavar="A,B,…"
    )
    concurrencies: str | None = setting(
        None, "A closed loop of each of these sizes.", flags=("--concurrency",), metavar="A,B,…"
    )
    requests: int | None = setting(
        None, "Requests of each run.  [default: 64; at a rate those of 30 s]", bound=at_least(1)
    )
    duration: float | None = setting(None, "Seconds in which requests are sent.")
    repeats: int = setting(3, "Rounds through all settings at each load.", bound=at_least(1))
    warmup: str = setting("10%", "Not counted: 20 (requests), 5s or 10%.")

    def points(self) -> list[Load]:
        """Return the loads of --rate or --concurrency; none: the default ones. Raises click.UsageError."""
        if self.rates is not None and self.concurrencies is not None:
            raise click.UsageError("--rate is an open loop, --concurrency a closed one; compare one after the other.")
        if self.rates is not None:
            return [Load("rate", value) for value in sweep_values(self.rates, False, "--rate")]
        if self.concurrencies is not None:
            return [Load("concurrency", one) for one in sweep_values(self.concurrencies, True, "--concurrency")]
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """Keys of servers, and the comparison's forms."""

    api_key: str | None = setting(
        None,
        "Key for servers. Or OPENAI_API_KEY, or INFLIGHT_API_KEY.",
        "Options",
        metavar="KEY",
        variable="OPENAI_API_KEY",
    )
    html: Path | None = setting(None, "Write a page with pictures here.", path="file")
    records: Path | None = setting(None, "Keep the step records in this folder.", path="folder")
    as_json: bool = setting(False, "Print figures and findings as JSON.", flags=("--json",))


@click.command("compare", cls=Verb)
@takes(compared=ComparedOptions)
@measured_engine_options
@scheduling_options
@takes(rounds=RoundOptions, asked=WorkloadOptions, output=OutputOptions)
def command(
    compared: ComparedOptions, rounds: RoundOptions, asked: WorkloadOptions, output: OutputOptions, **values: Any
) -> int:
    """Run the same requests under several engine settings, in turns, and compare throughput, latency and memory.

    \b
    inflight compare --model DIR --setting 'small=--max-num-seqs 8' --setting 'large=--max-num-seqs 64'
    inflight compare --serve 'one=' --serve 'two=--replicas 2 --router prefix-aware' --rate 4

    Options that are given outside of --setting and --serve hold for all of them. An engine of --setting runs in this
    process, a server of --serve is called over HTTP, as clients would: compare one kind with itself. Without any of
    them, and without --server, common batching strategies are compared. Without --rate, --concurrency and --trace, all
    requests arrive at once, and then as Poisson arrivals at 0.7 of the fastest throughput, for 5 s or longer.

    Figures and diagnosis go to standard output; the others are compared with the first setting.
    """
    servers, started = [_named(text) for text in compared.servers], read_served(compared.served)
    variants = read_variants(compared.settings or (() if servers or started else FIELD))
    names = [*(one.name for one in variants), *(one.name for one in started), *(name for name, _ in servers)]
    if len(set(names)) < len(names):
        raise click.UsageError(f"Two of {', '.join(names)} have the same name; give each its own.")
    check_writable(output.html, reads=[asked.trace, asked.classes])
    warmup, points = warmup_of(rounds.warmup), rounds.points()
    load = LoadOptions(requests=rounds.requests, duration=rounds.duration, seed=values["seed"])
    offer = offer_of(load, _with_tokenizer(asked, variants))
    with tempfile.TemporaryDirectory() as scratch, Interrupt() as interrupt:
        records = output.records or Path(scratch)
        records.mkdir(parents=True, exist_ok=True)
        found = _Targets(offer, warmup, values["seed"], interrupt, asked.tokenizer, output.api_key)
        targets = found.of(variants, started, servers, records)
        return _compare(targets, replace(offer, max_model_len=found.longest), points, rounds.repeats, output, interrupt)


def _with_tokenizer(asked: WorkloadOptions, variants: Sequence[Variant]) -> WorkloadOptions:
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


@dataclass(slots=True)
class _Targets:
    """Makes the targets. longest: the longest request that all of them accept."""

    offer: Offer
    warmup: Warmup
    seed: int
    interrupt: Interrupt
    tokenizer: Path | None
    api_key: str | None
    longest: int = sys.maxsize

    def of(
        self,
        variants: Sequence[Variant],
        started: Sequence[ServedVariant],
        servers: Sequence[tuple[str, str]],
        records: Path,
    ) -> list[ComparisonTarget]:
        """Return the targets. Errors of any of them are raised before the first run."""
        from inflight.cli import comparison_targets as targets

        found: list[ComparisonTarget] = []
        for one in variants:
            engine = open_engine(one.engine, one.scheduling)  # also reads the model's files, before the first run
            self.longest = min(self.longest, engine.capacity.max_model_len)
            engine.loop.close()
            found.append(targets.EngineTarget(one, records, self.warmup, self.seed, self._stop))
        for served in started:
            with targets.started(served.name, served.words) as address:
                self._runner(address)
            found.append(targets.StartedTarget(served, self._runner))
        return found + [targets.ServerTarget(name, self._runner(url)) for name, url in servers]

    def _stop(self) -> bool:
        return self.interrupt.wanted

    def _runner(self, url: str) -> Runner:
        from inflight.bench.client import send
        from inflight.bench.preparing import prepare
        from inflight.bench.run import Runner
        from inflight.bench.served_model import look

        given = ServerOptions(api_key=self.api_key)
        target, options = target_of(given, url), request_options_of(given, self.tokenizer)
        model = look(target, options.model)
        self.longest = min(self.longest, model.max_model_len or self.longest)
        prepared = prepare(target, model, self.offer.workload(Load("rate", 1.0)), options)
        return Runner(prepared, send, self.warmup, self.seed, interrupt=self._stop)


def _loads(offer: Offer, points: Sequence[Load]) -> list[tuple[str, Workload]]:
    """Return the loads that do not depend on a measurement."""
    if points:
        return [(str(point), offer.workload(point)) for point in points]
    if offer.trace is not None:
        return [("as in the trace", offer.workload())]
    return [("at once", replace(offer, arrivals=AtOnce()).workload())]


def _briefly(offer: Offer, point: Load) -> Offer:
    """Return the offer with fewer requests than a rate has by default, unless it says how many."""
    if offer.requests is not None or offer.duration_s is not None:
        return offer
    return replace(offer, requests=max(REQUESTS, math.ceil(point.value * SHARE_SECONDS)))


def _compare(
    targets: list[ComparisonTarget],
    offer: Offer,
    points: list[Load],
    repeats: int,
    output: OutputOptions,
    interrupt: Interrupt,
) -> int:
    from inflight.cli.comparison_targets import Comparison
    from inflight.report.page import render
    from inflight.report.result import as_json, as_text
    from inflight.report.run import Report

    progress = Progress("compare", "requests")

    def say(sentence: str) -> None:
        progress.close()
        show(sentence)

    loads = _loads(offer, points)
    rounds = repeats * len(targets)
    known = None if any(one.closed for _, one in loads) else rounds * sum(span_of(one) for _, one in loads)
    at_once = not points and offer.trace is None  # then another load follows, which depends on their throughput
    remaining = Remaining(rounds * (len(loads) + at_once), None if at_once else known, say)
    comparison = Comparison(
        targets, remaining.begin, lambda what, total, done: progress.update(done, total, what), lambda: interrupt.wanted
    )
    try:
        for name, workload in loads:
            comparison.run(name, workload, repeats)
        point = Load("rate", SHARE * comparison.fastest())
        if at_once and not interrupt.wanted and point.value > 0:
            comparison.run(str(point), _briefly(offer, point).workload(point), repeats)
    finally:
        progress.close()
    settings = [one for one in comparison.settings if one.runs]
    if not settings:
        show("Stopped before the first round was complete; there is nothing to compare.")
        return 130
    report = Report("Comparison: " + " · ".join(one.name for one in settings), settings)
    if output.html is not None:
        output.html.write_text(render(report), encoding="utf-8")
        show(f"{output.html} is written; open it in a browser.")
    print(json_text(as_json(report), indent=2) if output.as_json else printable(as_text(report), keep="\n"))
    if interrupt.wanted:
        show("Stopped; the figures are of the completed rounds.")
        return 130
    return 0 if all(run.valid for one in settings for run in one.runs) else 1
