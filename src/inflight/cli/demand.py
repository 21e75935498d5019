"""Options of plan and tune for the demand on a deployment, and its limits of latency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from inflight.cli.summary import show
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
from inflight.config.setting import at_least, check_settings, option, setting
from inflight.metrics.slo import Slo, SloError, parse_slos
from inflight.planning.demand import LANES, Demand, Drawn, Traced, fitting, in_planned_lanes, without_answers
from inflight.planning.mixture import Mixed, steady_rate
from inflight.planning.traffic import analyze_arrivals
from inflight.workload.arrivals import Arrivals, Constant, Poisson
from inflight.workload.classes import Sessions, TrafficClass, read_classes
from inflight.workload.lengths import Fixed, Lengths, parse_lengths
from inflight.workload.traces import load
from inflight.workload.workload import WorkloadError

_WHOLE = "give --input-tokens, --output-tokens (0 for vectors) and --rate (or --arrivals), --classes, or a --trace"
_LENGTHS = ("input_tokens", "output_tokens")
_OF_PROMPTS = ("prefix_tokens", "prefix_groups", "turns", "think", "turn_tokens")
UNKNOWN_RATE = 1.0  # requests/s, until another is found
REGULAR = 0.01  # squared CV of gaps that are all but equal


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandOptions:
    """Demand on a deployment, and its limits of latency."""

    trace: Path | None = trace_setting("Demand and SLOs")
    classes: Path | None = classes_setting()
    input_tokens: str | None = prompt_lengths_setting()
    output_tokens: str | None = answer_lengths_setting()
    prefix_tokens: int | None = prefix_tokens_setting()
    prefix_groups: int | None = prefix_groups_setting()
    turns: str | None = turns_setting()
    turn_tokens: str | None = setting(
        None, "New tokens of each turn after the first; as --input-tokens unless set.", metavar="FORM"
    )
    think: float | None = think_setting()
    rate: float | None = setting(
        None, "Requests (conversations, with --turns) per second, Poisson; of a trace its busiest five minutes."
    )
    arrivals: str | None = arrivals_setting()
    slo: tuple[str, ...] = slo_setting()
    seed: int = seed_setting()

    @property
    def sessions(self) -> float | None:
        """Return None: the option is that of a plan."""
        return None

    @property
    def gpus(self) -> int | None:
        """Return None: the option is that of a plan."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDemandOptions(DemandOptions):
    """Demand of a plan, whose load may have to be found."""

    sessions: float | None = setting(
        None,
        "Conversations or agents that are open all the time, in place of --rate.",
        bound=at_least(1, "conversations"),
    )
    gpus: int | None = setting(
        None, "GPUs (or machines) that there are: how much they serve, in place of --rate.", bound=at_least(1)
    )

    def __post_init__(self) -> None:
        check_settings(self)


def classes_of(asked: DemandOptions) -> tuple[TrafficClass, ...]:
    """Return the classes of --classes; none without it. Raises WorkloadError."""
    return () if asked.classes is None else read_classes(asked.classes)


def slos_of(asked: DemandOptions, classes: Sequence[TrafficClass]) -> tuple[Slo, ...]:
    """Return the SLOs: those of --slo, and targets of classes, each to be met by 99 % of the requests of its class.
    Raises SloError."""
    found, names = parse_slos(asked.slo), [one.name for one in classes]
    for slo in found:
        if slo.traffic and slo.traffic not in names:
            known = f"known are {', '.join(names)}" if names else "there are no --classes"
            raise SloError(f"--slo limits the class {slo.traffic!r}, but {known}.")
    stated = {(slo.traffic, slo.metric) for slo in found}
    targets = ((one.name, limit) for one in classes for limit in one.targets.limits())
    of_classes = [Slo(limit.metric, limit.seconds, traffic=name) for name, limit in targets]
    return (*found, *(slo for slo in of_classes if (slo.traffic, slo.metric) not in stated))


def demand_of(
    asked: DemandOptions, max_tokens: int, classes: Sequence[TrafficClass] = (), *, is_pooled: bool = False
) -> Demand:
    """Return the demand.

    Args:
        asked: The options.
        max_tokens: Of prompt and answer together, that the model takes.
        classes: Those of --classes.
        is_pooled: Whether answers are vectors, which have no tokens.

    Raises:
        click.UsageError: Options do not go together.
    """
    _check(asked, is_pooled)
    coming = _arrivals(asked)
    if asked.trace is not None:
        recorded = load(asked.trace).workload(asked.trace.name)
        recorded = without_answers(recorded) if is_pooled else recorded
        trace = in_planned_lanes(fitting(recorded, max_tokens))
        given = None if coming is None else steady_rate(coming)
        rate = analyze_arrivals(trace).peak_rate if given is None else given[0]
        retimed = None if asked.arrivals is None or given is None else given[1] or REGULAR
        return Traced(trace, rate, retimed=retimed, longest=max_tokens, busiest_seed=asked.seed)
    if classes:
        _check_lanes(classes)
        if asked.gpus is not None and any(one.share is not None for one in classes):
            coming = Poisson(UNKNOWN_RATE)
        return Mixed.of(_without_answers(classes) if is_pooled else classes, coming, max_tokens)
    if is_pooled:
        asked = replace(asked, output_tokens=_no_answers(asked))
    _check_complete(asked, coming)
    assert asked.input_tokens is not None and asked.output_tokens is not None
    lengths = _lengths(asked, "input_tokens"), _lengths(asked, "output_tokens")
    if any(getattr(asked, name) is not None for name in _OF_PROMPTS):
        demand = Mixed.of([_class_of(asked)], coming or Poisson(UNKNOWN_RATE), max_tokens)
        return replace(demand, sessions=asked.sessions)
    rate, gap_variation = (UNKNOWN_RATE, 1.0) if coming is None else steady_rate(coming)
    drawn = Drawn(rate, *lengths, gap_variation or REGULAR, max_tokens)
    drawn.check_lengths()
    return drawn


