"""The prefix cache on a shared system prompt: time to the first token with and without, and the same tokens.

Requests share a system prompt and differ in what the user says. In both engines one request comes before those that are
measured, so that the cache is filled (and memory is touched); then requests come one at a time, then all at once. That
the outputs are the same, token by token, is asserted and not only reported.
"""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass

from msgspec import structs

from benchmarks.comparison import log_line, options, publish, ratios, spread
from benchmarks.drive import Outcome, drive
from benchmarks.engines import Model
from benchmarks.results import table
from benchmarks.workloads import prompt
from inflight.config.engine import EngineSettings
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams

SYSTEM, USER, OUTPUT = 1024, 32, 24  # tokens
NUM_BLOCKS, MODEL_LEN = 2048, 2048


@dataclass(frozen=True, slots=True)
class Figures:
    """One engine. Mean TTFT in seconds, one request at a time and all at once; cached: share of the prompt tokens."""

    ttft_alone: float
    ttft_at_once: float
    cached: float
    outputs: list[list[int]]


def workload(model: Model, number: int, seed: int) -> list[Request]:
    """The first is for filling the cache."""
    rng = random.Random(seed)
    system = prompt(rng, SYSTEM, model.vocab_size)
    params = SamplingParams(temperature=0, max_tokens=OUTPUT, ignore_eos=True)
    return [
        Request(request_id=str(index), prompt_token_ids=system + prompt(rng, USER, model.vocab_size), params=params)
        for index in range(number + 1)
    ]


def measure(model: Model, caching: bool, requests: list[Request]) -> Figures:
    settings = EngineSettings(max_model_len=MODEL_LEN, num_blocks=NUM_BLOCKS, enable_prefix_caching=caching)
    loop = model.loop(settings)
    drive(loop, requests[:1])
    alone = [outcome for request in requests[1:] for outcome in drive(loop, [request]).outcomes]
    # Of a prompt that was served before, even the user's part would be cached now: other users come.
    at_once = drive(loop, (_of_another_user(one, model.vocab_size) for one in requests[1:])).outcomes
    figures = Figures(
        _mean_ttft(alone),
        _mean_ttft(at_once),
        statistics.mean(one.timings.cached_tokens / (SYSTEM + USER) for one in alone if one.timings is not None),
        [one.token_ids for one in alone + at_once],
    )
    shown = f"TTFT {figures.ttft_alone:.3f} s alone, {figures.ttft_at_once:.3f} s at once, {figures.cached:.0%} cached"
    log_line(f"{'with' if caching else 'without'} the cache: {shown}")
    return figures


def _of_another_user(request: Request, vocab_size: int) -> Request:
    user = prompt(random.Random(request.request_id), USER, vocab_size)
    return structs.replace(request, prompt_token_ids=request.prompt_token_ids[:SYSTEM] + user)


def _mean_ttft(outcomes: list[Outcome]) -> float:
    ttfts = [one.ttft for one in outcomes if one.ttft is not None]
    assert len(ttfts) == len(outcomes)
    return statistics.mean(ttfts)


def main() -> None:
    parser = options(__doc__, repeats=3)
    parser.add_argument("--requests", type=int, default=8, help="measured in each engine (default 8)")
    arguments = parser.parse_args()
    model = Model(arguments.model, NUM_BLOCKS, MODEL_LEN)
    runs: dict[bool, list[Figures]] = {False: [], True: []}
    for seed in range(arguments.repeats):
        requests = workload(model, arguments.requests, seed)
        for caching in runs:
            runs[caching].append(measure(model, caching, requests))
        assert runs[False][-1].outputs == runs[True][-1].outputs, "the prefix cache changed an output"
    body = report(model, arguments.requests, runs)
    publish("prefix_cache", "Prefix cache on a shared system prompt", body, arguments.write)


def report(model: Model, requests: int, runs: dict[bool, list[Figures]]) -> str:
    without, cached = runs[False], runs[True]
    tokens = sum(len(output) for one in cached for output in one.outputs)
    asked = [
        [
            "TTFT without over with the cache, one at a time",
            spread(ratios([one.ttft_alone for one in without], [one.ttft_alone for one in cached]), 1, "×"),
            "≥ 5×",
        ],
        [
            "TTFT without over with the cache, all at once",
            spread(ratios([one.ttft_at_once for one in without], [one.ttft_at_once for one in cached]), 1, "×"),
            "reported",
        ],
        ["outputs that differ", f"0 of {tokens:,} tokens", "bit-identical"],
    ]
    rows = [
        [
            name,
            spread([1e3 * one.ttft_alone for one in figures], 0),
            spread([1e3 * one.ttft_at_once for one in figures], 0),
            spread([100 * one.cached for one in figures], 0, " %"),
        ]
        for name, figures in (("without", without), ("with", cached))
    ]
    return "\n\n".join(
        [
            f"{model.name}: a system prompt of {SYSTEM} tokens shared by all, {USER} tokens of each user's, {requests} "
            "requests one at a time, then as many at once. Medians over the repeats, least and greatest in brackets.",
            table(["", "measured", "asked"], asked),
            table(["prefix cache", "TTFT alone, ms", "TTFT at once, ms", "prompt tokens from the cache"], rows),
        ]
    )


if __name__ == "__main__":
    main()
