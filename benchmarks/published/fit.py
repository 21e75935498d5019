"""Fit the shares of efficiency.toml and the costs of engines.toml on the fitted half of the published runs.

A run's steps are taken from a simulation and grouped by alike ones; how long they take together is then a function of
the parameters alone, whose logarithms are moved by Gauss and Newton's method until the logarithms of modelled over
published times are least, in squares. Each parameter is also held to what is known of it otherwise (`_PRIORS`). Other
steps follow from other times: run it twice. Nothing of the held-out half is read. The spread that intervals are made of
is that of sources which were left out of the fit, one after the other, by one step from the parameters of all.
"""

from __future__ import annotations

import argparse
import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.published.measurements import ALL_AT_ONCE, FIGURES, Measurement, read_measurements
from benchmarks.published.prediction import costs_name, costs_of, simulated, step_model
from inflight.core.types.features import Features
from inflight.simulate import efficiency, engine_costs
from inflight.simulate.roofline import Roofline
from inflight.simulate.shards import prompt_chunks
from inflight.simulate.steps import StepModel

Key = tuple[str, str]  # table, parameter
# What is known of a parameter without these runs, and how far its logarithm may be off, as a standard deviation. Shares
# that were measured kernel by kernel hardly move; efficiency.toml names the sources.
_PRIORS: Mapping[Key, tuple[float, float]] = {
    ("a100", "linear-compute"): (0.71, 0.04),
    ("a100", "linear-memory"): (0.8, 0.04),
    ("a100", "expert-compute"): (0.535, 0.04),
    ("a100", "expert-widened"): (0.95, 0.2),
    ("a100", "sinks"): (0.3, 0.5),
    ("a100", "prefill-compute"): (0.5, 0.15),
    ("a100", "decode-memory"): (0.7, 0.1),
    ("h100", "linear-compute"): (0.68, 0.015),
    ("h100", "linear-memory"): (0.86, 0.04),
    ("h100", "expert-compute"): (0.67, 0.08),
    ("h100", "expert-memory"): (1.15, 0.12),
    ("h100", "expert-fp8"): (0.57, 0.1),
    ("h100", "expert-fp8-width"): (220, 0.2),
    ("h100", "expert-untuned"): (0.2, 0.3),
    ("h100", "expert-widened"): (0.77, 0.2),
    ("h100", "prefill-compute"): (0.61, 0.12),
    ("h100", "decode-memory"): (0.9, 0.08),
    ("h100", "decode-compute"): (0.58, 0.1),
    ("b200", "linear-compute"): (0.65, 0.15),
    ("b200", "linear-memory"): (0.8, 0.1),
    ("b200", "expert-compute"): (0.5, 0.15),
    ("b200", "expert-memory"): (1.2, 0.12),
    ("b200", "expert-fp8"): (0.42, 0.15),
    ("b200", "expert-fp4"): (1.1, 0.15),
    ("b200", "expert-cutlass"): (0.55, 0.15),
    ("b200", "decode-compute"): (0.5, 0.1),
    ("b200", "prefill-compute"): (0.43, 0.12),
    ("b200", "decode-memory"): (0.92, 0.1),
    ("b200", "layer-launch"): (31e-6, 0.3),
    ("b200", "expert-launch"): (48e-6, 0.4),
    ("b200", "expert-fp8-launch"): (30e-6, 0.4),
    ("b200", "expert-fp4-launch"): (20e-6, 0.4),
    ("b200", "fp8-compute"): (0.65, 0.1),
    ("else", "fp8-compute"): (0.88, 0.1),
    ("else", "fp8-launch"): (25e-6, 0.3),
    ("else", "widened-compute"): (0.8, 0.2),
    ("else", "expert-memory"): (1.05, 0.12),
    ("else", "mixed-decode"): (0.7, 0.3),
    ("else", "all-reduce"): (1, 0.1),
    ("else", "expert-launch"): (40e-6, 0.3),
    ("else", "expert-fp8-launch"): (40e-6, 0.5),
    ("vllm-sync", "step"): (0.00067, 0.7),
    ("vllm-sync", "worker-step"): (0.0006, 0.7),  # a message to processes and back, and its pickling
    ("vllm-sync", "row"): (1.67e-05, 0.5),
    ("vllm-sync", "kernels"): (1, 0.03),
    ("vllm", "step"): (0.0003, 0.7),
    ("vllm", "worker-step"): (0.0001, 0.7),
    ("vllm", "row"): (1.67e-05, 0.5),
    ("vllm", "kernels"): (1, 0.03),
    ("l40s", "linear-compute"): (0.52, 0.15),
    ("l40s", "expert-compute"): (0.7, 0.15),
    ("l40s", "fp8-compute"): (0.71, 0.1),
    ("mi300x", "linear-compute"): (0.26, 0.4),
    ("mi300x", "linear-memory"): (0.7, 0.2),
    ("mi300x", "fp8-compute"): (0.8, 0.2),
    ("mi300x", "decode-memory"): (0.6, 0.2),
    ("mi300x", "layer-launch"): (40e-6, 0.5),
    ("mi300x", "prefill-compute"): (0.22, 0.2),
    ("mi300x", "expert-compute"): (0.4, 0.4),
    ("mi300x", "expert-memory"): (1.05, 0.3),
    ("mi300x", "expert-launch"): (40e-6, 0.7),
    ("mi300x", "expert-fp8-launch"): (40e-6, 0.7),
    ("mi300x", "all-reduce"): (1, 0.2),  # on a share of the link that is estimated, where NVIDIA's are measured
    ("mi355x", "layer-launch"): (40e-6, 0.5),
    ("mi355x", "expert-compute"): (0.4, 0.4),
    ("mi355x", "expert-memory"): (1.05, 0.3),
    ("mi355x", "expert-fp8-launch"): (40e-6, 0.7),
    ("mi355x", "fp8-compute"): (0.8, 0.2),
    ("else", "latent-launch"): (25e-6, 0.7),
    ("else", "recurrent-compute"): (0.12, 0.3),
    ("else", "recurrent-memory"): (0.85, 0.1),
    ("else", "recurrent-launch"): (8e-6, 0.5),
    ("sglang", "step"): (0.0003, 0.7),
    ("sglang", "row"): (1.5e-05, 0.5),
    ("sglang", "kernels"): (1, 0.05),
    ("sglang", "prompt-layer"): (0.7e-3, 0.5),  # as this engine's own on an H200: prompts are no graph, nor compiled
    ("sglang", "prompt-recurrent"): (0.7e-3, 0.25),  # a dozen of Triton's launches
    ("tensorrt-llm", "step"): (0.0005, 0.4),
    ("tensorrt-llm", "row"): (1.5e-05, 0.5),
    ("tensorrt-llm", "kernels"): (0.95, 0.1),
    ("tensorrt-llm", "all-reduce"): (0.8, 0.4),
    ("tensorrt-llm", "experts-fp8"): (1.9, 0.1),
    ("tensorrt-llm", "experts-fp8-width"): (2.5, 0.3),
    ("tensorrt-llm", "expert-skew"): (0.2, 0.7),
}
# All others are at most 1; experts whose weights are widened are no faster than dense matrices with such weights
_UNBOUNDED = (
    *("all-reduce", "kernels", "expert-memory", "expert-widened", "experts-fp8", "expert-fp4"),
    *("expert-fp8-width", "experts-fp8-width"),
)
_ROUNDS = 4  # of a closed loop that are simulated; the published time is shared out among all
_NOISE = 0.10  # of the logarithm of a published time
_MOVES = 6