def _no_answers(asked: DemandOptions) -> str:
    """Return the tokens that stand for a vector: a request ends with its prompt."""
    if asked.output_tokens not in (None, "0"):
        raise click.UsageError(
            "--output-tokens is of answers, and this model answers with vectors, which have no tokens; leave it out."
        )
    return "1"


def _without_answers(classes: Sequence[TrafficClass]) -> list[TrafficClass]:
    show("Answers of --classes are left out: the model answers with vectors, so that a request ends with its text.")
    return [replace(one, output=Fixed(1), max_tokens=None) for one in classes]


def _arrivals(asked: DemandOptions) -> Arrivals | None:
    """Return the arrivals; None: they are to be found, or those of a trace or of classes."""
    if asked.sessions is not None:
        return Constant(UNKNOWN_RATE)  # as many begin as end
    return arrivals_of(asked.rate, asked.arrivals)


def _check(asked: DemandOptions, is_pooled: bool) -> None:
    """Raise click.UsageError for options that do not go together. is_pooled: whether answers are vectors, as
    `--output-tokens 0` may say of a trace and of classes, too."""
    stated = "arrivals" if asked.rate is None else "rate"
    loads = [name for name in (stated, "sessions", "gpus") if getattr(asked, name) is not None]
    if len(loads) > 1:
        first, second = (option(name) for name in loads[:2])
        raise click.UsageError(f"{first} and {second} both say how much traffic there is; give one of them.")
    if asked.trace is not None and asked.classes is not None:
        raise click.UsageError("--trace and --classes both describe the requests; give one of them.")
    for source in ("trace", "classes"):
        if getattr(asked, source) is None:
            continue
        for name in (*_LENGTHS, *_OF_PROMPTS, "sessions"):
            says_vectors = is_pooled and name == "output_tokens" and asked.output_tokens == "0"
            if getattr(asked, name) is not None and not says_vectors:
                what = "has the lengths of requests" if name in _LENGTHS else f"has no place for {option(name)}"
                raise click.UsageError(f"--{source} {what}; leave {option(name)} out.")
    if asked.turns is None:
        for name in ("think", "turn_tokens", "sessions"):
            if getattr(asked, name) is not None:
                raise click.UsageError(f"{option(name)} is of conversations of several turns; give --turns, too.")
    if asked.think is not None and not 0 <= asked.think < math.inf:
        raise click.UsageError(f"--think is {asked.think:g}; give seconds between an answer and the next turn, from 0.")
    if asked.prefix_groups and not asked.prefix_tokens:
        raise click.UsageError(
            f"--prefix-groups is {asked.prefix_groups}, but prefixes have no length; give --prefix-tokens."
        )
    if asked.rate is not None and not math.isfinite(asked.rate):
        raise click.UsageError(f"--rate is {asked.rate}, which no deployment serves; give requests per second.")


def _check_complete(asked: DemandOptions, coming: Arrivals | None) -> None:
    given = {option(name): getattr(asked, name) for name in _LENGTHS}
    given["--rate"] = coming if asked.gpus is None else UNKNOWN_RATE
    missing = next((name for name, value in given.items() if value is None), None)
    if missing is not None:
        raise click.UsageError(f"Missing option '{missing}'; {_WHOLE}.")


def _check_lanes(classes: Sequence[TrafficClass]) -> None:
    for one in classes:
        if one.lane not in ("", *LANES):
            raise WorkloadError(
                f"--classes has the class {one.name!r} in the lane {one.lane!r}, which planned engines lack, so that "
                f"they would refuse its requests; give {' or '.join(LANES)}."
            )


def _lengths(asked: DemandOptions, name: str) -> Lengths:
    """Return the lengths that an option has; raise WorkloadError, which names it, where it has none."""
    try:
        return parse_lengths(getattr(asked, name))
    except WorkloadError as error:
        raise WorkloadError(f"{option(name)} {getattr(asked, name)}: {error}") from None


def _class_of(asked: DemandOptions) -> TrafficClass:
    assert asked.input_tokens is not None and asked.output_tokens is not None
    return TrafficClass(
        name="",
        share=1.0,
        input=_lengths(asked, "input_tokens"),
        output=_lengths(asked, "output_tokens"),
        prefix=shared_prefixes(asked.prefix_tokens, asked.prefix_groups),
        sessions=Sessions(
            turns=Fixed(1) if asked.turns is None else _lengths(asked, "turns"),
            think_s=asked.think or 0.0,
            added=None if asked.turn_tokens is None else _lengths(asked, "turn_tokens"),
        ),
    )
