"""How well output lengths are predicted, and what that brings to `sjf`: real models' answers, held out by conversation.

`python -m benchmarks.lengths ANSWERS.npz …` reads answers that `benchmarks.length_answers` has collected. Each
predictor learns from four fifths of the conversations, an answer once, in a drawn order, and is asked about the last
fifth; so five times. Then answers of the odd conversations are traffic on the simulated engine of `overload`, whose
predictors have learnt from the even ones: the probe's predictions come with the results of steps, as in an engine.
Length errors are of the distribution's median, bias is of the sum of means.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from msgspec import structs

from benchmarks.drive import Outcome, drive
from benchmarks.length_answers import MAX_TOKENS, Answers
from benchmarks.results import table, write_section
from benchmarks.virtual import BUDGET, COST, MAX_MODEL_LEN, ROWS
from benchmarks.workloads import poisson
from inflight.config.assembly import scheduler_for
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.estimation.output_length import Oracle, Predictor, Quantiles
from inflight.core.estimation.prompt_tokens import PromptTokens
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.types.executor import Executor, ExecutorWrapper, Pending
from inflight.core.types.length_distribution import LengthDistribution, PredictedLength, of_remaining
from inflight.core.types.plan import BatchPlan, Capacity, StepResult
from inflight.core.types.request import SLO, Request
from inflight.core.types.sampling import SamplingParams
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.execution.length_probe.probe import Asked, LengthProbe, Read
from inflight.metrics.definitions import percentiles
from inflight.simulate.executor import SimulatedExecutor

FOLDS = 5
MOMENTS = (0, 128, 256)  # output tokens at which predictions are compared
QUANTILES = (0.25, 0.5, 0.75)
TTFT_TARGETS = (2.0, 5.0)  # seconds, of requests in turn
VOCABULARY = 2**18
Lengths = dict[int, dict[int, LengthDistribution]]  # by answer and output tokens


def requests_of(answers: Answers, numbers: Iterable[int]) -> list[Request]:
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)
    return [
        Request(
            request_id=f"{number}",
            prompt_token_ids=answers.prompt(number),
            params=params,
            forced_output_tokens=int(answers.tokens[number]),
        )
        for number in numbers
    ]


# -- predictors that have learnt from some answers, asked about others ------------------------------------------------


def by_requests(make: Callable[[], Predictor], answers: Answers, known: Sequence[int], asked: Sequence[int]) -> Lengths:
    predictor, found = taught(make(), answers, known), Lengths()
    for number, request in zip(asked, requests_of(answers, asked), strict=True):
        lengths = predictor.lengths(request, MAX_TOKENS, 0)
        found[number] = {moment: lengths.given(moment) for moment in MOMENTS}
    return found


def taught(predictor: Predictor, answers: Answers, known: Sequence[int]) -> Predictor:
    for number, request in zip(known, requests_of(answers, known), strict=True):
        predictor.observe(request, int(answers.tokens[number]))
    return predictor


class Probed:
    """A probe that has learnt from some answers."""

    def __init__(self, answers: Answers, known: Sequence[int]):
        self._answers = answers
        self._places: dict[int, list[int]] = {}
        for place, number in enumerate(answers.answer.tolist()):
            self._places.setdefault(number, []).append(place)
        self._probe = LengthProbe(answers.states.shape[1], "benchmark")
        for number in known:
            self._probe.learn(self._read(number), int(answers.tokens[number]), bool(answers.complete[number]))

    def remaining(self, number: int) -> dict[int, tuple[float, ...]]:
        """Return probabilities of the remaining tokens by the output tokens of their states."""
        reads = self._read(number)
        return {
            one.so_far: tuple(round(float(value), 4) for value in found)
            for one, found in zip(reads, self._probe.predictions(reads), strict=True)
        }

    def lengths(self, asked: Sequence[int]) -> Lengths:
        found = Lengths()
        for number in asked:
            known = {
                so_far: of_remaining(probabilities, MAX_TOKENS, so_far)
                for so_far, probabilities in self.remaining(number).items()
                if so_far < MAX_TOKENS
            }
            last = {moment: max(so_far for so_far in known if so_far <= moment) for moment in MOMENTS}
            found[number] = {moment: known[so_far].given(moment) for moment, so_far in last.items()}
        return found

    def _read(self, number: int) -> list[Read]:
        answers, kept = self._answers, list[Read]()
        for place in self._places[number]:
            so_far = int(answers.so_far[place])
            if so_far >= answers.tokens[number]:
                continue
            asked = Asked(len(answers.prompt(number)), so_far, MAX_TOKENS, False)
            (one,) = self._probe.read(
                answers.states[place][None].astype(np.float32), [asked], [kept[0] if kept else None]
            )
            if one is not None:
                kept.append(one)
        return kept


# -- how far off they are ---------------------------------------------------------------------------------------------


def held_out(answers: Answers) -> dict[str, Lengths]:
    """Return what each predictor says of each answer, from other conversations."""
    fold = np.array([crc32(one.encode()) % FOLDS for one in answers.conversation.tolist()])
    found: dict[str, Lengths] = {"quantiles": {}, "prompt tokens": {}, "probe": {}}
    for number in range(FOLDS):
        known, asked = np.flatnonzero(fold != number).tolist(), np.flatnonzero(fold == number).tolist()
        random.Random(number).shuffle(known)
        found["quantiles"] |= by_requests(Quantiles, answers, known, asked)
        found["prompt tokens"] |= by_requests(PromptTokens, answers, known, asked)
        found["probe"] |= Probed(answers, known).lengths(asked)
    return found


HEAD = [
    "output so far",
    "predictor",
    "mean absolute error",
    "of quantiles'",
    "within twice",
    "bias",
    "rank correlation",
]
HEAD += [f"at most the {p:.0%} quantile" for p in QUANTILES]


def error_rows(answers: Answers, found: dict[str, Lengths]) -> list[list[object]]:
    rows: list[list[object]] = []
    for moment in MOMENTS:
        longer = np.flatnonzero(answers.tokens > moment).tolist()
        actual, first = answers.tokens[longer], 0.0
        for name, lengths in found.items():
            asked = [lengths[number][moment] for number in longer]
            medians, means = (np.array([getattr(one, what)(*of) for one in asked]) for what, of in _STATISTICS)
            error = float(np.abs(medians - actual).mean())
            first = first or error
            twice = np.mean((medians >= actual / 2) & (medians <= 2 * actual))
            rank = np.corrcoef(_ranks(means), _ranks(actual))[0, 1]
            rows.append(
                [
                    f"{moment}, {len(longer)} answers",
                    name,
                    f"{error:.0f} tokens",
                    f"{error / first:.2f}",
                    f"{twice:.0%}",
                    f"{means.sum() / actual.sum() - 1:+.1%}",
                    f"{rank:+.2f}",
                    *(_share(asked, actual, p) for p in QUANTILES),
                ]
            )
    return rows


_STATISTICS: tuple[tuple[str, tuple[float, ...]], ...] = (("quantile", (0.5,)), ("mean", ()))


def _ranks(values: Any) -> Any:
    return np.argsort(np.argsort(values))


def _share(asked: Sequence[LengthDistribution], actual: Any, p: float) -> str:
    """Return the share of answers that lie at or below the quantile, of those whose quantile max_tokens does not
    bound: at the bound lie all. A dash where it bounds nearly every one."""
    inside = [(one.quantile(p), tokens) for one, tokens in zip(asked, actual.tolist(), strict=True)]
    inside = [(bound, tokens) for bound, tokens in inside if bound < MAX_TOKENS]
    if len(inside) < len(asked) / 10:
        return "-"
    return f"{np.mean([tokens <= bound for bound, tokens in inside]):.0%}"


# -- what it brings to an order ---------------------------------------------------------------------------------------


class ProbedExecutor(ExecutorWrapper):
    """Adds predictions to results, where a probe would read states. predicted: by sequence and output tokens."""

    def __init__(self, executor: Executor, predicted: dict[int, dict[int, tuple[float, ...]]], prompts: Sequence[int]):
        super().__init__(executor)
        self._predicted, self._prompts = predicted, prompts

    def submit(self, plan: BatchPlan) -> Pending:
        lengths = []
        for chunk in plan.chunks:
            if chunk.sample:
                so_far = chunk.start + chunk.length - self._prompts[chunk.sequence_id]
                if (known := self._predicted[chunk.sequence_id].get(so_far)) is not None:
                    lengths.append(PredictedLength(chunk.sequence_id, so_far, known))
        return _Probed(super().submit(plan), tuple(lengths))


@dataclass(frozen=True, slots=True)
class _Probed:
    pending: Pending
    lengths: tuple[PredictedLength, ...]

    def result(self) -> StepResult:
        return structs.replace(self.pending.result(), lengths=self.lengths)


def served(
    answers: Answers, order: Sequence[int], policy: str, predictor: Predictor, probed: Probed | None, rate: float
) -> list[Outcome]:
    """Serve these answers as Poisson arrivals of a rate; 0: all at once."""
    capacity = Capacity(8192, 16, ROWS, MAX_MODEL_LEN, VOCABULARY)
    settings = EngineSettings(max_num_seqs=ROWS, max_num_batched_tokens=BUDGET, enable_prefix_caching=False)
    times = poisson(random.Random(1), rate) if rate else iter([0.0] * len(order))
    requests = [
        structs.replace(one, arrival=next(times), slo=SLO(ttft=TTFT_TARGETS[index % len(TTFT_TARGETS)]))
        for index, one in enumerate(requests_of(answers, order))
    ]
    executor: Executor = SimulatedExecutor(capacity, COST)
    if probed is not None:
        prompts = [len(one.prompt_token_ids) for one in requests]
        executor = ProbedExecutor(executor, {at: probed.remaining(number) for at, number in enumerate(order)}, prompts)

    def make(config: SchedulerConfig) -> Scheduler:
        return Scheduler(structs.replace(config, predictor=predictor))

    scheduler = scheduler_for(capacity, settings, SchedulingSettings.of(policy=policy), make)
    return drive(EngineLoop(scheduler, executor, VirtualClock()), requests).outcomes


def service_rows(answers: Answers, seeds: range) -> list[list[object]]:
    even = [crc32(one.encode()) % 2 == 0 for one in answers.conversation.tolist()]
    known = [number for number, one in enumerate(even) if one]
    offered = [number for number, one in enumerate(even) if not one]
    probed = Probed(answers, known)
    at_once = served(answers, offered, "fcfs", Quantiles(), None, 0.0)
    firsts = sorted(one.token_times[0] for one in at_once)
    rate = (len(firsts) - 1) / (firsts[-1] - firsts[0])
    ways: tuple[tuple[str, str, Callable[[], Predictor], Probed | None], ...] = (
        ("fcfs", "-", Quantiles, None),
        ("sjf", "quantiles", Quantiles, None),
        ("sjf", "prompt tokens", PromptTokens, None),
        ("sjf", "probe", PromptTokens, probed),
        ("sjf", "oracle", Oracle, None),
    )
    rows: list[list[object]] = []
    for load in (1.0, 1.2):
        for policy, name, make, probe in ways:
            outcomes = list[Outcome]()
            for seed in seeds:
                order = list(offered)
                random.Random(seed).shuffle(order)
                outcomes += served(answers, order, policy, taught(make(), answers, known), probe, load * rate)
            rows.append([f"{load:g}", policy, name, *_figures(outcomes)])
    return rows


def _figures(outcomes: Sequence[Outcome]) -> list[str]:
    met = [one.request.slo.ttft is not None and one.met(one.request.slo.ttft) for one in outcomes]
    ttft = percentiles(one.ttft for one in outcomes if one.ttft is not None)
    total = [one.timings.total_ms / 1e3 for one in outcomes if one.timings is not None]
    e2e = percentiles(total)
    return [
        f"{sum(met) / len(met):.1%}",
        f"{ttft.p50:.1f}",
        f"{ttft.p99:.1f}",
        f"{sum(total) / len(total):.1f}",
        f"{e2e.p99:.1f}",
    ]


SERVICE_HEAD = ["load", "policy", "predictor", "attainment", "TTFT p50, s", "TTFT p99, s", "E2E mean, s", "E2E p99, s"]


def section(path: Path, seeds: range) -> str:
    answers = Answers.load(path)
    firsts = [0, *answers.prompt_ends.tolist()]
    prompt = np.mean([end - begin for begin, end in pairwise(firsts)])
    return (
        f"**{path.stem}**: {len(answers.tokens)} answers to prompts of {prompt:.0f} tokens on average; "
        f"{answers.tokens.mean():.0f} output tokens on average, {1 - answers.complete.mean():.0%} cut at "
        f"{MAX_TOKENS}.\n\n"
        f"{table(HEAD, error_rows(answers, held_out(answers)))}\n\n"
        f"{table(SERVICE_HEAD, service_rows(answers, seeds))}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("answers", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    body = "\n\n".join(section(path, range(arguments.seeds)) for path in arguments.answers)
    print(body)
    if arguments.write:
        names = " ".join(path.name for path in arguments.answers)
        command = f"python -m benchmarks.lengths {names} --seeds {arguments.seeds}"
        write_section("lengths", "Output lengths from hidden states", command, body)


if __name__ == "__main__":
    main()
