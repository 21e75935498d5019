"""Short prompts that arrive while a long one is computed: suspension of its steps against smaller steps and lanes.

First the CPU time of an engine's steps is measured by their size, on one thread, so that others on the machine do not
count. With these times every setting is simulated: eight streams decode, prompts of 8,192 tokens follow one another,
and short ones come by Poisson. With --real the engine itself serves such a load once a setting, on a clock of CPU time;
short prompts then come between the layers of a step, as at a server.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from benchmarks.comparison import log_line, options, publish, spread
from benchmarks.cpu_clock import CpuClock
from benchmarks.drive import Outcome, Run, drive
from benchmarks.engines import Model, assemble
from benchmarks.results import table
from benchmarks.workloads import lognormal, poisson, prompt
from inflight.build.engine import build_engine
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.features import Features
from inflight.core.types.plan import BatchPlan, Capacity, Chunk, NewRequest
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.execution import suspending
from inflight.execution.backends.protocol import Quantization
from inflight.execution.runner import ModelRunner
from inflight.metrics.definitions import percentiles
from inflight.simulate.executor import SimulatedExecutor

ROWS, STREAMS, LONG = 32, 8, 8192
NUM_BLOCKS, BESIDE = 2048, 512  # BESIDE: positions of the model beside the long prompt
STREAM_OUTPUT = 400
SIZES = (1, 8, 16, 32, 64, 128, 256, 512)  # tokens of the steps that are measured
SHORT_P50, SHORT_P99, SHORT_MAX, SHORT_OUTPUT = 48, 200, 256, 8


@dataclass(frozen=True, slots=True)
class Case:
    """One setting. budget: prompt tokens of a step. share: `prefill_suspension`. chunk: `chunk` of the lane."""

    name: str
    budget: int
    share: float = 0.0
    chunk: int | None = None

    def settings(self, max_model_len: int) -> EngineSettings:
        return EngineSettings(
            max_model_len=max_model_len,
            num_blocks=NUM_BLOCKS,
            max_num_seqs=ROWS,
            max_num_batched_tokens=ROWS + self.budget,
            enable_prefix_caching=False,
        )

    @property
    def scheduling(self) -> SchedulingSettings:
        lanes = {} if self.chunk is None else {"interactive": {"chunk": self.chunk}}
        return SchedulingSettings.of(speculation="off", prefill_suspension=self.share, lanes=lanes)


BASE, WIDE = Case("128 tokens a step", 128), Case("512 tokens a step", 512)
CASES = (
    BASE,
    Case("128, lane's chunk 64", 128, chunk=64),
    Case("64", 64),
    Case("64, suspended for ½", 64, 0.5),
    Case("64, suspended for 1", 64, 1.0),
    Case("128, suspended for ½", 128, 0.5),
    Case("128, suspended for 1", 128, 1.0),
    WIDE,
    Case("512, lane's chunk 256", 512, chunk=256),
    Case("512, suspended for ½", 512, 0.5),
    Case("512, suspended for 1", 512, 1.0),
)
REAL = (BASE, Case("128, lane's chunk 64", 128, chunk=64), Case("128, suspended for 1", 128, 1.0))


class Subject:
    """The model that is measured: the shape of benchmarks.engines, or a GGUF file."""

    def __init__(self, name: str, quantization: Quantization, gguf: Path | None):
        self._engine, self._model = None, None
        if gguf is None:
            self._model = Model(name, NUM_BLOCKS, LONG + BESIDE, quantization, threads=1)
            self.name, self.vocab_size, self.max_model_len = self._model.name, self._model.vocab_size, LONG + BESIDE
        else:
            settings = replace(CASES[-1].settings(LONG), model=str(gguf), threads=1)
            self._engine = build_engine(settings, SchedulingSettings.of(speculation="off"))
            capacity = self._engine.capacity
            self.name, self.vocab_size, self.max_model_len = gguf.stem, capacity.vocab_size, capacity.max_model_len
        self.long = self.max_model_len - BESIDE

    def runner(self, case: Case) -> ModelRunner:
        if self._model is not None:
            return self._model.executor(case.settings(self.max_model_len), case.scheduling)
        assert self._engine is not None and isinstance(self._engine.executor, ModelRunner)
        return self._engine.executor


@dataclass(slots=True)
class CpuSteps:
    """A step model: CPU seconds by tokens, interpolated, and of each query-key pair beyond those of a first chunk."""

    seconds_of: Mapping[int, float]
    pair: float
    name: str = "CPU time of this machine's steps"

    def seconds(self, features: Features) -> float:
        sizes, tokens = list(self.seconds_of), features.tokens
        upper = next((size for size in sizes if size >= tokens), sizes[-1])
        lower = max((size for size in sizes if size < upper), default=0)
        low, high = self.seconds_of.get(lower, 0.0), self.seconds_of[upper]
        plain = high if lower == 0 else low + (high - low) * (tokens - lower) / (upper - lower)
        return plain + self.pair * (features.prefill_context + features.decode_context)

    def extrapolates(self, features: Features) -> str | None:
        return None


def cpu_seconds(runner: ModelRunner, step: int, tokens: int, start: int) -> float:
    """Return the CPU seconds of a step of one sequence with so many tokens behind `start` others."""
    known = tuple(3 + index % 997 for index in range(start + tokens))
    blocks = tuple(range(-(-len(known) // 16)))
    chunk = Chunk(0, 0, start, tokens, blocks, 1)
    began = time.process_time()
    result = runner.submit(BatchPlan(step, (chunk,), (NewRequest(0, known, len(known)),))).result()
    assert result.error is None, result.error
    return time.process_time() - began


def measured(model: Subject, rounds: int) -> CpuSteps:
    """Measure steps of all sizes, the least of some rounds."""
    runner, far = model.runner(Case("", SIZES[-1])), model.long // 2
    found: dict[tuple[int, int], list[float]] = {}
    for number in range(rounds):
        for tokens, start in [*((size, 0) for size in SIZES), (128, far)]:
            found.setdefault((tokens, start), []).append(cpu_seconds(runner, number, tokens, start))
    best = {key: min(seconds) for key, seconds in found.items()}
    pair = max(0.0, best[128, far] - best[128, 0]) / (128 * far)
    log_line(f"CPU seconds by tokens: {best}")
    return CpuSteps({size: best[size, 0] for size in SIZES}, pair)


def workload(model: Subject, rate: float, longs: Sequence[float], end: float, seed: int) -> list[Request]:
    """Streams from the start, long prompts at these times, short ones by Poisson until the end."""
    rng = random.Random(seed)

    def request(name: str, length: int, output: int, arrival: float) -> Request:
        params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True)
        tokens = prompt(rng, length, model.vocab_size)
        return Request(request_id=name, prompt_token_ids=tokens, params=params, arrival=arrival)

    streams = [request(f"stream {index}", 64, STREAM_OUTPUT, 0.0) for index in range(STREAMS)]
    long = [request(f"long {index}", model.long, 16, at) for index, at in enumerate(longs)]
    times = takewhile(lambda at: at < end, poisson(random.Random(seed + 1), rate))
    short = [
        request(f"short {index}", lognormal(rng, SHORT_P50, SHORT_P99, SHORT_MAX), SHORT_OUTPUT, longs[0] + at)
        for index, at in enumerate(times)
    ]
    return streams + long + short


@dataclass(slots=True)
class Figures:
    """One run; seconds. tokens_per_s: prompt and output tokens over the time that the steps took."""

    ttft_p50: float
    ttft_p99: float
    samples: int
    long_ttft: float
    itl_p99: float
    tokens_per_s: float
    token_ids: dict[str, list[int]] = field(repr=False, default_factory=dict)


def figures(run: Run, seconds: float) -> Figures:
    def of(kind: str) -> list[Outcome]:
        return [one for one in run.outcomes if one.request.request_id.startswith(kind)]

    short = percentiles(one.ttft for one in of("short") if one.ttft is not None)
    itl = percentiles(gap for one in of("stream") for gap in one.gaps)
    long = percentiles(one.ttft for one in of("long") if one.ttft is not None)
    assert short.p50 is not None and short.p99 is not None and long.mean is not None and itl.p99 is not None
    tokens = sum(len(one.request.prompt_token_ids) + len(one.token_ids) for one in run.outcomes)
    ids = {one.request.request_id: one.token_ids for one in run.outcomes}
    return Figures(short.p50, short.p99, len(of("short")), long.mean, itl.p99, tokens / seconds, ids)


def simulated(case: Case, steps: CpuSteps, requests: list[Request], model: Subject) -> Figures:
    capacity = Capacity(NUM_BLOCKS, 16, ROWS, model.max_model_len, model.vocab_size)
    executor, clock = SimulatedExecutor(capacity, steps), VirtualClock()
    loop = _loop(case, executor, clock, executor)
    run = drive(loop, requests)
    return figures(run, executor.busy)


def real(case: Case, model: Subject, requests: list[Request]) -> Figures:
    runner, clock = model.runner(case), CpuClock()
    with _cpu_time():
        run = drive(_loop(case, runner, clock, runner.suspending), requests)
        return figures(run, clock.now() - clock.rested)


@contextmanager
def _cpu_time() -> Iterator[None]:
    """Have suspended steps count CPU time."""
    with mock.patch.object(suspending, "time", SimpleNamespace(perf_counter=time.process_time)):
        yield


def _loop(case: Case, executor: Any, clock: Any, suspender: Any) -> EngineLoop:
    suspender = suspender if case.share else None
    settings = case.settings(executor.capacity.max_model_len)
    return assemble(executor, clock, settings, case.scheduling, suspender=suspender)


def main() -> None:
    parser = options(__doc__, repeats=5)
    parser.add_argument("--rate", type=float, default=1.0, help="short prompts a second (default 1)")
    parser.add_argument("--quantization", choices=["none", "int8"], default="none", help="of the matrices")
    parser.add_argument("--gguf", type=Path, help="a GGUF file instead of a shape")
    parser.add_argument("--real", type=int, default=0, metavar="N", help="long prompt tokens that the engine computes")
    arguments = parser.parse_args()
    model = Subject(arguments.model, arguments.quantization, arguments.gguf)
    steps = measured(model, 3)
    runs: dict[str, list[Figures]] = {case.name: [] for case in CASES}
    for seed in range(arguments.repeats):
        alone = sum(steps.seconds(_chunk(start)) for start in range(0, model.long, 128))
        longs = [1 + index * 1.5 * alone for index in range(4)]
        requests = workload(model, arguments.rate, longs, longs[-1] + alone, seed)
        for case in CASES:
            runs[case.name].append(simulated(case, steps, requests, model))
            log_line(f"{case.name}: {runs[case.name][-1]}")
    body = report(model, arguments.rate, steps, runs)
    if arguments.real:
        body += "\n\n" + report_real(model, steps, arguments.rate, arguments.real)
    variant = arguments.model if arguments.quantization == "none" else f"{arguments.model} {arguments.quantization}"
    variant = variant if arguments.gguf is None else arguments.gguf.stem
    publish("suspension", f"Short prompts within a long one, {variant}", body, arguments.write, variant)


def _chunk(start: int) -> Features:
    return Features(128, 1, 0, 0, 128 * (start + 64))


HEAD = [
    "prompt tokens of a step",
    "TTFT of short prompts p50, s",
    "p99, s",
    "TTFT of long ones, s",
    "ITL p99 of streams, s",
    "tokens/s of step time",
]


def report(model: Subject, rate: float, steps: CpuSteps, runs: Mapping[str, list[Figures]]) -> str:
    by_size = [[size, f"{1e3 * seconds:.0f}", f"{size / seconds:.0f}"] for size, seconds in steps.seconds_of.items()]
    rows = [
        [
            name,
            spread([one.ttft_p50 for one in found], 2),
            spread([one.ttft_p99 for one in found], 2),
            spread([one.long_ttft for one in found], 1),
            spread([one.itl_p99 for one in found], 2),
            spread([one.tokens_per_s for one in found], 0),
        ]
        for name, found in runs.items()
    ]
    samples = statistics.median(one.samples for one in runs[BASE.name])
    return "\n\n".join(
        [
            f"{model.name}, one thread. CPU time of a step by its tokens, the least of three:",
            table(["tokens", "ms", "tokens/s"], by_size),
            f"Simulated with these times: {STREAMS} streams of {STREAM_OUTPUT} tokens, four prompts of "
            f"{model.long:,} tokens, "
            f"short prompts lognormal:{SHORT_P50}:{SHORT_P99}:{SHORT_MAX} (p50:p99:most) at {rate:g} a second by "
            f"Poisson, {samples:.0f} a run. Medians over the seeds, least and greatest in brackets.",
            table(HEAD, rows),
        ]
    )


def report_real(model: Subject, steps: CpuSteps, rate: float, tokens: int) -> str:
    """Run the engine once a setting, and compare all tokens."""
    alone = sum(steps.seconds(_chunk(start)) for start in range(0, tokens, 128))
    requests = workload(model, rate, [1.0], alone, 0)
    cut = next(one for one in requests if one.request_id.startswith("long"))
    requests = [one for one in requests if one is not cut]
    requests.append(
        Request(request_id="long 0", prompt_token_ids=cut.prompt_token_ids[:tokens], params=cut.params, arrival=1.0)
    )
    rows, expected = [], None
    for case in REAL:
        found = real(case, model, requests)
        log_line(f"real, {case.name}: {found}")
        expected = expected or found.token_ids
        assert found.token_ids == expected, "tokens differ"
        numbers = (found.ttft_p50, found.ttft_p99, found.long_ttft, found.itl_p99)
        rows.append([case.name, *(f"{one:.2f}" for one in numbers), f"{found.tokens_per_s:.0f}"])
    shorts = sum(one.request_id.startswith("short") for one in requests)
    return "\n\n".join(
        [
            f"The engine itself, on a clock of CPU time: one prompt of {tokens:,} tokens, {shorts} short ones, the "
            "streams as above, once a setting. All tokens are the same.",
            table(HEAD, rows),
        ]
    )


if __name__ == "__main__":
    main()
