"""Chunked against continuous batching when long prompts arrive among decoding streams: gaps and throughput.

Eight streams decode from the start. Long prompts come at even intervals, at a set share of the rate at which the engine
could compute them alone (measured before each round, under `continuous`). Under `continuous` a long prompt is one
step that all streams wait for; under `chunked` it is spread over many steps. Both do the same work, so the throughput
that chunking costs shows in the time that the steps took together; how far a percentile of the gaps sees the long ones
depends on the load, so their greatest is shown too.
"""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass

from benchmarks.comparison import log_line, options, publish, ratios, spread
from benchmarks.drive import Observer, drive
from benchmarks.engines import Model
from benchmarks.results import table
from benchmarks.workloads import prompt
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.metrics.definitions import percentiles

STRATEGIES = ("continuous", "chunked")
STREAMS, STREAM_PROMPT = 8, 64
LONG_PROMPTS = (2048, 3072, 2560, 4000)
LONG_OUTPUT = 16
NUM_BLOCKS, MODEL_LEN = 2048, 4096
SETTINGS = EngineSettings(max_model_len=MODEL_LEN, num_blocks=NUM_BLOCKS)
PASS_TOKENS = {"continuous": 1024}  # long passes suit whole prompts: each weight is read less often


@dataclass(frozen=True, slots=True)
class Figures:
    """One run; seconds. itl_*: gaps of the eight streams. ttft: mean of the long prompts. tokens_per_s: prompt and
    output tokens over the time that the steps took."""

    itl_p50: float
    itl_p99: float
    itl_most: float
    gaps: int
    ttft: float
    tokens_per_s: float


def workload(model: Model, stream_output: int, interval: float, seed: int) -> list[Request]:
    rng = random.Random(seed)

    def request(name: str, length: int, output: int, arrival: float) -> Request:
        params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True)
        tokens = prompt(rng, length, model.vocab_size)
        return Request(request_id=name, prompt_token_ids=tokens, params=params, arrival=arrival)

    streams = [request(f"stream {index}", STREAM_PROMPT, stream_output, 0.0) for index in range(STREAMS)]
    long = [
        request(f"long {index}", length, LONG_OUTPUT, (index + 0.5) * interval)
        for index, length in enumerate(LONG_PROMPTS)
    ]
    return streams + long


def measure(model: Model, strategy: str, requests: list[Request]) -> Figures:
    observer = Observer()
    loop = model.loop(SETTINGS, SchedulingSettings.of(strategy=strategy), observer, PASS_TOKENS.get(strategy))
    run = drive(loop, requests, observer.after)
    streams = [one for one in run.outcomes if one.request.request_id.startswith("stream")]
    gaps = [gap for one in streams for gap in one.gaps]
    itl = percentiles(gaps)
    ttft = percentiles(one.ttft for one in run.outcomes if one not in streams and one.ttft is not None)
    assert itl.p50 is not None and itl.p99 is not None and ttft.mean is not None
    tokens = sum(len(one.request.prompt_token_ids) + len(one.token_ids) for one in run.outcomes)
    figures = Figures(itl.p50, itl.p99, max(gaps), len(gaps), ttft.mean, tokens / observer.busy)
    log_line(f"{strategy}: {run.seconds:.0f} s, {figures}")
    return figures


def seconds_alone(model: Model) -> float:
    """Return what a long prompt of mean length takes when nothing else runs."""
    rng = random.Random(0)
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    tokens = prompt(rng, round(statistics.mean(LONG_PROMPTS)), model.vocab_size)
    loop = model.loop(SETTINGS, SchedulingSettings.of(strategy="continuous"), None, PASS_TOKENS["continuous"])
    return drive(loop, [Request(request_id="alone", prompt_token_ids=tokens, params=params)]).seconds


def main() -> None:
    parser = options(__doc__, repeats=2)
    parser.add_argument("--load", type=float, default=0.9, help="of long prompts, share of the engine (default 0.9)")
    parser.add_argument("--stream-output", type=int, default=280, help="tokens of each stream (default 280)")
    arguments = parser.parse_args()
    model = Model(arguments.model, NUM_BLOCKS, MODEL_LEN)
    runs: dict[str, list[Figures]] = {name: [] for name in STRATEGIES}
    for seed in range(arguments.repeats):
        interval = seconds_alone(model) / arguments.load
        log_line(f"a long prompt every {interval:.1f} s")
        requests = workload(model, arguments.stream_output, interval, seed)
        for name in STRATEGIES:
            runs[name].append(measure(model, name, requests))
    body = report(model, arguments.load, arguments.stream_output, runs)
    publish("long_prompts", "Long prompts among decoding streams", body, arguments.write)


def report(model: Model, load: float, stream_output: int, runs: dict[str, list[Figures]]) -> str:
    continuous, chunked = (runs[name] for name in STRATEGIES)
    lower = ratios([one.itl_p99 for one in continuous], [one.itl_p99 for one in chunked])
    kept = ratios([one.tokens_per_s for one in chunked], [one.tokens_per_s for one in continuous])
    asked = [
        ["p99 ITL of continuous over chunked", spread(lower, 1, "×"), "≥ 5×"],
        ["throughput lost by chunking", spread([100 * (1 - share) for share in kept], 1, " %"), "< 5 %"],
    ]
    head = ["strategy", "ITL p50, ms", "p99, ms", "greatest, ms", "TTFT of long prompts, s", "tokens/s of step time"]
    rows = [
        [
            name,
            spread([1e3 * one.itl_p50 for one in figures], 0),
            spread([1e3 * one.itl_p99 for one in figures], 0),
            spread([1e3 * one.itl_most for one in figures], 0),
            spread([one.ttft for one in figures], 1),
            spread([one.tokens_per_s for one in figures], 0),
        ]
        for name, figures in runs.items()
    ]
    return "\n\n".join(
        [
            f"{model.name}: {STREAMS} streams of {stream_output} tokens, and prompts of "
            f"{', '.join(map(str, LONG_PROMPTS))} tokens at {load:.0%} of what the engine could compute; "
            f"{chunked[0].gaps:,} gaps a run. Medians over the repeats, least and greatest in brackets.",
            table(["", "measured", "asked"], asked),
            table(head, rows),
        ]
    )


if __name__ == "__main__":
    main()
