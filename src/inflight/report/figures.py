"""The figures of a run, in the order in which they are told: name, unit, value, how sure. One catalogue for page, text
and JSON.

Computes nothing: values are those of `metrics.summary` and of `engine_figures`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from inflight.metrics.definitions import Percentiles
from inflight.metrics.summary import Summary
from inflight.report.engine_figures import DraftFigures, EngineFigures, SnapshotFigures, engine_figures
from inflight.report.run import Run

Better = Literal["higher", "lower", ""]
LATENCIES = (
    ("ttft", "TTFT", "time to first token, from the intended send time"),
    ("itl", "ITL", "each gap between successive events, of one token or more"),
    ("tpot", "TPOT", "(last token − first) / (tokens − 1), by request"),
    ("e2e", "E2E", "intended send time to last token"),
)

Row = tuple[str, str, str, Better, str]  # key, name, unit, which way is good, what it is
_THROUGHPUT: tuple[Row, ...] = (
    ("requests", "requests answered", "", "", "completed, in the measured window"),
    ("offered", "requests offered", "", "", ""),
    ("rejected", "rejected", "", "lower", ""),
    ("failed", "failed", "", "lower", ""),
    ("unfinished", "unfinished", "", "lower", ""),
    ("wall_seconds", "measured time", "s", "", ""),
    ("requests_per_s", "requests", "requests/s", "higher", ""),
    (
        "saturated_at_per_s",
        "saturated at",
        "requests/s",
        "",
        "latency was still growing at the end: so many requests complete, and percentiles mean nothing",
    ),
    ("output_tokens_per_s", "output", "tokens/s", "higher", ""),
    ("input_tokens_per_s", "input", "tokens/s", "higher", ""),
    ("total_tokens_per_s", "input and output", "tokens/s", "higher", ""),
    (
        "prefill_tokens_per_s",
        "prefill",
        "tokens/s",
        "",
        "computed in steps; found in the cache is not among them",
    ),
    ("decode_tokens_per_s", "decode", "tokens/s", "higher", ""),
    (
        "goodput",
        "goodput",
        "requests/s",
        "higher",
        "requests per second that met all their targets; without targets, all that completed",
    ),
    ("attainment", "attainment", "share", "higher", "of the offered; rejected, failed and unfinished did not"),
    (
        "concurrency",
        "concurrency",
        "",
        "",
        "requests under way, mean; by Little's law beside it: where they differ, the run was not steady",
    ),
    ("concurrency_by_little", "concurrency by Little's law", "", "", ""),
)
_ENGINE: tuple[Row, ...] = (
    ("steps", "steps", "", "", ""),
    ("steps_per_s", "steps", "steps/s", "", ""),
    ("busy", "time with a step under way", "share", "", ""),
    ("step_p50", "step time p50", "s", "lower", ""),
    ("step_p99", "step time p99", "s", "lower", ""),
    ("step_tokens_mean", "tokens per step, mean", "tokens", "", ""),
    ("occupancy", "batch occupancy", "share", "", "running rows / rows, mean while steps run"),
    ("padding_waste", "padding waste", "share", "lower", "padded token slots / all token slots computed"),
    ("kv_usage", "KV blocks held", "share", "", "of all, mean while steps run"),
    ("kv_peak", "KV blocks held at most", "share", "", ""),
    ("kv_waste", "KV waste", "share", "lower", "(allocated − used) / allocated token slots"),
    ("snapshot_usage", "state snapshot slots used", "share", "", "of all; each from its first snapshot on"),
    ("snapshots_taken", "state snapshots taken", "", "", "copies of recurrent state, within prompts and answers"),
    (
        "snapshot_hits",
        "hits ended at a snapshot",
        "",
        "higher",
        "sequences that went on from a snapshot behind their cached tokens; without one nothing cached is of use",
    ),
    ("snapshots_evicted", "state snapshots evicted", "", "lower", "whose slot another sequence's snapshot took"),
    ("draft_tokens", "drafts", "tokens", "", "computed behind known tokens, and verified"),
    ("accepted_share", "drafts accepted", "share", "higher", "of all drafts"),
    (
        "tokens_with_drafts",
        "tokens a step with drafts",
        "",
        "higher",
        "of a sequence: its drafts that were right, and the token behind them",
    ),
    ("draft_steps", "steps with drafts", "share", "", "of all steps"),
    ("draft_time", "time spent on making drafts", "share", "lower", "of steps' time; of drafts that executors make"),
    ("prefix_share", "prompt tokens cached", "share", "higher", "prompt tokens found in the prefix cache"),
    ("preemptions", "preemptions", "", "lower", ""),
    ("recomputed_tokens", "tokens recomputed", "tokens", "lower", ""),
    ("moved_out", "blocks swapped out", "blocks", "lower", ""),
    ("moved_back", "blocks swapped back", "blocks", "", ""),
    ("waiting_mean", "sequences waiting, mean", "", "lower", ""),
    ("waiting_peak", "sequences waiting at most", "", "lower", ""),
    (
        "fairness",
        "evenness among tenants",
        "",
        "",
        "Jain's index over tokens served by tenant; 1 when all have the same",
    ),
    ("failed_steps", "steps that broke", "", "lower", ""),
)
_WHERE_ANY = ("rejected", "failed", "unfinished", "failed_steps", "draft_time")  # nothing is said of none


@dataclass(frozen=True, slots=True)
class Figure:
    """key: stable, for programs. group: heading. unit: "s", "share", "tokens/s", …; value None: not measured.
    samples: what it rests on, 0 where that means nothing; interval: 95 %. better: which way is good, where one is."""

    key: str
    group: str
    name: str
    unit: str
    value: float | None
    better: Better = ""
    samples: int = 0
    interval: tuple[float, float] | None = None
    about: str = ""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run. engine: None where its steps are not known."""

    summary: Summary
    engine: EngineFigures | None
    listed: tuple[Figure, ...]

    def __getitem__(self, key: str) -> Figure:
        return next(one for one in self.listed if one.key == key)


