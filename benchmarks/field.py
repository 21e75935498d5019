"""The strategies of the field side by side, on three kinds of traffic: throughput when all comes at once, latency under
Poisson arrivals, and what became of rows and memory.

All settings run on the real engine and the same weights, take turns, and are offered the very same requests. The
Poisson rate is a share of what chunked prefill got through when all came at once, so that every setting faces what a
good one can bear. With `--write` also draws the batch over time of each setting into docs/pictures.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.comparison import options, publish, spread, tell
from benchmarks.results import table
from benchmarks.shapes import QWEN25_05B, write_config
from inflight.bench.run import Warmup
from inflight.cli.comparing import Comparison, Load
from inflight.cli.variants import FIELD, Variant, read_variants
from inflight.report.run import Report, Run, Setting
from inflight.workload.arrivals import Arrivals, AtOnce, Poisson
from inflight.workload.classes import TrafficClass
from inflight.workload.lengths import parse_lengths
from inflight.workload.synthetic import synthesize

SHARE = 0.7  # of what chunked prefill got through
ROWS = 32
CHAT = ("lognormal:60:400:1000", "lognormal:90:400:500")  # prompts, answers: p50, p99, most
DOCUMENT = ("lognormal:700:1800:2000", "lognormal:40:160:300")
TRAFFIC = {"chat": (CHAT, 1.0), "document": (DOCUMENT, 1.0), "mixed": (CHAT, 0.85)}  # the rest of mixed are documents


def classes(kind: str) -> tuple[TrafficClass, ...]:
    main, share = TRAFFIC[kind]
    parts = [("chat" if main is CHAT else "document", main, share), ("document", DOCUMENT, 1.0 - share)]
    return tuple(
        TrafficClass(name=name, share=part, input=parse_lengths(lengths[0]), output=parse_lengths(lengths[1]))
        for name, lengths, part in parts
        if part > 0
    )


def load(kind: str, requests: int, arrivals: Arrivals, words: str) -> Load:
    return Load(words, synthesize(classes(kind), arrivals=arrivals, requests=requests, seed=1))


def measure(kind: str, variants: Sequence[Variant], requests: int, repeats: int, folder: Path) -> list[Setting]:
    """All at once, then Poisson arrivals at a share of what chunked got through."""
    comparison = Comparison(variants, folder, Warmup(), 0, lambda what, done, of: None, lambda: False)
    at_once = comparison.run([load(kind, requests, AtOnce(), "at once")], repeats)
    chunked = next(one for one in at_once if one.name == "chunked")
    rate = SHARE * max(run.summary.requests_per_s for run in chunked.runs)
    tell(f"{kind}: {rate:.3g} requests/s offered")
    arriving = comparison.run([load(kind, requests, Poisson(rate), f"{rate:.2f} requests/s")], repeats)
    return [
        Setting(early.name, (*early.runs, *late.runs), early.options)
        for early, late in zip(at_once, arriving, strict=True)
    ]


def main() -> None:
    parser = options(__doc__, repeats=1)
    parser.add_argument("--requests", type=int, default=48, help="of each run (default 48)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shape = write_config(folder / "model", QWEN25_05B)
        given = {"qwen": f"--model {shape} --load-format dummy", "built-in": "", "tiny": ""}[arguments.model]
        variants = read_variants([f"{one} {given} --max-model-len 4096 --num-blocks 4096" for one in FIELD])
        found = {}
        for kind in TRAFFIC:
            records = folder / kind
            records.mkdir()
            found[kind] = measure(kind, variants, arguments.requests, arguments.repeats, records)
            tell(f"{kind} is measured")
    publish("field", "The strategies of the field", report(found, arguments.requests), arguments.write)
