"""The options of `inflight bench`: the server, the load, the targets.

Knows names, forms and help texts, and which options contradict each other; what values may be, the parts that take them
know.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

from inflight.bench.client_types import Endpoint, Target
from inflight.bench.counting import LocalCounter
from inflight.bench.offering import Offer, Part
from inflight.bench.preparing import RequestOptions
from inflight.bench.run import Warmup
from inflight.cli.options import config_option
from inflight.cli.traffic import (
    FILE,
    arrivals_of,
    arrivals_option,
    length_options,
    seed_option,
    slo_option,
    trace_option,
)
from inflight.cli.verb import grouped
from inflight.config.setting import option
from inflight.metrics.slo import parse_slos, stated_share, targets
from inflight.workload.classes import Sessions, SharedPrefixes, TrafficClass, read_classes
from inflight.workload.lengths import Fixed, parse_lengths
from inflight.workload.traces import load as read_trace
from inflight.workload.traces.rows import Reading

URL = "http://127.0.0.1:8000"
# Lengths as a chat's, where nothing is said: short enough for small models, and spread as people's are.
INPUT, OUTPUT = "lognormal:100:400", "lognormal:60:240"
SHARE = 0.99
_NOT_OF_TRACE = ("input_tokens", "max_tokens", "prefix_tokens", "prefix_groups", "think")
_ONE_KIND = ("input_tokens", "output_tokens", "max_tokens", "prefix_tokens", "prefix_groups", "turns", "think")
_OF_TRACE = ("speed", "trace_start", "trace_seconds", "limit", "spread")
_WRITTEN = click.Path(dir_okay=False, path_type=Path)

server_options = grouped(
    "Server",
    config_option,
    click.option("--url", metavar="URL", help=f"The server's address, without /v1.  [default: {URL}]"),
    click.option("--model", metavar="NAME", help="Its name in requests; without it the server's first."),
    click.option(
        "--endpoint",
        type=click.Choice(["completions", "chat", "embeddings"]),
        help="completions sends token ids where the server takes them, chat sends text, embeddings asks for vectors.  "
        "[default: completions; embeddings of a model that answers with vectors alone]",
    ),
    click.option("--api-key", envvar="OPENAI_API_KEY", metavar="KEY", help="Or OPENAI_API_KEY, or INFLIGHT_API_KEY."),
    click.option("--timeout", type=float, default=600, show_default=True, help="Seconds until a request has failed."),
    click.option(
        "--retries", type=int, default=0, show_default=True, help="How often a request is sent again after 429 or 503."
    ),
    click.option("--body", metavar="JSON", help="Fields for every request; null takes one away."),
    click.option("--vocab-size", type=int, help="Token ids of the model; found by asking unless given."),
    click.option("--prompt-text", is_flag=True, help="Send text although the server takes token ids."),
    click.option("--processes", type=int, default=1, show_default=True, help="That send."),
)

load_options = grouped(
    "Load",
    click.option("--rate", type=float, help="Requests per second, Poisson; inf: all at once."),
    arrivals_option,
    click.option(
        "--concurrency", type=int, help="Alone a closed loop of so many; with arrivals the most in flight at once."
    ),
    click.option("--requests", type=int, help="How many."),
    click.option("--duration", type=float, help="Seconds in which requests are sent."),
    click.option("--warmup", default="10%", show_default=True, help="Not counted: 20 (requests), 5s or 10%."),
    seed_option,
    click.option("--prompt-seed", type=int, help="Of the prompts' contents; new ones each time unless given."),
)

workload_options = grouped(
    "Workload",
    length_options(INPUT, OUTPUT),
    click.option("--max-tokens", type=int, help="The limit on an answer's tokens in requests."),
    click.option("--prefix-tokens", type=int, help="Tokens that prompts share, before their own."),
    click.option("--prefix-groups", type=int, help="That many different shared prefixes."),
    click.option("--turns", metavar="FORM", help="Requests of a conversation; of a trace, at most."),
    click.option("--think", type=float, help="Mean seconds between an answer and the next turn."),
    click.option("--classes", type=FILE, help="TOML file of several kinds of traffic, [classes.NAME] each."),
    trace_option,
    click.option("--speed", type=float, help="So many times faster than the trace."),
    click.option("--trace-start", type=float, help="Seconds of the trace that are left out."),
    click.option("--trace-seconds", type=float, help="Seconds of the trace that are taken."),
    click.option("--limit", type=int, help="Most requests taken of the trace."),
    click.option("--spread", is_flag=True, help="Spread times that a trace has rounded."),
    click.option(
        "--tokenizer",
        type=click.Path(exists=True, path_type=Path),
        metavar="FOLDER",
        help="The model's folder or its tokenizer.json: counts a trace's texts, writes texts of exact length.",
    ),
    slo_option,
)

outcome_options = grouped(
    "Search and output",
    click.option("--find-capacity", is_flag=True, help="Search the highest rate (or concurrency) that meets --slo."),
    click.option(
        "--share",
        type=float,
        help=f"Of the offered that must meet --slo, for that.  [default: as in --slo, or {SHARE:g}]",
    ),
    click.option("--sweep", metavar="A,B,…", help="One run at each of these rates (or concurrencies)."),
    click.option(
        "--by",
        type=click.Choice(["rate", "concurrency"]),
        default="rate",
        show_default=True,
        help="What --find-capacity and --sweep vary.",
    ),
    click.option("--output", type=_WRITTEN, help="Write the result (JSON) here."),
    click.option("--csv", "csv_path", type=_WRITTEN, help="Write a line for each request here."),
    click.option("--vllm-json", type=_WRITTEN, help="Write the result under the names of `vllm bench serve` here."),
    click.option("--html", type=_WRITTEN, help="Write a page with pictures here."),
    click.option("--save-requests", is_flag=True, help="Keep every request, and its tokens' times, in the result."),
    click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The server, as of `server_options`."""

    url: str | None = None
    model: str | None = None
    endpoint: Endpoint | None = None
    api_key: str | None = None
    timeout: float = 600.0
    retries: int = 0
    body: str | None = None
    vocab_size: int | None = None
    prompt_text: bool = False
    processes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """When requests come, and how many: as `load_options` have it, but for what is no part of the offer."""

    rate: float | None = None
    arrivals: str | None = None
    concurrency: int | None = None
    requests: int | None = None
    duration: float | None = None
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions:
    """Requests and targets, as of `workload_options`."""

    input_tokens: str | None = None
    output_tokens: str | None = None
    max_tokens: int | None = None
    prefix_tokens: int | None = None
    prefix_groups: int | None = None
    turns: str | None = None
    think: float | None = None
    classes: Path | None = None
    trace: Path | None = None
    speed: float | None = None
    trace_start: float | None = None
    trace_seconds: float | None = None
    limit: int | None = None
    spread: bool = False
    tokenizer: Path | None = None
    slo: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeOptions:
    """The search and the result, as of `outcome_options`."""

    find_capacity: bool = False
    share: float | None = None
    sweep: str | None = None
    by: Literal["rate", "concurrency"] = "rate"
    output: Path | None = None
    csv_path: Path | None = None
    vllm_json: Path | None = None
    html: Path | None = None
    save_requests: bool = False
    as_json: bool = False


