"""A batch lane that fills idle time: what it adds in throughput, and what interactive requests notice of it.

Interactive requests come at 40 % of capacity; the batch lane always has work. Compared are the interactive requests
alone, both as one lane (what a server without lanes does), the batch lane without a step target, and with targets
around the 99th percentile of the inter-token latency alone. A second table has interactive requests that come in
bursts, with the arrival forecast and without it.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count, takewhile
from typing import Any

from benchmarks.drive import Run, drive
from benchmarks.engines import Model
from benchmarks.results import table, write_section
from benchmarks.virtual import VOCABULARY, virtual_engine
from benchmarks.workloads import lognormal, poisson, prompt
from inflight.config import EngineSettings
from inflight.core import lanes
from inflight.core.request import Request
from inflight.core.sampling import SamplingParams
from inflight.engine.loop import EngineLoop
from inflight.metrics.definitions import percentiles
from inflight.scheduling import SchedulingSettings

LOAD = 0.4


@dataclass(frozen=True, slots=True)
class Kind:
    """An engine. seconds: how long interactive requests come; gap: between bursts."""

    name: str
    vocabulary: int
    open: Callable[[SchedulingSettings], EngineLoop]
    seconds: float
    gap: float


def requests(kind: Kind, arrivals: Iterator[float], number: int, lane: str, seed: int) -> list[Request]:
    """Prompts p50 40, p99 200; outputs p50 40, p99 200."""
    rng = random.Random(seed)
    return [
        Request(
            request_id=f"{lane}-{index}",
            prompt_token_ids=prompt(rng, lognormal(rng, 40, 200, 300), kind.vocabulary),
            params=SamplingParams(temperature=0, max_tokens=300, ignore_eos=True),
            forced_output_tokens=lognormal(rng, 40, 200, 300),
            arrival=next(arrivals),
            lane=lane,
        )
        for index in range(number)
    ]


def at_once() -> Iterator[float]:
    while True:
        yield 0.0


def bursts(rng: random.Random, rate: float, gap: float) -> Iterator[float]:
    """On average `rate` per second, all of them in a quarter of the time: a burst starts about every `gap` seconds."""
    for number in count():
        start = gap * (number + rng.uniform(0.0, 0.7))
        yield from (start + at for at in takewhile(lambda at: at < gap / 4, poisson(rng, 4 * rate)))


@dataclass(frozen=True, slots=True)
class Found:
    """Of the interactive requests; tokens_per_s of both lanes, prompt and output, while interactive requests came."""

    ttft: float
    itl: float
    mean_ttft: float
    tokens_per_s: float
    output_per_s: float


def capacity(kind: Kind) -> float:
    """Requests per second while requests wait."""
    loop = kind.open(SchedulingSettings())
    run = drive(loop, requests(kind, at_once(), 600, "interactive", 9))
    loop.close()
    firsts = sorted(one.token_times[0] for one in run.outcomes)
    return (len(firsts) - 1) / (firsts[-1] - firsts[0])


def serve(kind: Kind, interactive: list[Request], batch: list[Request], lane: dict[str, Any] | None) -> Found:
    """lane: settings of the batch lane; None puts its requests into the interactive one, behind those there."""
    settings = SchedulingSettings(lanes={"batch": lane} if lane else {})
    mixed = batch if lane is not None else [replace(one, lane="interactive") for one in batch]
    loop = kind.open(settings)
    start = loop.clock.now()
    run = drive(loop, interactive + mixed)
    loop.close()
    return account(run, start, max(one.arrival for one in interactive))


def account(run: Run, start: float, seconds: float) -> Found:
    mine = [one for one in run.outcomes if one.request.request_id.startswith("interactive")]
    ttft = percentiles(one.ttft for one in mine if one.ttft is not None)
    itl = percentiles(gap for one in mine for gap in one.gaps)
    assert ttft.p99 is not None and ttft.mean is not None and itl.p99 is not None
    within = [sum(at <= start + seconds for at in one.token_times) for one in run.outcomes]
    prompts = sum(len(one.request.prompt_token_ids) for one, count in zip(run.outcomes, within, strict=True) if count)
    output = sum(within)
    return Found(ttft.p99, itl.p99, ttft.mean, (prompts + output) / seconds, output / seconds)


def steady(kind: Kind) -> list[list[object]]:
    rate = capacity(kind)
    interactive = requests(
        kind, poisson(random.Random(7), LOAD * rate), int(LOAD * rate * kind.seconds), "interactive", 1
    )
    batch = requests(kind, at_once(), int(1.2 * rate * kind.seconds), "batch", 2)
    alone = serve(kind, interactive, [], {})
    rows = [line(kind, "interactive alone", alone, alone)]
    rows.append(line(kind, "one lane for both", serve(kind, interactive, batch, None), alone))
    rows.append(line(kind, "batch lane, no target", serve(kind, interactive, batch, {"background": True}), alone))
    for share in (1.0, 0.7, 0.6, 0.5, 0.4):
        found = serve(kind, interactive, batch, {"step_target": share * alone.itl})
        rows.append(line(kind, f"batch lane, step target {share * alone.itl * 1e3:.3g} ms", found, alone))
    return rows


def bursty(kind: Kind) -> list[list[object]]:
    """The step target at half of the p99 ITL alone; the forecast is switched off by asking for what never comes."""
    rate = capacity(kind)
    arrivals = bursts(random.Random(7), LOAD * rate, kind.gap)
    interactive = requests(kind, arrivals, int(LOAD * rate * kind.seconds), "interactive", 1)
    batch = requests(kind, at_once(), int(1.2 * rate * kind.seconds), "batch", 2)
    alone = serve(kind, interactive, [], {})
    rows = [line(kind, "interactive alone", alone, alone)]
    rows.append(line(kind, "no target", serve(kind, interactive, batch, {"background": True}), alone))
    likely = lanes.LIKELY
    for name, threshold in (
        ("target, no forecast", float("inf")),
        ("target and forecast", likely),
        ("always held", -1),
    ):
        lanes.LIKELY = threshold
        found = serve(kind, interactive, batch, {"step_target": alone.itl / 2})
        rows.append(line(kind, name, found, alone))
    lanes.LIKELY = likely
    return rows


HEAD = ["engine", "setting", "tokens/s", "× alone", "output tokens/s", "× alone", "TTFT mean, ms", "TTFT p99, ms"]
HEAD += ["change", "ITL p99, ms", "change"]


def line(kind: Kind, name: str, found: Found, alone: Found) -> list[object]:
    return [
        kind.name,
        name,
        f"{found.tokens_per_s:,.0f}",
        f"{found.tokens_per_s / alone.tokens_per_s:.2f}",
        f"{found.output_per_s:,.0f}",
        f"{found.output_per_s / alone.output_per_s:.2f}",
        f"{found.mean_ttft * 1e3:,.1f}",
        f"{found.ttft * 1e3:,.1f}",
        f"{found.ttft / alone.ttft - 1:+.0%}",
        f"{found.itl * 1e3:,.1f}",
        f"{found.itl / alone.itl - 1:+.0%}",
    ]


def kinds(real: str | None) -> list[Kind]:
    found = [Kind("virtual, 0.5B", VOCABULARY, virtual_engine, seconds=600, gap=8)]
    if real:
        model = Model("built-in" if real == "built-in" else "qwen", num_blocks=2048, max_model_len=1024)
        settings = EngineSettings(max_num_seqs=32, max_model_len=1024, num_blocks=2048)

        def opened(scheduling: SchedulingSettings) -> EngineLoop:
            return model.loop(settings, scheduling)

        seconds = 5 if real == "built-in" else 30
        found.append(
            Kind(f"real, {model.name}", model.vocab_size, opened, seconds, gap=0.5 if real == "built-in" else 8)
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", choices=("built-in", "0.5b"), help="also on the real engine")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    found = kinds(arguments.real)
    body = "\n\n".join(
        [
            "Interactive requests at 40 % of capacity, Poisson arrivals. The batch lane's step target bounds what it "
            "may add to a step in which interactive work runs.",
            table(HEAD, [row for kind in found for row in steady(kind)]),
            "The same load in bursts: a quarter of the time with four times the rate, and the target at half of the "
            "interactive p99 ITL. With the forecast the target also "
            "holds while no interactive work runs but some is expected before the step's end.",
            table(HEAD, [row for kind in found for row in bursty(kind)]),
        ]
    )
    print(body)
    if arguments.write:
        command = "python -m benchmarks.batch_lane" + (f" --real {arguments.real}" if arguments.real else "")
        write_section("batch_lane", "A batch lane in idle time", command, body)


if __name__ == "__main__":
    main()