@dataclass(frozen=True, slots=True)
class Work:
    """The steps of a run. idle: seconds in which it computes none. published: seconds that all took."""

    measurement: Measurement
    steps: Sequence[tuple[Features, int]]
    idle: float
    published: float

    def error(self, parameters: Mapping[Key, float], gpu: str | None = None) -> float:
        """Return the logarithm of modelled over published seconds. gpu: whose shares the run has; None: its own's."""
        model = model_of(self.measurement, parameters, gpu)
        modelled = sum(count * model.seconds(features) for features, count in self.steps)
        return math.log((modelled + self.idle) / self.published)


class Recorder:
    """A step model that counts its steps by alike ones."""

    def __init__(self, model: StepModel):
        self._model, self.name, self.extrapolates = model, model.name, model.extrapolates
        self.groups: dict[tuple[int, ...], list[float]] = defaultdict(lambda: [0.0] * 7)
        self.seconds_in_all = 0.0

    def seconds(self, features: Features) -> float:
        counts = (features.tokens, features.rows, features.samples, features.decode_context)
        sizes = (*counts, features.prefill_context, prompt_chunks(features))
        group = self.groups[tuple(round(2.5 * math.log2(1 + size)) for size in sizes)]
        for index, size in enumerate(sizes):
            group[index] += size
        group[6] += 1
        taken = self._model.seconds(features)
        self.seconds_in_all += taken
        return taken

    def steps(self) -> list[tuple[Features, int]]:
        return [(_mean(group), int(group[6])) for group in self.groups.values()]


