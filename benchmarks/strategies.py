"""Chunked against static and dynamic batching on a heavy-tailed mix: throughput, latency, padding.

Two loads. All requests at once: how much work the engine gets through. Poisson arrivals at the request rate that static
batching reached in that round: what a client waits where static is just able to keep up. Static and dynamic deliver
when their batch ends, so that their first token comes with their last; lengths are not known in advance.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.comparison import log_line, options, publish, ratios, spread
from benchmarks.drive import Observer, drive
from benchmarks.engines import Model
from benchmarks.results import table
from benchmarks.workloads import heavy_tailed
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.metrics.definitions import percentiles

ROWS = 32
NUM_BLOCKS = 4096  # memory is never the bottleneck, even where static reserves all that its sequences may ever need
SCHEDULING = {
    "static": SchedulingSettings.of(strategy="static", batch_size=ROWS),
    "dynamic": SchedulingSettings.of(strategy="dynamic", batch_size=ROWS),  # four buckets that follow the lengths seen
    "chunked": SchedulingSettings.of(strategy="chunked"),
}
PASS_TOKENS = {"static": 512, "dynamic": 512}  # long passes suit padded prompts: each weight is read less often


@dataclass(frozen=True, slots=True)
class Figures:
    """One run. ttft_*: seconds."""

    output_tokens_per_s: float
    requests_per_s: float
    ttft_mean: float
    ttft_p99: float
    padding_waste: float
    running: float


def measure(model: Model, strategy: str, requests: int, seed: int, rate: float | None = None) -> Figures:
    observer = Observer()
    settings = EngineSettings(max_num_seqs=ROWS, max_model_len=model.max_model_len, num_blocks=NUM_BLOCKS)
    longest = model.max_model_len // 2 - 1  # of a prompt, and of an output
    workload = heavy_tailed(requests, model.vocab_size, seed, rate, max_tokens=longest, max_prompt=longest)
    loop = model.loop(settings, SCHEDULING[strategy], observer, PASS_TOKENS.get(strategy))
    run = drive(loop, workload, observer.after)
    ttft = percentiles(run.ttfts())
    assert ttft.mean is not None and ttft.p99 is not None and ttft.samples == requests
    figures = Figures(
        run.output_tokens_per_s,
        run.requests_per_s,
        ttft.mean,
        ttft.p99,
        observer.padding_waste,
        sum(observer.running) / len(observer.running),
    )
    load = "all at once" if rate is None else f"{rate:.2f} requests/s"
    log_line(f"{strategy}, {load}: {run.seconds:.0f} s, {figures}")
    return figures


def main() -> None:
    parser = options(__doc__, repeats=1)
    parser.add_argument("--at-once", type=int, default=96, help="requests that come together (default 96)")
    parser.add_argument("--poisson", type=int, default=32, help="requests that come one by one (default 32)")
    arguments = parser.parse_args()
    model = Model(arguments.model, NUM_BLOCKS, max_model_len=2048)
    measure(model, "chunked", 8, seed=99)  # warm up
    at_once: dict[str, list[Figures]] = {name: [] for name in SCHEDULING}
    poisson: dict[str, list[Figures]] = {name: [] for name in SCHEDULING}
    for seed in range(arguments.repeats):
        for name in SCHEDULING:
            at_once[name].append(measure(model, name, arguments.at_once, seed))
        rate = at_once["static"][-1].requests_per_s
        for name in SCHEDULING:
            poisson[name].append(measure(model, name, arguments.poisson, seed, rate))
    body = report(model, arguments.at_once, arguments.poisson, at_once, poisson)
    publish("strategies", "Strategies on a heavy-tailed mix", body, arguments.write)


def report(
    model: Model,
    together: int,
    one_by_one: int,
    at_once: dict[str, list[Figures]],
    poisson: dict[str, list[Figures]],
) -> str:
    rates = [one.requests_per_s for one in at_once["static"]]
    throughput = {
        name: ratios(
            [one.output_tokens_per_s for one in at_once["chunked"]], [one.output_tokens_per_s for one in at_once[name]]
        )
        for name in ("static", "dynamic")
    }
    waits = {
        name: ratios([one.ttft_mean for one in poisson[name]], [one.ttft_mean for one in poisson["chunked"]])
        for name in ("static", "dynamic")
    }
    asked = [
        ["output throughput of chunked over static, all at once", spread(throughput["static"], unit="×"), "≥ 3.5×"],
        ["mean TTFT of static over chunked, Poisson", spread(waits["static"], 0, "×"), "≥ 10×"],
        ["padding waste of static", _share([one.padding_waste for one in at_once["static"]]), "> 60 %"],
        ["padding waste of chunked", _share([one.padding_waste for one in at_once["chunked"]]), "0"],
        ["output throughput of chunked over dynamic, all at once", spread(throughput["dynamic"], unit="×"), "reported"],
        ["mean TTFT of dynamic over chunked, Poisson", spread(waits["dynamic"], 0, "×"), "reported"],
    ]
    return "\n\n".join(
        [
            f"{model.name}, {ROWS} rows, prompts lognormal (p50 40, p99 400), outputs lognormal (p50 60, p99 "
            "500), seeded by the repeat. Medians over the repeats, least and greatest in brackets.",
            table(["", "measured", "asked"], asked),
            f"{together} requests at once:",
            _figures(at_once),
            f"{one_by_one} requests as Poisson arrivals, {spread(rates)} a second (what static reached):",
            _figures(poisson),
        ]
    )


def _figures(runs: dict[str, list[Figures]]) -> str:
    head = ["strategy", "output tokens/s", "requests/s", "TTFT mean, s", "TTFT p99, s", "padding waste", "mean running"]
    rows = [
        [
            name,
            spread([one.output_tokens_per_s for one in figures], 0),
            spread([one.requests_per_s for one in figures]),
            spread([one.ttft_mean for one in figures]),
            spread([one.ttft_p99 for one in figures]),
            _share([one.padding_waste for one in figures]),
            spread([one.running for one in figures], 1),
        ]
        for name, figures in runs.items()
    ]
    return table(head, rows)


def _share(values: list[float]) -> str:
    return spread([100 * value for value in values], 1, " %")


if __name__ == "__main__":
    main()