def target_of(server: ServerOptions, address: str | None) -> Target:
    if address is not None and server.url is not None and address != server.url:
        raise click.UsageError(f"Two addresses are given, {address} and --url {server.url}; give one.")
    address = (address or server.url or URL).rstrip("/").removesuffix("/v1")
    if "://" not in address:
        address = f"http://{address}"
    for name, value in (("--timeout", server.timeout), ("--processes", server.processes)):
        if not value > 0:
            raise click.UsageError(f"{name} is {value}; give a number above 0.")
    if server.retries < 0:
        raise click.UsageError(f"--retries is {server.retries}; give a number from 0.")
    headers = {"Authorization": f"Bearer {server.api_key}"} if server.api_key else {}
    return Target(address, server.endpoint or "completions", headers, timeout_s=server.timeout, retries=server.retries)


def request_options_of(server: ServerOptions, tokenizer: Path | None) -> RequestOptions:
    extra: Any = {}
    if server.body is not None:
        try:
            extra = json.loads(server.body)
        except ValueError as error:
            raise click.UsageError(f"--body is no JSON ({error}); write it like '{{\"top_k\": 5}}'.") from None
        if not isinstance(extra, dict):
            raise click.UsageError(f"--body is {server.body}; give an object, like '{{\"top_k\": 5}}'.")
    return RequestOptions(server.model, tokenizer, server.vocab_size, server.prompt_text, extra)


def warmup_of(text: str) -> Warmup:
    try:
        if text.endswith("%"):
            share = float(text[:-1]) / 100
            if 0 <= share < 1:
                return Warmup(share=share)
        elif text.endswith("s"):
            seconds = float(text[:-1])
            if 0 <= seconds < math.inf:
                return Warmup(seconds=seconds)
        elif int(text) >= 0:
            return Warmup(requests=int(text))
    except ValueError:
        pass
    raise click.UsageError(f"--warmup is {text!r}; give requests (20), seconds (5s), or a share of the requests (10%).")


