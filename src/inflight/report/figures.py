"""The figures of a run with names and units, in the order in which they are shown: one catalogue for page, text and
JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

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
    ("jct", "JCT", "job completion time of programs: first request's intended send time to the last token of the last"),
)


class Row(NamedTuple):
    """A figure of the catalogue. better: which direction is good. about: its definition."""

    key: str
    name: str
    unit: str = ""
    better: Better = ""
    about: str = ""


_SATURATED = "latency was still growing at the end: so many requests complete, and percentiles mean nothing"
_GOODPUT = "requests per second that met all their targets; without targets, all that completed"
_CONCURRENCY = "requests in flight, mean; by Little's law beside it: where they differ, the run was not steady"
_HITS = "sequences that continued from a snapshot behind their cached tokens; without one cached tokens are of no use"
_THROUGHPUT: tuple[Row, ...] = (
    Row("requests", "requests answered", about="completed, in the measured window"),
    Row("offered", "requests offered"),
    Row("rejected", "rejected", "", "lower"),
    Row("failed", "failed", "", "lower"),
    Row("unfinished", "unfinished", "", "lower"),
    Row("wall_seconds", "measured time", "s"),
    Row("requests_per_s", "requests", "requests/s", "higher"),
    Row("saturated_at_per_s", "saturated at", "requests/s", "", _SATURATED),
    Row("output_tokens_per_s", "output", "tokens/s", "higher"),
    Row("input_tokens_per_s", "input", "tokens/s", "higher"),
    Row("total_tokens_per_s", "input and output", "tokens/s", "higher"),
    Row("prefill_tokens_per_s", "prefill", "tokens/s", "", "computed in steps, without tokens found in the cache"),
    Row("decode_tokens_per_s", "decode", "tokens/s", "higher"),
    Row("goodput", "goodput", "requests/s", "higher", _GOODPUT),
    Row("attainment", "attainment", "share", "higher", "of the offered; rejected, failed and unfinished did not"),
    Row("concurrency", "concurrency", about=_CONCURRENCY),
    Row("concurrency_by_little", "concurrency by Little's law"),
)
_ENGINE: tuple[Row, ...] = (
    Row("steps", "steps"),
    Row("steps_per_s", "steps", "steps/s"),
    Row("busy", "time in steps", "share"),
    Row("step_p50", "step time p50", "s", "lower"),
    Row("step_p99", "step time p99", "s", "lower"),
    Row("step_tokens_mean", "tokens per step, mean", "tokens"),
    Row("occupancy", "batch occupancy", "share", "", "running sequences / request slots, mean while steps run"),
    Row("padding_waste", "padding waste", "share", "lower", "padded token slots / all token slots computed"),
    Row("kv_usage", "KV blocks in use", "share", "", "of all, mean while steps run"),
    Row("kv_peak", "KV blocks in use at most", "share"),
    Row("kv_waste", "KV waste", "share", "lower", "(allocated − used) / allocated token slots"),
    Row("snapshot_usage", "state snapshot slots used", "share", "", "of all; each from its first snapshot on"),
    Row("snapshots_taken", "state snapshots taken", about="copies of recurrent state, within prompts and answers"),
    Row("snapshot_hits", "hits ended at a snapshot", "", "higher", _HITS),
    Row("snapshots_evicted", "state snapshots evicted", "", "lower", "whose slot another sequence's snapshot took"),
    Row("draft_tokens", "drafts", "tokens", "", "computed behind known tokens, and verified"),
    Row("accepted_share", "drafts accepted", "share", "higher", "of all drafts"),
    Row("tokens_with_drafts", "tokens a step with drafts", "", "higher", "of a sequence: accepted drafts and one more"),
    Row("draft_steps", "steps with drafts", "share", "", "of all steps"),
    Row("draft_time", "time spent on making drafts", "share", "lower", "of steps' time; of drafts that executors make"),
    Row("prefix_share", "prompt tokens cached", "share", "higher", "prompt tokens found in the prefix cache"),
    Row("preemptions", "preemptions", "", "lower"),
    Row("recomputed_tokens", "tokens recomputed", "tokens", "lower"),
    Row("moved_out", "blocks swapped out", "blocks", "lower"),
    Row("moved_back", "blocks swapped back", "blocks"),
    Row("waiting_mean", "sequences waiting, mean", "", "lower"),
    Row("waiting_peak", "sequences waiting at most", "", "lower"),
    Row("fairness", "evenness among tenants", about="Jain's index over tokens served by tenant; 1 when all are equal"),
    Row("failed_steps", "steps that broke", "", "lower"),
)
_WHERE_ANY = ("rejected", "failed", "unfinished", "failed_steps", "draft_time")  # left out where 0


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a run. key: stable, for programs. group: its heading. unit: "s", "share", "tokens/s", …; value None:
    not measured. samples: of the value, 0 where that means nothing; interval: 95 %."""

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
    """Figures of one run. engine: None where its steps are not known."""

    summary: Summary
    engine: EngineFigures | None
    listed: tuple[Figure, ...]

    def __getitem__(self, key: str) -> Figure:
        return next(one for one in self.listed if one.key == key)


def figures_of(run: Run) -> Figures:
    """Return the figures of a run; of a saturated one without latencies, which would measure its length."""
    engine = engine_figures(run.engine) if run.engine is not None and run.engine.steps else None
    latency = () if run.summary.saturated else _latency(run.summary)
    listed = [*_throughput(run.summary, engine), *latency, *(_engine(engine) if engine else ())]
    return Figures(run.summary, engine, tuple(listed))


def _listed(group: str, rows: Iterable[Row], values: Mapping[str, Any], samples: int = 0) -> Iterator[Figure]:
    """Yield the figures that have a value. samples: of step times."""
    for key, name, unit, better, about in rows:
        if key in values and (values[key] or key not in _WHERE_ANY):
            of_steps = samples if unit == "s" else 0
            yield Figure(key, group, name, unit, values[key], better, of_steps, about=about)


def _values(figures: Summary | EngineFigures | SnapshotFigures | DraftFigures | None) -> dict[str, Any]:
    return {} if figures is None else {item.name: getattr(figures, item.name) for item in fields(figures)}


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
    if summary.delay.p99:
        yield from _percentiles("delay", "schedule delay", summary.delay, "actual send − intended send")


def _percentiles(key: str, name: str, figures: Percentiles, about: str) -> Iterator[Figure]:
    if not figures.samples:
        return
    yield Figure(f"{key}_mean", "Latency", f"{name} mean", "s", figures.mean, "lower", figures.samples, about=about)
    for level in ("p50", "p95", "p99"):
        value, interval = getattr(figures, level), getattr(figures, f"{level}_interval")
        of_level = f"{key}_{level}", "Latency", f"{name} {level}"
        yield Figure(*of_level, "s", value, "lower", figures.samples, interval, about)


def _engine(engine: EngineFigures) -> Iterator[Figure]:
    values = _values(engine) | _values(engine.snapshots) | _values(engine.drafts)
    if not engine.moved_out and not engine.moved_back:
        del values["moved_out"], values["moved_back"]
    if len(engine.service) < 2:
        del values["fairness"]
    steps = engine.step_seconds
    values |= {"step_p50": steps.p50, "step_p99": steps.p99, "step_tokens_mean": engine.step_tokens.mean}
    return _listed("Batch and memory", _ENGINE, values, engine.steps)
