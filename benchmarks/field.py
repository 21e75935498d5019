"""The strategies of the field side by side, on three kinds of traffic: throughput when all comes at once, latency under
Poisson arrivals, and what became of rows and memory.

All settings run on the real engine and the same weights, take turns, and are offered the very same requests. The
Poisson rate is a share of what chunked prefill got through when all came at once, so that every setting faces what a
good one can bear. With `--write` the throughput-latency curve of each kind, and the batch over time of each setting on
mixed traffic, are drawn into docs/pictures.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.chart_pictures import photograph
from benchmarks.comparison import log_line, options, publish
from benchmarks.results import table
from benchmarks.shapes import QWEN25_05B, TINY, write_config
from inflight.bench.run import Warmup
from inflight.cli.comparison_targets import Comparison, EngineTarget
from inflight.cli.variants import FIELD, Variant, read_variants
from inflight.report.charts.quantity import quantity
from inflight.report.columns import Column
from inflight.report.page import render
from inflight.report.pictures import batch_over_time, throughput_latency
from inflight.report.run import Report, Setting
from inflight.workload.arrivals import AtOnce, Poisson
from inflight.workload.classes import TrafficClass
from inflight.workload.lengths import parse_lengths
from inflight.workload.synthetic import synthesize

SHARE = 0.7  # of what chunked prefill got through
ROWS = 32
PICTURES = Path(__file__).parent.parent / "docs" / "pictures"


@dataclass(frozen=True, slots=True)
class Traffic:
    """Lengths of prompts and answers, as p50, p99 and most, such that all fit into the model."""

    chat: tuple[str, str]
    document: tuple[str, str]

    def classes(self, kind: str) -> tuple[TrafficClass, ...]:
        return tuple(
            TrafficClass(name=name, share=share, input=parse_lengths(lengths[0]), output=parse_lengths(lengths[1]))
            for (name, lengths), share in zip(
                (("chat", self.chat), ("document", self.document)), KINDS[kind], strict=True
            )
            if share > 0
        )


KINDS = {"chat": (1.0, 0.0), "document": (0.0, 1.0), "mixed": (0.85, 0.15)}  # shares of the two
LONG = Traffic(("lognormal:60:400:1000", "lognormal:90:400:500"), ("lognormal:700:1800:2000", "lognormal:40:160:300"))
SHORT = Traffic(("lognormal:60:300:500", "lognormal:90:400:500"), ("lognormal:350:700:800", "lognormal:40:160:200"))


def measure(
    traffic: Traffic, kind: str, variants: Sequence[Variant], requests: int, repeats: int, folder: Path
) -> tuple[list[Setting], list[str]]:
    """All at once, then Poisson arrivals at a share of what chunked got through; and both loads as text."""
    targets = [EngineTarget(one, folder, Warmup(), 0, lambda: False) for one in variants]
    comparison = Comparison(targets, lambda what: None, lambda what, total, done: None, lambda: False)
    drawn = partial(synthesize, traffic.classes(kind), requests=requests, seed=1)
    comparison.run("at once", drawn(arrivals=AtOnce()), repeats)
    chunked = next(one for one in comparison.settings if one.name == "chunked")
    rate = SHARE * max(run.summary.requests_per_s for run in chunked.runs)
    arriving = f"{rate:.2f} requests/s"
    log_line(f"{kind}: {arriving} offered")
    comparison.run(arriving, drawn(arrivals=Poisson(rate)), repeats)
    return comparison.settings, ["at once", arriving]


def report(kind: str, settings: Sequence[Setting], loads: Sequence[str]) -> list[str]:
    """A table for each load: throughput and waste when all comes at once, latency as requests arrive."""
    at_once, arriving = ([Column(one.name, one, load, one.repeats(load)) for one in settings] for load in loads)
    return [
        f"### {kind}",
        "All at once:",
        _table(at_once, ("output_tokens_per_s", "requests_per_s", "occupancy", "padding_waste", "kv_waste")),
        f"Poisson, {loads[1]}:",
        _table(arriving, ("ttft_p50", "ttft_p99", "itl_p99", "e2e_p50", "e2e_p99", "output_tokens_per_s")),
    ]


def draw(kind: str, settings: Sequence[Setting], folder: Path) -> str:
    """The pictures of one kind of traffic, as the lines that show them."""
    ttft_p99, *_ = throughput_latency(settings)
    name = f"field-{kind}-curve.png"
    photograph(folder / name, f"{kind}: {ttft_p99.title}", [ttft_p99])
    shown = [f"![TTFT p99 against throughput, {kind}](pictures/{name})"]
    if kind == "mixed":
        engines = {one.name: engine for one in settings if (engine := one.runs[0].engine) is not None}
        longest = max(engine.steps.end for engine in engines.values())
        for setting, engine in engines.items():
            name = f"field-{setting.replace(', ', '-').replace(' ', '-')}.svg"
            (folder / name).write_text(batch_over_time(engine, longest)[0].standalone(), encoding="utf-8")
            shown += [f"{setting}, all at once:", f"![the batch over time under {setting}](pictures/{name})"]
    return "\n\n".join(shown)


def _table(columns: Sequence[Column], keys: Sequence[str]) -> str:
    head = ["setting"]
    for key in keys:
        figure = next(one for column in columns if (one := column.figure(key)) is not None)
        head.append(figure.name)
    return table(head, [[column.name, *(_cell(column, key) for key in keys)] for column in columns])


def _cell(column: Column, key: str) -> str:
    listed = [one for figures in column.figures for one in figures.listed if one.key == key]
    known = sorted(one.value for one in listed if one.value is not None)
    if not known or column.saturated:
        return "saturated" if column.saturated else "–"
    unit = listed[0].unit
    middle = quantity(statistics.median(known), unit)
    return middle if len(known) == 1 else f"{middle} ({quantity(known[0], unit)} to {quantity(known[-1], unit)})"


def main() -> None:
    parser = options(__doc__, repeats=1)
    parser.add_argument("--requests", type=int, default=48, help="of each run (default 48)")
    parser.add_argument("--html", type=Path, help="folder for a page with pictures of each kind of traffic")
    arguments = parser.parse_args()
    parts = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        built_in = arguments.model == "built-in"
        traffic = SHORT if built_in else LONG
        shape = write_config(folder / "model", TINY if arguments.model == "tiny" else QWEN25_05B)
        model = "--max-model-len 1024" if built_in else f"--model {shape} --load-format dummy --max-model-len 2560"
        variants = read_variants([f"{one} {model} --num-blocks 4096" for one in FIELD])
        for kind in KINDS:
            records = folder / kind
            records.mkdir()
            settings, loads = measure(traffic, kind, variants, arguments.requests, arguments.repeats, records)
            parts += report(kind, settings, loads)
            if arguments.write:
                parts.append(draw(kind, settings, PICTURES))
            if arguments.html is not None:
                page = render(Report(f"The strategies of the field: {kind}", settings))
                (arguments.html / f"field-{kind}.html").write_text(page, encoding="utf-8")
            log_line(f"{kind} is measured")
    model_name = {"qwen": "Qwen2.5-0.5B's shape in bf16", "built-in": "The built-in model", "tiny": "A tiny model"}
    chat, documents = (" in, ".join(lengths) for lengths in (traffic.chat, traffic.document))
    about = (
        f"{model_name[arguments.model]}; {arguments.requests} requests a run, {ROWS} rows (4 for the first), blocks "
        f"for all of them. Lengths are lognormal: chat {chat} out; documents {documents} out (p50:p99:most); mixed is "
        f"{KINDS['mixed'][0]:.0%} chat. Requests are offered at {SHARE:g} of what chunked got through. Medians over "
        "the repeats, least and greatest in brackets. Static and dynamic hand out their answers when a batch ends, so "
        "that their tokens have no gaps. Saturated: latency still grew at the end of a run."
    )
    publish("field", "The strategies of the field", "\n\n".join([about, *parts]), arguments.write)


if __name__ == "__main__":
    main()