def figures_of(run: Run) -> Figures:
    engine = engine_figures(run.engine) if run.engine is not None and run.engine.steps else None
    latency = () if run.summary.saturated else _latency(run.summary)  # it would tell how long the run was
    listed = [*_throughput(run.summary, engine), *latency, *(_engine(engine) if engine else ())]
    return Figures(run.summary, engine, tuple(listed))


def _listed(group: str, rows: Iterable[Row], values: Mapping[str, Any], samples: int = 0) -> Iterator[Figure]:
    """Those of which there is a value. samples: that step times rest on."""
    for key, name, unit, better, about in rows:
        if key in values and (values[key] or key not in _WHERE_ANY):
            rests_on = samples if unit == "s" else 0
            yield Figure(key, group, name, unit, values[key], better, rests_on, about=about)


def _values(figures: Summary | EngineFigures | SnapshotFigures | DraftFigures) -> dict[str, Any]:
    return {item.name: getattr(figures, item.name) for item in fields(figures)}


def _throughput(summary: Summary, engine: EngineFigures | None) -> Iterator[Figure]:
    values = _values(summary)
    if summary.saturated:
        values["saturated_at_per_s"] = summary.requests_per_s
    if engine:
        values |= {name: getattr(engine, name) for name in ("prefill_tokens_per_s", "decode_tokens_per_s")}
    return _listed("Throughput", _THROUGHPUT, values)


def _latency(summary: Summary) -> Iterator[Figure]:
    for key, name, about in LATENCIES:
        yield from _percentiles(key, name, getattr(summary, key), about)
    if summary.delay.samples and summary.delay.p99:
        yield from _percentiles("delay", "schedule delay", summary.delay, "actual send − intended send")


def _percentiles(key: str, name: str, figures: Percentiles, about: str) -> Iterator[Figure]:
    if not figures.samples:
        return
    yield Figure(f"{key}_mean", "Latency", f"{name} mean", "s", figures.mean, "lower", figures.samples, about=about)
    for level in ("p50", "p95", "p99"):
        value, interval = getattr(figures, level), getattr(figures, f"{level}_interval")
        yield Figure(
            f"{key}_{level}", "Latency", f"{name} {level}", "s", value, "lower", figures.samples, interval, about
        )


def _engine(engine: EngineFigures) -> Iterator[Figure]:
    values = _values(engine)
    if not engine.moved_out and not engine.moved_back:
        del values["moved_out"], values["moved_back"]
    if len(engine.service) < 2:
        del values["fairness"]
    if engine.snapshots is not None:
        values |= _values(engine.snapshots)
    if engine.drafts is not None:
        values |= _values(engine.drafts)
    steps = engine.step_seconds
    values |= {"step_p50": steps.p50, "step_p99": steps.p99, "step_tokens_mean": engine.step_tokens.mean}
    return _listed("Batch and memory", _ENGINE, values, engine.steps)