def _mean(group: Sequence[float]) -> Features:
    tokens, rows, samples, context = (round(one / group[6]) for one in group[:4])
    chunks = round(group[5] / group[6])
    return Features(tokens, rows, samples, context, group[4] / group[6], prompt_chunks=chunks)


def work_of(measurement: Measurement) -> Work | None:
    """Simulate a run and return its steps; None where it does not fit or has no figure to hold them to."""
    recorders: list[Recorder] = []

    def recorded(model: StepModel) -> StepModel:
        recorders.append(Recorder(model))
        return recorders[-1]

    warmed_up, loop = measurement.steady, measurement.concurrency != ALL_AT_ONCE
    whole = replace(measurement, steady=False)
    if loop:  # of runs that begin at once, fewer requests would make emptier steps
        whole = replace(whole, requests=min(measurement.requests, _ROUNDS * measurement.concurrency))
    figures = simulated(whole, recorded, fast_forward=not loop)
    if figures.output_tokens_per_s is None or not recorders:
        return None
    tokens = sum(entry.output_tokens for entry in whole.workload.entries)
    modelled = tokens / figures.output_tokens_per_s
    idle = max(0.0, modelled - recorders[0].seconds_in_all)
    if (published := measurement.figures.output_tokens_per_s) is not None:
        if warmed_up:  # as fast as a loop from its beginning would have been
            steady = simulated(replace(whole, steady=True)).output_tokens_per_s
            assert steady is not None
            published *= figures.output_tokens_per_s / steady
        return Work(measurement, recorders[0].steps(), idle, tokens / published)
    steps = [(features, count) for features, count in recorders[0].steps() if not features.prefill_context]
    decodes = sum(count for _, count in steps)
    assert measurement.figures.tpot_ms is not None
    return Work(measurement, steps, 0.0, decodes * measurement.figures.tpot_ms / 1e3)


def tables_of(measurement: Measurement) -> tuple[str, ...]:
    """Return the tables whose parameters a run depends on: of its GPU, and of its engine."""
    return *efficiency.tables_of(measurement.gpu.kernels), costs_name(measurement)


def model_of(measurement: Measurement, parameters: Mapping[Key, float], gpu: str | None = None) -> Roofline:
    """Return the step model of a run as it is predicted once these parameters are in the files.

    Args:
        gpu: Whose shares it has; None: the run's own.
    """
    tables = [
        {**efficiency.read_shares()[table], **_given(parameters, table)}
        for table in efficiency.tables_of(gpu or measurement.gpu.kernels)
    ]
    given = {key.replace("-", "_"): value for key, value in _given(parameters, costs_name(measurement)).items()}
    costs = replace(engine_costs.engine_costs(costs_name(measurement)), **given)  # type: ignore[arg-type]
    return step_model(measurement, costs_of(measurement, costs), efficiency.combined(tables))


def _given(parameters: Mapping[Key, float], table: str) -> dict[str, float]:
    return {key: value for (of, key), value in parameters.items() if of == table}


def written() -> dict[Key, float]:
    """Return the parameters as the files have them."""
    shares, engines = efficiency.read_shares(), engine_costs.all_engine_costs()
    found = {}
    for table, key in _PRIORS:
        value = getattr(engines[table], key.replace("-", "_")) if table in engines else shares[table][key]
        found[table, key] = float(value)  # type: ignore[arg-type]
    return found


def linearized(works: Sequence[Work], parameters: Mapping[Key, float]) -> tuple[np.ndarray, np.ndarray]:
    """Return the errors of all works, and their slopes by the logarithm of each parameter."""
    keys = list(parameters)
    errors = np.array([work.error(parameters) for work in works])
    slopes = np.zeros((len(works), len(keys)))
    for column, key in enumerate(keys):
        moved = {**parameters, key: parameters[key] * math.exp(0.02)}
        for row, work in enumerate(works):
            if key[0] in tables_of(work.measurement):
                slopes[row, column] = (work.error(moved) - errors[row]) / 0.02
    return errors, slopes