def share_of(slo: Sequence[str], given: float | None) -> float:
    """Return the share of the offered that must meet their targets: --share, or the percentile in --slo."""
    stated = stated_share(slo)
    share = given if given is not None else stated or SHARE
    if not 0 < share <= 1:
        raise click.UsageError(f"--share is {share:g}; give a share above 0, at most 1, as 0.99.")
    if stated is not None and stated != share:
        raise click.UsageError(f"--slo names p{stated * 100:g} and --share {share:g}; give one of them.")
    return share


def offer_of(load: LoadOptions, asked: WorkloadOptions) -> Offer:
    """Raises click.UsageError, WorkloadError."""
    _check_kinds(asked)
    for name, count in (("--requests", load.requests), ("--concurrency", load.concurrency)):
        if count is not None and count < 1:
            raise click.UsageError(f"{name} is {count}; give a number from 1.")
    classes: tuple[TrafficClass, ...] = ()
    if asked.trace is None:
        classes = read_classes(asked.classes) if asked.classes is not None else (_one_kind(asked),)
    return Offer(
        classes=classes,
        trace=read_trace(asked.trace, reading=_reading(asked)) if asked.trace is not None else None,
        trace_name=asked.trace.name if asked.trace is not None else "",
        part=Part(
            asked.trace_start or 0.0,
            math.inf if asked.trace_seconds is None else asked.trace_seconds,
            asked.limit,
            1.0 if asked.speed is None else asked.speed,
            asked.spread,
        ),
        arrivals=arrivals_of(load.rate, load.arrivals),
        concurrency=load.concurrency,
        requests=load.requests,
        duration_s=load.duration,
        targets=targets(parse_slos(asked.slo)),
        seed=load.seed,
    )


def _check_kinds(asked: WorkloadOptions) -> None:
    """Lengths, classes and a trace each say what is asked; only one of them may."""
    if asked.trace is not None and asked.classes is not None:
        raise click.UsageError("--trace and --classes both say what is asked; give one of them.")
    for source, path, others in (("trace", asked.trace, _NOT_OF_TRACE), ("classes", asked.classes, _ONE_KIND)):
        given = [name for name in others if getattr(asked, name) is not None]
        if path is not None and given:
            name = option(given[0])
            raise click.UsageError(f"--{source} says what is asked, so that {name} has no effect; leave it out.")
    of_trace = [name for name in _OF_TRACE if getattr(asked, name) not in (None, False)]
    if of_trace and asked.trace is None:
        raise click.UsageError(f"{option(of_trace[0])} is about a trace; give one with --trace.")


def _one_kind(asked: WorkloadOptions) -> TrafficClass:
    tokens, groups = asked.prefix_tokens or 0, asked.prefix_groups or 0
    if groups and not tokens:
        raise click.UsageError(f"--prefix-groups is {groups}, but prefixes have no length; give --prefix-tokens.")
    if asked.think is not None and asked.turns is None:
        raise click.UsageError("--think is the time between turns, and there is one turn; give --turns.")
    return TrafficClass(
        name="",
        share=1.0,
        input=parse_lengths(asked.input_tokens or INPUT),
        output=parse_lengths(asked.output_tokens or OUTPUT),
        max_tokens=asked.max_tokens,
        prefix=SharedPrefixes(groups=groups, group_tokens=tokens) if groups else SharedPrefixes(system_tokens=tokens),
        sessions=Sessions(turns=parse_lengths(asked.turns) if asked.turns else Fixed(1), think_s=asked.think or 0.0),
    )


def _reading(asked: WorkloadOptions) -> Reading:
    """Return the missing parts of text traces: their lengths, lengths of answers, numbers of turns."""
    count = LocalCounter(asked.tokenizer).text if asked.tokenizer is not None else None
    answer, turns = _one_number("--output-tokens", asked.output_tokens), _one_number("--turns", asked.turns)
    return Reading(count, answer or Reading().output_tokens, turns or Reading().turns)


def _one_number(named: str, form: str | None) -> int | None:
    lengths = parse_lengths(form) if form is not None else None
    if lengths is not None and not isinstance(lengths, Fixed):
        raise click.UsageError(f"{named} is {form}, but of a trace it is one number; give that.")
    return None if lengths is None else lengths.tokens


def sweep_values(text: str, whole: bool, named: str = "--sweep") -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or any(not 0 < value < math.inf or (whole and value != round(value)) for value in values):
        raise click.UsageError(f"{named} is {text!r}; give numbers above 0 with commas between, as 1,2,4,8.")
    return values
