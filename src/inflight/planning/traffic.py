"""Figures of a workload: rates, bursts, lengths and shared prefixes."""

from __future__ import annotations

import bisect
import itertools
import statistics
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from inflight.metrics.definitions import Percentiles, percentiles
from inflight.workload.contents import BYTES_PER_TOKEN
from inflight.workload.workload import Entry, Workload

COMPARED_TOKENS = 16  # tokens of a recorded prompt that are compared at once, as an engine's blocks have by default
PEAK_SECONDS = 300.0  # a deployment has to serve the busiest stretch of this length


@dataclass(frozen=True, slots=True)
class Traffic:
    """Figures of a workload.

    rate: requests/s over the span. peak_rate: over its busiest five minutes (the whole span where it is shorter).
    gap_variation: squared coefficient of variation of the gaps between arrivals: 1 for Poisson, more for bursts.
    input, output: tokens of prompts and answers. mean_context: tokens of a running sequence, mean over the time that it
    decodes: E[o·(p + o/2)] / E[o]; KV memory follows from it. shared: share of the prompts' tokens whose content an
    earlier prompt had, which an unbounded prefix cache would save; fresh: tokens of prompts without those; fresh_of:
    the same by class. longest: prompt and answer together. notes: on how the workload was made (rows dropped, disorder,
    pauses, coarse clocks).
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
    fresh: Percentiles = field(default_factory=lambda: percentiles(()))
    fresh_of: Mapping[str, Percentiles] = field(default_factory=dict)

    def long_prompt(self, name: str = "", share: float = 0.99) -> float:
        """Return the tokens that a long prompt computes. name: of a class; "": of all. share: of the prompts that are
        no longer, rounded up to one of p50, p95 and p99."""
        fresh = self.fresh_of.get(name, self.fresh)
        found = fresh.p50 if share <= 0.5 else fresh.p95 if share <= 0.95 else fresh.p99
        return found or 1.0

    @property
    def prompt_context(self) -> float:
        """Return the tokens before one that is computed of a prompt, roughly in the mean."""
        if not self.shared:
            return self.input_mean / 2
        return self.input_mean * (1 - (1 - self.shared) / 2)

    @property
    def input_mean(self) -> float:
        return self.input.mean or 0.0

    @property
    def fresh_mean(self) -> float:
        """Return the tokens of a prompt that no earlier one had."""
        return self.input_mean * (1 - self.shared)

    @property
    def output_mean(self) -> float:
        return self.output.mean or 0.0


class ArrivalFigures(NamedTuple):
    """When the requests of a workload come: figures as of `Traffic`."""

    span_s: float
    rate: float
    peak_rate: float
    gap_variation: float


def analyze_arrivals(workload: Workload) -> ArrivalFigures:
    """Return when requests come, without their lengths and prompts; raise ValueError for a workload without entries.

    For n requests at times t₁ … tₙ in seconds: rate = (n - 1) / (tₙ - t₁) requests/s; peak_rate = the most requests
    within 300 s, / 300 s; gap_variation = Var(tᵢ₊₁ - tᵢ) / E(tᵢ₊₁ - tᵢ)², no unit. Later turns of conversations count
    at their earliest time, and have no gap where that is when the conversation begins.
    """
    entries = workload.entries
    if not entries:
        raise ValueError(f"The workload {workload.name!r} has 0 requests; there is nothing to analyze.")
    times = sorted(entry.arrival for entry in entries)
    span = times[-1] - times[0]
    begins = [one.arrival for one in entries if one.after is None or one.arrival > entries[one.after].arrival]
    gaps = [later - earlier for earlier, later in itertools.pairwise(sorted(begins))]
    mean_gap = statistics.fmean(gaps) if gaps else 0.0
    rate = (len(entries) - 1) / span if span else float(len(entries))
    variation = statistics.pvariance(gaps) / mean_gap**2 if mean_gap else 1.0
    return ArrivalFigures(span, rate, _peak_rate(times, rate), variation)


def analyze_traffic(workload: Workload, *, cached_after: int = 0, caches: bool = True) -> Traffic:
    """Return the figures of a workload; raise ValueError for one without entries.

    Args:
        workload: To be analyzed.
        cached_after: Requests after which shared prefixes are cached. The first of each are not what a deployment has
            all the time: shared and fresh are of the later ones.
        caches: Whether engines cache prefixes; otherwise prompts share nothing.

    Of requests with prompts of p and answers of o tokens: mean_context = Σ o·(p + o/2) / Σ o tokens; shared = tokens of
    whole blocks that an earlier prompt, or the conversation so far, had at the same position after the same beginning /
    Σ p. Blocks are those of shared prefixes, and of prompts that the workload has. Rates and gaps: as of
    `analyze_arrivals`.
    """
    entries, coming = workload.entries, analyze_arrivals(workload)
    later = entries[cached_after:] or entries
    fresh = list(_fresh(workload))[-len(later) :] if caches else [entry.prompt_tokens for entry in later]
    total = sum(entry.prompt_tokens for entry in later)
    outputs = [entry.output_tokens for entry in entries]
    weighted = sum(entry.output_tokens * (entry.prompt_tokens + entry.output_tokens / 2) for entry in entries)
    return Traffic(
        **coming._asdict(),
        requests=len(entries),
        input=percentiles(entry.prompt_tokens for entry in entries),
        output=percentiles(outputs),
        mean_context=weighted / max(1, sum(outputs)),
        shared=1 - sum(fresh) / max(1, total),
        longest=max(entry.prompt_tokens + entry.output_tokens for entry in entries),
        notes=workload.notes,
        fresh=percentiles(fresh),
        fresh_of=_by_class(later, fresh),
    )


def _peak_rate(times: list[float], rate: float) -> float:
    if times[-1] - times[0] <= PEAK_SECONDS:
        return rate
    most = max(bisect.bisect_right(times, start + PEAK_SECONDS) - index for index, start in enumerate(times))
    return max(rate, most / PEAK_SECONDS)


def _by_class(entries: Sequence[Entry], fresh: list[int]) -> dict[str, Percentiles]:
    by_class: dict[str, list[int]] = {}
    for entry, tokens in zip(entries, fresh, strict=True):
        by_class.setdefault(entry.traffic, []).append(tokens)
    return {name: percentiles(tokens) for name, tokens in by_class.items()} if len(by_class) > 1 else {}


def _fresh(workload: Workload) -> Iterator[int]:
    """Yield the tokens of each prompt that no earlier one had."""
    entries, seen = workload.entries, set[int]()  # hashes of blocks with all before them
    for entry in entries:
        if entry.after is not None:  # it adds to the conversation so far
            before = entries[entry.after]
            so_far = min(entry.prompt_tokens, before.prompt_tokens + before.output_tokens)
            yield entry.prompt_tokens - so_far // COMPARED_TOKENS * COMPARED_TOKENS
            continue
        size, contents = _blocks(entry)
        chain, whole, found = hash((entry.cache_salt, size)), True, 0
        for content in contents:
            chain = hash((chain, content))
            whole = whole and chain in seen
            found += size if whole else 0
            seen.add(chain)
        yield entry.prompt_tokens - found


def _blocks(entry: Entry) -> tuple[int, Iterator[Hashable]]:
    """Return the tokens of a block, and the contents of the prompt's whole blocks as far as they are known. A text has
    tokens as in a simulation, of so many bytes each."""
    if entry.prompt is None:
        return entry.block_size, iter(entry.prefix[: entry.prompt_tokens // max(1, entry.block_size)])
    known: bytes | tuple[int, ...]
    if isinstance(entry.prompt, str):
        known, length = entry.prompt.encode("utf-8", "replace"), BYTES_PER_TOKEN * COMPARED_TOKENS
        known = known[: BYTES_PER_TOKEN * entry.prompt_tokens]
    else:
        known, length = entry.prompt, COMPARED_TOKENS
    return COMPARED_TOKENS, (known[start : start + length] for start in range(0, len(known) - length + 1, length))