def stepped(parameters: Mapping[Key, float], errors: np.ndarray, slopes: np.ndarray) -> dict[Key, float]:
    """Return the parameters after a step of Gauss and Newton's method. Where it would take some beyond what they can
    be, they go so far, and the others step as is best beside that."""
    keys = list(parameters)
    away = np.array([math.log(parameters[key] / _PRIORS[key][0]) for key in keys])
    tight = np.diag([1 / _PRIORS[key][1] ** 2 for key in keys])
    weights = _robust(errors) / _NOISE**2
    left = slopes.T @ (weights[:, None] * slopes) + tight
    right = -slopes.T @ (weights * errors) - tight @ away
    most = np.array([math.log(_most(key, parameters) / parameters[key]) for key in keys])
    change, held = np.zeros(len(keys)), np.zeros(len(keys), bool)
    while True:
        change[held] = np.minimum(most[held], 0.3)
        free = ~held
        change[free] = np.linalg.solve(left[np.ix_(free, free)], right[free] - left[np.ix_(free, held)] @ change[held])
        beyond = free & (change > most)
        if not beyond.any():
            break
        held |= beyond
    return {key: parameters[key] * math.exp(np.clip(by, -0.3, 0.3)) for key, by in zip(keys, change, strict=True)}


def _most(key: Key, parameters: Mapping[Key, float]) -> float:
    """Return the most that a parameter can be, beside the others."""
    table, name = key
    if name == "expert-widened":
        widened = parameters["else", "widened-compute"]
        return widened * parameters[table, "linear-compute"] / parameters[table, "expert-compute"]
    return math.inf if name in _UNBOUNDED else 1.0


def _robust(errors: np.ndarray) -> np.ndarray:
    """Return Huber's weights: a run far off pulls no more than one that is two and a half times the noise off."""
    far = np.abs(errors) / (2.5 * _NOISE)
    return np.asarray(1 / np.maximum(1.0, far))


def write(parameters: Mapping[Key, float]) -> None:
    """Write the parameters into their files."""
    for path in (efficiency.FILE, engine_costs.FILE):
        text = path.read_text(encoding="utf-8")
        for (table, key), value in parameters.items():
            text = _with(text, table, key, f"{value:.3g}")
        path.write_text(text, encoding="utf-8")


def _with(text: str, table: str, key: str, value: str) -> str:
    """Return a TOML file with this value; as it is where it has no such table."""
    found = re.search(rf"^\[{re.escape(table)}\].*$", text, re.MULTILINE)
    if found is None:
        return text
    body, bracket, rest = text[found.end() :].partition("\n[")
    line = re.compile(rf"^{re.escape(key)} = .*$", re.MULTILINE)
    body = line.sub(f"{key} = {value}", body) if line.search(body) else f"{body.rstrip()}\n{key} = {value}\n"
    return text[: found.end()] + body + bracket + rest


def fitted(works: Sequence[Work]) -> dict[Key, float]:
    """Return the parameters that fit these runs."""
    parameters = {key: value for key, (value, _) in _PRIORS.items()}
    for _ in range(_MOVES):
        parameters = stepped(parameters, *linearized(works, parameters))
    return parameters


def left_out(works: Sequence[Work], parameters: Mapping[Key, float]) -> dict[str, dict[Key, float]]:
    """Return the parameters of a fit without a source, by source, a step from those of all."""
    errors, slopes = linearized(works, parameters)
    of_source = np.array([work.measurement.source for work in works])
    return {
        source: stepped(parameters, errors[of_source != source], slopes[of_source != source])
        for source in sorted(set(of_source))
    }


