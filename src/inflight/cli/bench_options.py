"""Options of `inflight bench`: server, load, workload and outcome; compare and simulate share some of them."""

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
from inflight.cli.declared import settings_options
from inflight.cli.options import config_option
from inflight.cli.traffic import (
    answer_lengths_setting,
    arrivals_of,
    arrivals_setting,
    classes_setting,
    prefix_groups_setting,
    prefix_tokens_setting,
    prompt_lengths_setting,
    seed_setting,
    shared_prefixes,
    slo_setting,
    think_setting,
    trace_setting,
    turns_setting,
)
from inflight.config.setting import Bound, above_zero, at_least, option, setting
from inflight.metrics.slo import parse_slos, stated_share, targets
from inflight.workload.classes import Sessions, TrafficClass, read_classes
from inflight.workload.lengths import Fixed, parse_lengths
from inflight.workload.traces import load as read_trace
from inflight.workload.traces.rows import Reading

URL = "http://127.0.0.1:8000"
# Default lengths are those of a chat: short enough for small models, and as varied as those of people.
INPUT, OUTPUT = "lognormal:100:400", "lognormal:60:240"
SHARE = 0.99
_NOT_OF_TRACE = ("input_tokens", "max_tokens", "prefix_tokens", "prefix_groups", "think")
_ONE_KIND = ("input_tokens", "output_tokens", "max_tokens", "prefix_tokens", "prefix_groups", "turns", "think")
_OF_TRACE = ("speed", "trace_start", "trace_seconds", "limit", "spread")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """A server and the form of requests to it."""

    url: str | None = setting(None, f"The server's address, without /v1.  [default: {URL}]", "Server", metavar="URL")
    model: str | None = setting(None, "Its name in requests; without it the server's first.", metavar="NAME")
    endpoint: Endpoint | None = setting(
        None,
        "completions sends token ids where the server takes them, chat sends text, embeddings asks for vectors.  "
        "[default: completions; embeddings of a model that answers with vectors alone]",
        is_choice=True,
    )
    api_key: str | None = setting(
        None, "Or OPENAI_API_KEY, or INFLIGHT_API_KEY.", metavar="KEY", variable="OPENAI_API_KEY"
    )
    timeout: float = setting(600.0, "Seconds after which a request has failed.", bound=above_zero())
    retries: int = setting(0, "Repetitions of a request that the server rejected until later.", bound=at_least(0))
    body: str | None = setting(None, "Fields for every request; null removes one.", metavar="JSON")
    vocab_size: int | None = setting(None, "Token ids of the model; found by asking unless given.")
    prompt_text: bool = setting(False, "Send text although the server takes token ids.")
    processes: int = setting(1, "Processes that send.", bound=at_least(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Times and number of requests."""

    rate: float | None = setting(None, "Requests per second, Poisson; inf: all at once.", "Load")
    arrivals: str | None = arrivals_setting()
    concurrency: int | None = setting(
        None, "Alone a closed loop of so many; with arrivals the maximum in flight.", bound=at_least(1)
    )
    requests: int | None = setting(None, "Number of requests.", bound=at_least(1))
    duration: float | None = setting(None, "Seconds in which requests are sent.")
    warmup: str = setting("10%", "Not counted: 20 (requests), 5s or 10%.")
    seed: int = seed_setting()
    prompt_seed: int | None = setting(None, "Seed of the prompts' contents; random unless set.")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions:
    """Requests and their limits of latency."""

    input_tokens: str | None = prompt_lengths_setting(INPUT, "Workload")
    output_tokens: str | None = answer_lengths_setting(OUTPUT)
    max_tokens: int | None = setting(None, "Maximum tokens of an answer, in requests.")
    prefix_tokens: int | None = prefix_tokens_setting()
    prefix_groups: int | None = prefix_groups_setting()
    turns: str | None = turns_setting()
    think: float | None = think_setting()
    classes: Path | None = classes_setting()
    trace: Path | None = trace_setting()
    speed: float | None = setting(None, "So many times faster than the trace.")
    trace_start: float | None = setting(None, "Seconds of the trace that are left out.")
    trace_seconds: float | None = setting(None, "Seconds of the trace that are taken.")
    limit: int | None = setting(None, "Maximum requests taken of the trace.")
    spread: bool = setting(False, "Spread times that a trace has rounded.")
    tokenizer: Path | None = setting(
        None,
        "The model's folder or its tokenizer.json: counts a trace's texts, writes texts of exact length.",
        metavar="FOLDER",
        path="present",
    )
    slo: tuple[str, ...] = slo_setting()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeOptions:
    """Searches, and where results go."""

    find_capacity: bool = setting(
        False, "Search the highest rate (or concurrency) that meets --slo.", "Search and output"
    )
    share: float | None = setting(
        None,
        f"Share of the offered requests that must meet --slo, for that.  [default: as in --slo, or {SHARE:g}]",
        bound=Bound(0, 1, "a share above 0, at most 1, as 0.99", above=True),
    )
    sweep: str | None = setting(None, "One run at each of these rates (or concurrencies).", metavar="A,B,…")
    by: Literal["rate", "concurrency"] = setting("rate", "What --find-capacity and --sweep vary.", is_choice=True)
    output: Path | None = setting(None, "Write the result (JSON) here.", path="file")
    csv_path: Path | None = setting(None, "Write a line for each request here.", flags=("--csv",), path="file")
    vllm_json: Path | None = setting(None, "Write the result under the names of `vllm bench serve` here.", path="file")
    html: Path | None = setting(None, "Write a page with pictures here.", path="file")
    save_requests: bool = setting(False, "Save every request, and its tokens' times, in the result.")
    as_json: bool = setting(False, "Print the result as JSON.", flags=("--json",))


server_options = settings_options(ServerOptions, {"url": (config_option,)})
load_options = settings_options(LoadOptions)
workload_options = settings_options(WorkloadOptions)
outcome_options = settings_options(OutcomeOptions)


def target_of(server: ServerOptions, address: str | None) -> Target:
    """Return the server. address: the verb's argument. Raises click.UsageError."""
    if address is not None and server.url is not None and address != server.url:
        raise click.UsageError(f"Two addresses are given, {address} and --url {server.url}; give one.")
    address = (address or server.url or URL).rstrip("/").removesuffix("/v1")
    if "://" not in address:
        address = f"http://{address}"
    headers = {"Authorization": f"Bearer {server.api_key}"} if server.api_key else {}
    return Target(address, server.endpoint or "completions", headers, timeout_s=server.timeout, retries=server.retries)


def request_options_of(server: ServerOptions, tokenizer: Path | None) -> RequestOptions:
    """Return the form of requests. Raises click.UsageError."""
    extra: Any = {}
    if server.body is not None:
        try:
            extra = json.loads(server.body)
        except ValueError as error:
            raise click.UsageError(f"--body is not JSON ({error}); write it like '{{\"top_k\": 5}}'.") from None
        if not isinstance(extra, dict):
            raise click.UsageError(f"--body is {server.body}; give an object, like '{{\"top_k\": 5}}'.")
    return RequestOptions(server.model, tokenizer, server.vocab_size, server.prompt_text, extra)


def warmup_of(text: str) -> Warmup:
    """Read the warm-up. Raises click.UsageError."""
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
    if stated is not None and stated != share:
        raise click.UsageError(f"--slo names p{stated * 100:g} and --share {share:g}; give one of them.")
    return share


def offer_of(load: LoadOptions, asked: WorkloadOptions) -> Offer:
    """Return the workload and its load. Raises click.UsageError, WorkloadError."""
    _check_kinds(asked)
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
    """Check that only one of lengths, classes and a trace describes the requests. Raises click.UsageError."""
    if asked.trace is not None and asked.classes is not None:
        raise click.UsageError("--trace and --classes both describe the requests; give one of them.")
    for source, path, others in (("trace", asked.trace, _NOT_OF_TRACE), ("classes", asked.classes, _ONE_KIND)):
        given = [name for name in others if getattr(asked, name) is not None]
        if path is not None and given:
            name = option(given[0])
            raise click.UsageError(f"--{source} describes the requests, so {name} has no effect; leave it out.")
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
        prefix=shared_prefixes(asked.prefix_tokens, asked.prefix_groups),
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
        raise click.UsageError(f"{named} is {form}, but with a trace it is one number; give that.")
    return None if lengths is None else lengths.tokens


def sweep_values(text: str, whole: bool, named: str = "--sweep") -> list[float]:
    """Read loads. named: their option. Raises click.UsageError."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or any(not 0 < value < math.inf or (whole and value != round(value)) for value in values):
        raise click.UsageError(f"{named} is {text!r}; give numbers above 0 with commas between, as 1,2,4,8.")
    return values
