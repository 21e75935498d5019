"""How the time of a step grows: with rows, with context, with all keys and values, and with the tokens of a prompt.

Theory says: flat and then straight in rows (weights are read once for all of them, until the cores are the limit),
straight in context, the same for the same number of keys and values however they are shared out, and a little more than
straight in a prompt's tokens (attention). Each point is the least of some repetitions in turns, beside the ceiling that
the best probes of the machine give.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.chart_pictures import photograph
from benchmarks.kernel_bodies import BLOCK
from benchmarks.rates import Probe, timed
from benchmarks.results import RESULTS, table, write_section
from benchmarks.roofline import MAX_KV, Step, decode_seconds, prefill_seconds
from benchmarks.shapes import SHAPES, write_config
from inflight.config.engine import EngineSettings
from inflight.config.threads import resolve_threads
from inflight.execution.backends.native import NativeBackend
from inflight.execution.roofline import Machine
from inflight.execution.sizes import kv_bytes_per_token
from inflight.models.registry import read_folder
from inflight.models.spec import ModelSpec
from inflight.report.charts.distribution import CurvePoint, curve

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 13, 16, 18, 19, 24, 25, 32, 48, 64, 65, 96, 128)
CONTEXTS = (128, 1024, 2048, 3072, 4096, 6144, 8192)
PROMPTS = (16, 64, 128, 192, 193, 256, 384, 512, 768, 1024, 1536, 2048)
SHARED_BY = (4, 8, 16, 32, 64, 128)
_CONTEXT, _ROWS, _SHARED = 128, 16, 32768  # tokens of context along rows, rows along contexts, tokens shared out


@dataclass
class Point:
    """x: what grows. label: the size as text. seconds: of the repetitions."""

    x: int
    label: str
    body: Callable[[], object]
    ceiling: Callable[[Machine], float]
    seconds: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Series:
    """One table and picture. x: name and unit of what grows."""

    name: str
    title: str
    x: tuple[str, str]
    points: Sequence[Point]


class Steps:
    """Steps of one model in bf16."""

    def __init__(self, config: ModelSpec, backend: NativeBackend) -> None:
        self._config = config
        longest = max(*CONTEXTS, *PROMPTS)
        per_token = kv_bytes_per_token(config, "bfloat16")
        self.kv_tokens = min(MAX_KV // per_token, _ROWS * longest)
        self._step = Step(config, backend, "none", longest, self.kv_tokens // BLOCK)

    def decode(self, x: int, batch: int, context: int) -> Point:
        ceiling = partial(decode_seconds, self._config, batch, context, "none")
        return Point(x, f"{batch} x {context:,}", self._step.of(batch, context), ceiling)

    def prefill(self, tokens: int) -> Point:
        ceiling = partial(prefill_seconds, self._config, tokens, "none")
        return Point(tokens, f"{tokens:,}", self._step.prompt(tokens), ceiling)

    def series(self) -> list[Series]:
        contexts = [context for context in CONTEXTS if _ROWS * context <= self.kv_tokens]
        return [
            Series(
                "rows",
                f"Decoding at {_CONTEXT} tokens of context",
                ("rows", ""),
                [self.decode(rows, rows, _CONTEXT) for rows in ROWS],
            ),
            Series(
                "context",
                f"{_ROWS} rows decoding",
                ("context", "tokens"),
                [self.decode(context, _ROWS, context) for context in contexts],
            ),
            Series(
                "shared",
                f"{_SHARED:,} tokens of keys and values, shared out among more and more rows",
                ("rows", ""),
                [self.decode(rows, rows, _SHARED // rows) for rows in SHARED_BY],
            ),
            Series("prompt", "One prompt", ("tokens", "tokens"), [self.prefill(tokens) for tokens in PROMPTS]),
        ]


def measure(series: Sequence[Series], probe: Probe, repeats: int) -> None:
    for one in series:
        for point in one.points:
            point.body()
        for _ in range(repeats):
            probe.now()
            for point in one.points:
                point.seconds.append(timed(point.body))


def section(one: Series, machine: Machine, picture: str) -> str:
    rows = []
    for point in one.points:
        best, ceiling = min(point.seconds), point.ceiling(machine)
        rows.append([point.label, f"{best * 1e3:.2f}", f"{ceiling * 1e3:.2f}", f"{ceiling / best:.2f}"])
    head = ["tokens" if one.name == "prompt" else "rows x context", "step, ms", "ceiling, ms", "share"]
    return f"### {one.title}\n\n![{one.title}](pictures/{picture})\n\n{table(head, rows)}"


def draw(one: Series, machine: Machine, path: Path) -> None:
    lines = {
        "measured": [CurvePoint(point.label, point.x, min(point.seconds)) for point in one.points],
        "ceiling": [CurvePoint(point.label, point.x, point.ceiling(machine)) for point in one.points],
    }
    chart = curve(one.title, "Time of a step.", list(lines.items()), one.x, ("step", "s"))
    assert chart is not None, "a step takes time"
    photograph(path, one.title, [chart])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=list(SHAPES), default="qwen2.5-0.5b", help="shape, of random weights")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write the section of docs/results.md, and its pictures")
    arguments = parser.parse_args()
    backend = NativeBackend("bfloat16", int(resolve_threads(EngineSettings()).value))
    probe = Probe(backend)
    with tempfile.TemporaryDirectory() as folder:
        config = read_folder(write_config(Path(folder) / "shape", SHAPES[arguments.model]), to_run=True)
    series = Steps(config, backend).series()
    measure(series, probe, arguments.repeats)
    parts = [f"{arguments.model}'s shape, bf16, {backend.name}, {backend.threads} threads. {probe.summary()}"]
    for one in series:
        name = f"growth-{one.name}.png"
        parts.append(section(one, probe.best, name))
        if arguments.write:
            draw(one, probe.best, RESULTS.parent / "pictures" / name)
    body = "\n\n".join(parts)
    print(body)
    if arguments.write:
        command = f"python -m benchmarks.growth --model {arguments.model} --repeats {arguments.repeats}"
        write_section("growth", "How the time of a step grows", command, body)


if __name__ == "__main__":
    main()