def spreads(
    works: Sequence[Work],
    parameters: Mapping[Key, float],
    without: Mapping[str, Mapping[Key, float]],
    pool: ProcessPoolExecutor,
) -> dict[str, tuple[float, float]]:
    """Return between which factors published times lie beside predicted ones in four of five runs: times per token by
    kind of model, TTFT and TPOT of all.

    Each source is predicted from a fit without it; as "unmeasured", from the figures of GPUs of which nothing is known,
    and no interval of times per token is wider than that.
    """
    found: dict[str, list[tuple[str, float]]] = defaultdict(list)
    every = pool.map(_ratios, works, [without[work.measurement.source] for work in works])
    for work, ratios in zip(works, every, strict=True):
        source, gpu = work.measurement.source, work.measurement.gpu.kernels
        mixture = work.measurement.spec.has_experts
        kind = "unmeasured" if not efficiency.has_own_spread(gpu) else "experts" if mixture else "dense"
        for figure, ratio in ratios.items():
            found[kind if figure == FIGURES[0] else figure.removesuffix("_ms")].append((source, ratio))
        if kind != "unmeasured":
            found["unmeasured"].append((source, math.exp(-work.error(parameters, efficiency.ELSE))))
    ends = {kind: interval(of_kind) for kind, of_kind in found.items()}
    lows, highs = zip(*(ends[kind] for kind in ("dense", "experts", "unmeasured") if kind in ends), strict=True)
    return {**ends, "unmeasured": (min(lows), max(highs))}


def _ratios(work: Work, parameters: Mapping[Key, float]) -> dict[str, float]:
    """Return published over predicted times of a run, by the figure that was published."""
    measurement, found = work.measurement, dict[str, float]()
    published = {figure: getattr(measurement.figures, figure) for figure in FIGURES}
    if not measurement.served:
        return {next(figure for figure in FIGURES if published[figure]): math.exp(-work.error(parameters))}
    predicted = simulated(measurement, lambda _: model_of(measurement, parameters))
    for figure, theirs in published.items():
        if (ours := getattr(predicted, figure)) and theirs:
            found[figure] = ours / theirs if figure == FIGURES[0] else theirs / ours
    return found


def interval(ratios: Sequence[tuple[str, float]], tail: float = 0.1) -> tuple[float, float]:
    """Return the ends that leave this share of runs of another source out on either side, all sources with the same
    weight. Another one falls between any two neighbours of n, or beyond them, with a probability of 1 / (n + 1) each
    (conformal prediction, Vovk et al., 2005), so that a value with the weight of c sources below it is the quantile
    (c + 1/2) / (n + 1); those between two are in a line, in logarithms."""
    of_source = Counter(source for source, _ in ratios)
    ordered = sorted((ratio, 1 / of_source[source]) for source, ratio in ratios)
    logs, weights = np.log([ratio for ratio, _ in ordered]), np.array([weight for _, weight in ordered])
    shares = (np.cumsum(weights) - weights / 2 + 0.5) / (len(of_source) + 1)
    low, high = np.exp(np.interp([tail, 1 - tail], shares, logs))
    return float(low), float(high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", action="store_true", help="write parameters and spreads into their files")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", default="", metavar="TEXT", help="runs whose name or source has this in it")
    arguments = parser.parse_args()
    chosen = [one for one in read_measurements() if not one.held_out and not one.doubt]
    chosen = [one for one in chosen if arguments.only in f"{one.source} {one.name}"]
    with ProcessPoolExecutor(arguments.processes) as pool:
        works = [work for work in pool.map(work_of, chosen) if work is not None]
        parameters = fitted(works)
        without = left_out(works, parameters)
        ends = spreads(works, parameters, without, pool)
    for work in works:
        print(f"{work.error(parameters):+.2f} {work.measurement.name}")
    for (table, key), value in parameters.items():
        print(f"[{table}] {key} = {value:.3g} (from {_PRIORS[table, key][0]:.3g})")
    of_all = dict.fromkeys(without, parameters)
    for title, by_source in (("fitted", of_all), ("left out", without)):
        errors = sorted(abs(work.error(by_source[work.measurement.source])) for work in works)
        print(f"{title}: median {errors[len(errors) // 2]:.1%}, p90 {errors[int(0.9 * len(errors))]:.1%}", flush=True)
    print(*(f"[spread] {kind} = {low:.2f} to {high:.2f}" for kind, (low, high) in ends.items()), sep="\n")
    if arguments.write:
        write(parameters)
        text = efficiency.FILE.read_text(encoding="utf-8")
        for kind, (low, high) in ends.items():
            text = _with(text, "spread", kind, f"[{low:.2f}, {high:.2f}]")
        efficiency.FILE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
