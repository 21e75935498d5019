"""Figures of a workload: rates, bursts, lengths and shared prefixes."""

from __future__ import annotations

import bisect
import itertools
import statistics
from dataclasses import dataclass

from inflight.metrics.definitions import Percentiles, percentiles
from inflight.workload.workload import Workload

PEAK_SECONDS = 300.0  # a deployment has to serve the busiest stretch of this length


@dataclass(frozen=True, slots=True)
class Traffic:
    """Figures of a workload.

    rate: requests/s over the span. peak_rate: over its busiest five minutes (the whole span where it is shorter).
    gap_variation: squared coefficient of variation of the gaps between arrivals: 1 for Poisson, more for bursts.
    input, output: tokens of prompts and answers. mean_context: tokens of a running sequence, mean over the time that it
    decodes: E[o·(p + o/2)] / E[o]; KV memory follows from it. shared: share of the prompts' tokens whose content an
    earlier prompt had, which an unbounded prefix cache would save. longest: prompt and answer together. notes: on how
    the workload was made (rows dropped, disorder, pauses, coarse clocks).
    """

    requests: int
    span_s: float
    rate: float
    peak_rate: float
    gap_variation: float
    input: Percentiles
    output: Percentiles
    mean_context: float
    shared: float
    longest: int
    notes: tuple[str, ...]

    @property
    def input_mean(self) -> float:
        return self.input.mean or 0.0

    @property
    def output_mean(self) -> float:
        return self.output.mean or 0.0


def analyze_traffic(workload: Workload) -> Traffic:
    """Return the figures of a workload; raise ValueError for one without entries.

    For n requests at times t₁ … tₙ in seconds, with prompts of p and answers of o tokens: rate = (n - 1) / (tₙ - t₁)
    requests/s; peak_rate = the most requests within 300 s, / 300 s; gap_variation = Var(tᵢ₊₁ - tᵢ) / E(tᵢ₊₁ - tᵢ)², no
    unit; mean_context = Σ o·(p + o/2) / Σ o tokens; shared = tokens of whole blocks that an earlier prompt had at the
    same position after the same beginning / Σ p. Later turns of conversations count at their earliest time.
    """
    entries = workload.entries
    if not entries:
        raise ValueError(f"The workload {workload.name!r} has 0 requests; there is nothing to analyze.")
    times = sorted(entry.arrival for entry in entries)
    span = times[-1] - times[0]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    mean_gap = span / len(gaps) if gaps else 0.0
    rate = 1 / mean_gap if mean_gap else float(len(entries))
    outputs = [entry.output_tokens for entry in entries]
    weighted = sum(entry.output_tokens * (entry.prompt_tokens + entry.output_tokens / 2) for entry in entries)
    return Traffic(
        requests=len(entries),
        span_s=span,
        rate=rate,
        peak_rate=_peak_rate(times, rate),
        gap_variation=statistics.pvariance(gaps) / mean_gap**2 if mean_gap else 1.0,
        input=percentiles(entry.prompt_tokens for entry in entries),
        output=percentiles(outputs),
        mean_context=weighted / max(1, sum(outputs)),
        shared=_shared(workload),
        longest=max(entry.prompt_tokens + entry.output_tokens for entry in entries),
        notes=workload.notes,
    )


def _peak_rate(times: list[float], rate: float) -> float:
    if times[-1] - times[0] <= PEAK_SECONDS:
        return rate
    most = max(bisect.bisect_right(times, start + PEAK_SECONDS) - index for index, start in enumerate(times))
    return max(rate, most / PEAK_SECONDS)


def _shared(workload: Workload) -> float:
    seen: set[tuple[int, int]] = set()
    found = total = 0
    for entry in workload.entries:
        total += entry.prompt_tokens
        chain, whole = 0, True
        for content in entry.prefix[: entry.prompt_tokens // max(1, entry.block_size)]:
            chain = hash((chain, content))
            whole = whole and (chain, entry.block_size) in seen
            found += entry.block_size if whole else 0
            seen.add((chain, entry.block_size))
    return found / max(1, total)
