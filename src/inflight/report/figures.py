"""The figures of a run, in the order in which they are told: name, unit, value, how sure. One catalogue for page, text
and JSON.

Computes nothing: values are those of `metrics.summary` and of `engine_figures`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from inflight.metrics.definitions import Percentiles
from inflight.metrics.summary import Summary
from inflight.report.engine_figures import EngineFigures, engine_figures
from inflight.report.run import Run

Better = Literal["higher", "lower", ""]
LATENCIES = (
    ("ttft", "TTFT", "time to first token, from the intended send time"),
    ("itl", "ITL", "each gap between successive tokens"),
    ("tpot", "TPOT", "(last token − first) / (tokens − 1), by request"),
    ("e2e", "E2E", "intended send time to last token"),
)


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


def _throughput(summary: Summary, engine: EngineFigures | None) -> Iterator[Figure]:
    group = "Throughput"
    yield Figure(
        "requests", group, "requests answered", "", summary.requests, about="completed, in the measured window"
    )
    yield Figure("offered", group, "requests offered", "", summary.offered)
    for key, name in (("rejected", "rejected"), ("failed", "failed"), ("unfinished", "unfinished")):
        if getattr(summary, key):
            yield Figure(key, group, name, "", getattr(summary, key), "lower")
    yield Figure("wall_seconds", group, "measured time", "s", summary.wall_seconds)
    yield Figure("requests_per_s", group, "requests", "requests/s", summary.requests_per_s, "higher")
    if summary.saturated:
        about = "latency was still growing at the end: so many requests complete, and percentiles mean nothing"
        yield Figure("saturated_at_per_s", group, "saturated at", "requests/s", summary.requests_per_s, about=about)
    yield Figure("output_tokens_per_s", group, "output", "tokens/s", summary.output_tokens_per_s, "higher")
    yield Figure("input_tokens_per_s", group, "input", "tokens/s", summary.input_tokens_per_s, "higher")
    yield Figure("total_tokens_per_s", group, "input and output", "tokens/s", summary.total_tokens_per_s, "higher")
    if engine:
        about = "computed in steps; found in the cache is not among them"
        yield Figure("prefill_tokens_per_s", group, "prefill", "tokens/s", engine.prefill_tokens_per_s, about=about)
        yield Figure("decode_tokens_per_s", group, "decode", "tokens/s", engine.decode_tokens_per_s, "higher")
    about = "requests per second that met all their targets; without targets, all that completed"
    yield Figure("goodput", group, "goodput", "requests/s", summary.goodput, "higher", about=about)
    about = "of the offered; rejected, failed and unfinished did not"
    yield Figure("attainment", group, "attainment", "share", summary.attainment, "higher", about=about)
    about = "requests under way, mean; by Little's law beside it: where they differ, the run was not steady"
    yield Figure("concurrency", group, "concurrency", "", summary.concurrency, about=about)
    yield Figure("concurrency_by_little", group, "concurrency by Little's law", "", summary.concurrency_by_little)


def _latency(summary: Summary) -> Iterator[Figure]:
    for key, name, about in LATENCIES:
        yield from _percentiles(key, "Latency", name, getattr(summary, key), about)
    if summary.delay.samples and summary.delay.p99:
        yield from _percentiles("delay", "Latency", "schedule delay", summary.delay, "actual send − intended send")


def _percentiles(key: str, group: str, name: str, figures: Percentiles, about: str) -> Iterator[Figure]:
    if not figures.samples:
        return
    yield Figure(f"{key}_mean", group, f"{name} mean", "s", figures.mean, "lower", figures.samples, about=about)
    for level in ("p50", "p95", "p99"):
        value, interval = getattr(figures, level), getattr(figures, f"{level}_interval")
        yield Figure(f"{key}_{level}", group, f"{name} {level}", "s", value, "lower", figures.samples, interval, about)


def _engine(engine: EngineFigures) -> Iterator[Figure]:
    group = "Batch and memory"
    yield Figure("steps", group, "steps", "", engine.steps)
    yield Figure("steps_per_s", group, "steps", "steps/s", engine.steps_per_s)
    yield Figure("busy", group, "time with a step under way", "share", engine.busy)
    yield Figure("step_p50", group, "step time p50", "s", engine.step_seconds.p50, "lower", engine.steps)
    yield Figure("step_p99", group, "step time p99", "s", engine.step_seconds.p99, "lower", engine.steps)
    yield Figure("step_tokens_mean", group, "tokens per step, mean", "tokens", engine.step_tokens.mean)
    about = "running rows / rows, mean while steps run"
    yield Figure("occupancy", group, "batch occupancy", "share", engine.occupancy, about=about)
    about = "padded token slots / all token slots computed"
    yield Figure("padding_waste", group, "padding waste", "share", engine.padding_waste, "lower", about=about)
    yield Figure("kv_usage", group, "KV blocks held", "share", engine.kv_usage, about="of all, mean while steps run")
    yield Figure("kv_peak", group, "KV blocks held at most", "share", engine.kv_peak)
    about = "(allocated − used) / allocated token slots"
    yield Figure("kv_waste", group, "KV waste", "share", engine.kv_waste, "lower", about=about)
    about = "prompt tokens found in the prefix cache"
    yield Figure("prefix_share", group, "prompt tokens cached", "share", engine.prefix_share, "higher", about=about)
    yield Figure("preemptions", group, "preemptions", "", engine.preemptions, "lower")
    yield Figure("recomputed_tokens", group, "tokens recomputed", "tokens", engine.recomputed_tokens, "lower")
    if engine.moved_out or engine.moved_back:
        yield Figure("moved_out", group, "blocks swapped out", "blocks", engine.moved_out, "lower")
        yield Figure("moved_back", group, "blocks swapped back", "blocks", engine.moved_back)
    yield Figure("waiting_mean", group, "sequences waiting, mean", "", engine.waiting_mean, "lower")
    yield Figure("waiting_peak", group, "sequences waiting at most", "", engine.waiting_peak, "lower")
    if len(engine.service) > 1:
        about = "Jain's index over tokens served by tenant; 1 when all have the same"
        yield Figure("fairness", group, "evenness among tenants", "", engine.fairness, about=about)
    if engine.failed_steps:
        yield Figure("failed_steps", group, "steps that broke", "", engine.failed_steps, "lower")
