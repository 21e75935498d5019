"""The tables of one generative model: precisions, instruction sets, long texts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from benchmarks.real_models.agreement import Agreement, agreement, difference, divergence
from benchmarks.real_models.answers import Answers
from benchmarks.real_models.engines import AS_SERVED, DEQUANTIZED, LLAMA, LONG_WAYS, Runner, Way
from benchmarks.real_models.subject import Examined, Subject
from benchmarks.results import table

_RANGES = (0, 512, 1024, 2100)  # positions within a long text


@dataclass(frozen=True, slots=True)
class Engines:
    """Name the engines to ask: this one by instruction set, the best first, and builds of llama.cpp."""

    inflight: Mapping[str, Runner]
    llama: Mapping[str, Runner]

    @property
    def best(self) -> Runner:
        return next(iter(self.inflight.values()))

    @property
    def best_llama(self) -> Runner | None:
        return next(iter(self.llama.values()), None)

    def by_way(self, ways: Sequence[Way]) -> Iterator[tuple[Runner, Way]]:
        """Yield llama.cpp, where it is there, then this engine in each of the ways."""
        if self.best_llama is not None:
            yield self.best_llama, LLAMA
        for way in ways:
            yield self.best, way


def precisions(subject: Subject, examined: Examined, engines: Engines, ways: Sequence[Way]) -> str:
    """Return the table of ways to hold a model, each beside the reference."""
    lines = []
    for runner, way in engines.by_way(ways):
        if (found := subject.ask(runner, way, examined)) is not None:
            lines.append([way.name, *_figures(agreement(examined.reference, found))])
    head = ["held as", "KL mean", "median", "p99", "top-1", "NLL − reference (s.e.)", "perplexity"]
    return table([*head, "another choice where close"], lines)


def _figures(one: Agreement) -> list[str]:
    return [
        f"{one.kl_mean:.5f}",
        f"{one.kl_median:.5f}",
        f"{one.kl_p99:.4f}",
        f"{one.same_best:.2%}",
        f"{one.loss:+.4f} ({one.loss_error:.4f})",
        f"{one.perplexity_ratio - 1:+.2%}",
        f"{one.other_where_close:.0%}",
    ]


def instruction_sets(subject: Subject, examined: Examined, engines: Engines) -> str:
    """Return the table of instruction sets: each beside the reference, and beside the first of its engine."""
    lines = [
        line
        for way, runners in ((LLAMA, engines.llama), (AS_SERVED, engines.inflight), (DEQUANTIZED, engines.inflight))
        for line in _compared(subject, examined, way, runners)
    ]
    head = ["held as", "instructions", "KL mean", "top-1", "log-probability beside the first", "top-1 as the first"]
    return table(head, lines)


def _compared(subject: Subject, examined: Examined, way: Way, runners: Mapping[str, Runner]) -> Iterator[list[str]]:
    first: Answers | None = None
    for isa, runner in runners.items():
        if (found := subject.ask(runner, way, examined)) is None:
            continue
        one = agreement(examined.reference, found)
        beside = ["", ""]
        if first is not None:
            nats, same = difference(first, found)
            beside = [f"{nats:.4f} nats", f"{same:.2%}"]
        first = first or found
        yield [way.name, isa, f"{one.kl_mean:.5f}", f"{one.same_best:.2%}", *beside]


def long_positions(subject: Subject, examined: Examined, engines: Engines, lengths: Sequence[int]) -> str:
    """Return the table of long texts of so many tokens: divergence by how far a position is from the start."""
    within = np.concatenate([np.arange(1, length) for length in lengths])
    reference = examined.reference
    lines = [["float32 reference", *("" for _ in _RANGES[1:]), f"{_perplexity(reference):.3f}", ""]]
    for runner, way in engines.by_way(LONG_WAYS):
        if (found := subject.ask(runner, way, examined)) is None:
            continue
        kl = divergence(reference.log_probs, found.log_probs)
        of_ranges = [f"{kl[(within >= start) & (within < end)].mean():.5f}" for start, end in pairwise(_RANGES)]
        ratio = _perplexity(found) / _perplexity(reference)
        lines.append([way.name, *of_ranges, f"{_perplexity(found):.3f}", f"{ratio - 1:+.2%}"])
    ranges = [f"KL, positions {a:,} to {b:,}" for a, b in pairwise(_RANGES)]
    return table(["held as", *ranges, "perplexity", "beside the reference"], lines)


def _perplexity(answers: Answers) -> float:
    return math.exp(-float(answers.of_next.mean(dtype=np.float64)))
