"""The arrival forecast: how well it foretells, and what it brings to the batch lane and to `adaptive`.

Three kinds of arrivals at the same rate: Poisson, in which nothing can be foretold but the rate; gaps from a gamma
distribution of shape 0.25, in which requests come in clumps within a moment; and bursts, a quarter of the time with
four times the rate. Foretold are the arrivals of the next 0.2 s, about a step, and compared with a forecast that knows
the true mean rate and nothing else. Engines run in virtual time, with the same requests and seeds, once with the
forecast and once with one that always says the same.
"""

from __future__ import annotations

import argparse
import bisect
import math
import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import takewhile
from unittest import mock

from benchmarks.batch_lane import LOAD, Found, Kind, at_once, capacity, requests
from benchmarks.results import table, write_section
from benchmarks.virtual import VOCABULARY, virtual_engine
from benchmarks.workloads import bursts, gamma, poisson
from inflight.config.scheduling import SchedulingSettings
from inflight.core.estimation.arrivals import Forecast
from inflight.engine.loop import EngineLoop
from inflight.metrics.definitions import percentiles

Arrivals = Callable[[random.Random, float], Iterator[float]]
KINDS: dict[str, Arrivals] = {
    "Poisson": poisson,
    "gamma, shape 0.25": partial(gamma, shape=0.25),
    "bursts every 8 s": partial(bursts, gap=8.0),
    "bursts every 40 s": partial(bursts, gap=40.0),
}
HORIZON = 0.2  # seconds
RATE = 2.0  # arrivals per second, of the first table
ITL_TARGETS = (0.1, 0.2)  # seconds


def foretold(name: str, arrivals: Arrivals, seconds: float, seed: int) -> list[object]:
    """Forecasts at every horizon's start, against what came in it."""
    times = list(takewhile(lambda at: at < seconds, arrivals(random.Random(seed), RATE)))
    mean = len(times) / seconds * HORIZON
    forecast, seen = Forecast(), 0
    squares = squares_of_mean = error = bias = 0.0
    looks = int(seconds / HORIZON)
    for look in range(looks):
        now = look * HORIZON
        while seen < len(times) and times[seen] <= now:
            forecast.arrived(times[seen])
            seen += 1
        expected = forecast.expected(now, HORIZON)
        came = bisect.bisect_right(times, now + HORIZON) - seen
        squares += (expected - came) ** 2
        squares_of_mean += (mean - came) ** 2
        error += abs(expected - came)
        bias += expected - came
    return [
        name,
        f"{mean:.2f}",
        f"{error / looks:.2f}",
        f"{math.sqrt(squares / looks):.3f}",
        f"{math.sqrt(squares_of_mean / looks):.3f}",
        f"{1 - squares / squares_of_mean:+.1%}",
        f"{bias / looks / mean:+.0%}",
    ]


class Blind:
    """Within it every forecast says the same, so that no moment looks busier than another."""

    def __enter__(self) -> None:
        self._patch = mock.patch.object(Forecast, "rate", lambda forecast, now: 1.0)
        self._patch.start()

    def __exit__(self, *error: object) -> None:
        self._patch.stop()


def engine(seconds: float, settings: SchedulingSettings | None = None) -> Kind:
    """settings: instead of those that a run asks for."""

    def opened(asked: SchedulingSettings) -> EngineLoop:
        return virtual_engine(settings or asked)

    return Kind("virtual, 0.5B", VOCABULARY, opened, seconds=seconds, gap=8, rounds=1)


def batch_lane(seconds: float, seeds: range) -> list[list[object]]:
    kind = engine(seconds)
    rate = capacity(kind)
    rows: list[list[object]] = []
    for name, arrivals in KINDS.items():
        alone, with_it, without = Found(), Found(), Found()
        for seed in seeds:
            times = arrivals(random.Random(seed), LOAD * rate)
            interactive = requests(kind, times, int(LOAD * rate * seconds), "interactive", seed)
            batch = requests(kind, at_once(), int(1.2 * rate * seconds), "batch", 100 + seed)
            alone.add(kind, interactive, [], {})
            with_it.add(kind, interactive, batch, {})
            with Blind():
                without.add(kind, interactive, batch, {})
        before = percentiles(alone.ttfts)
        for way, found in (("without", without), ("with", with_it)):
            after = percentiles(found.ttfts)
            assert None not in (before.mean, before.p99, after.mean, after.p99)
            rows.append(
                [
                    name,
                    way,
                    f"{found.output_per_s / alone.output_per_s:.2f}",
                    f"{after.mean / before.mean - 1:+.1%}",  # type: ignore[operator]
                    f"{after.p99 / before.p99 - 1:+.1%}",  # type: ignore[operator]
                ]
            )
    return rows


def adaptive(seconds: float, seeds: range) -> list[list[object]]:
    rate = capacity(engine(seconds))
    rows: list[list[object]] = []
    for name, arrivals in KINDS.items():
        for target in ITL_TARGETS:
            settings = SchedulingSettings.of(strategy="adaptive", itl_target=target)
            kind = engine(seconds, settings)
            with_it, without = Found(), Found()
            for seed in seeds:
                times = arrivals(random.Random(seed), LOAD * rate)
                offered = requests(kind, times, int(LOAD * rate * seconds), "interactive", seed)
                with_it.add(kind, offered, [], {})
                with Blind():
                    without.add(kind, offered, [], {})
            for way, found in (("without", without), ("with", with_it)):
                ttft, itl = percentiles(found.ttfts), percentiles(found.gaps)
                late = sum(gap > target for gap in found.gaps) / len(found.gaps)
                figures = (ttft.mean, ttft.p99, itl.mean, itl.p99)
                rows.append(
                    [name, f"{target:g}", way, *(f"{(one or 0.0) * 1e3:.1f}" for one in figures), f"{late:.2%}"]
                )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="of virtual time")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    seconds, seeds = arguments.seconds, range(arguments.seeds)
    errors = ["arrivals", "came, mean", "off by, mean", "RMS error", "RMS of the mean rate", "skill", "bias"]
    lane = ["arrivals", "forecast", "output × alone", "TTFT mean", "TTFT p99"]
    held = ["arrivals", "ITL target, s", "forecast", "TTFT mean, ms", "p99, ms", "ITL mean, ms", "p99, ms", "late gaps"]
    body = "\n\n".join(
        [
            f"Requests in the next {HORIZON:g} s, at {RATE:g}/s. Skill: the share of the squared error of the mean "
            "rate that the forecast takes away; no forecast has any on Poisson arrivals.",
            table(errors, [foretold(name, arrivals, 10 * seconds, 1) for name, arrivals in KINDS.items()]),
            f"A batch lane beside interactive requests at {LOAD:.0%} of capacity, against those requests alone: steps "
            "are shorter while more newcomers than usual are expected.",
            table(lane, batch_lane(seconds, seeds)),
            f"The strategy `adaptive` at {LOAD:.0%} of capacity, without a batch lane: prompts are held back while "
            "nobody waits and an arrival before the step's end is likelier than not. Few steps are: where the figures "
            "with and without agree, none was held back.",
            table(held, adaptive(seconds, seeds)),
        ]
    )
    print(body)
    if arguments.write:
        command = f"python -m benchmarks.forecast --seconds {seconds:g} --seeds {arguments.seeds}"
        write_section("forecast", "The arrival forecast", command, body)


if __name__ == "__main__":
    main()
