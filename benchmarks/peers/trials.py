"""Define what is measured: which requests are sent for a figure, and which metric of their observations it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from benchmarks.peers.ceilings import Ceilings
from benchmarks.peers.engines import FOUR_BITS
from benchmarks.peers.stepping import Work
from benchmarks.peers.workload import alike, arriving, mixed
from inflight.metrics.observation import Observation
from inflight.metrics.summary import Summary, Window, summarize, whole

LOAD = 0.6  # of the best peer's capacity, where requests arrive by and by
READING_BATCH = 16  # up to which a decode step may wait for memory: the ridge of CPUs seen so far is a dozen tokens
_PREFILLS = 4  # prompts one after another, where their computation is


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured: decode batches, prompt and output of each row there, lengths of prompts that are measured
    alone, requests of the mix (0: there is none)."""

    batches: tuple[int, ...] = (1, 4, 8, 16, 32, 64)
    decode_prompt: int = 128
    decode_outputs: int = 128
    prefills: tuple[int, ...] = (512, 2048)
    mixed: int = 64

    def rows(self) -> int:
        """The most that any trial has at once."""
        return max(*self.batches, self.mixed)

    def row_tokens(self) -> int:
        """The most of one request of any trial."""
        mix = [len(one.prompt) + one.output_tokens for one in mixed(self.mixed)]
        return max(self.decode_prompt + self.decode_outputs, *(length + 1 for length in self.prefills), *mix)

    def kv_tokens(self) -> int:
        """The most that any trial holds at once."""
        decoding = max(self.batches) * (self.decode_prompt + self.decode_outputs)
        mix = sum(len(one.prompt) + one.output_tokens for one in mixed(self.mixed))
        return max(decoding, mix, *self.prefills)


# Answers long enough for all rows to decode together: an engine that computes prompts beside them lets rows join one
# after the other.
QUICK = Sizes(batches=(1, 4, 8, 16, 32), decode_prompt=32, decode_outputs=64, prefills=(512,), mixed=0)


@dataclass(frozen=True, slots=True)
class Measure:
    """One row of the table. asked: of each precision, the ratio to the best peer that this project wants to reach.
    most: what the machine allows at a bandwidth, where that is known.
    short: the title in a narrow column."""

    title: str
    better: Literal["higher", "lower"]
    digits: int = 0
    asked: Mapping[str, float] = field(default_factory=dict)
    most: Callable[[Ceilings, float], float] | None = None

    @property
    def short(self) -> str:
        return self.title.partition(",")[0].replace(" at batch", "")


@dataclass(frozen=True, slots=True)
class Trial:
    """Lists of requests, sent one list after another; what came of each, and the figures of it by measure's title.

    reads: the bandwidth of the moment may be the limit of an engine, so it has to be alike for all.
    """

    title: str
    works: Sequence[list[Work]]
    figures: Callable[[Sequence[list[Observation]]], dict[str, float]]
    reads: bool = True


def _asked(bf16: float, int8: float, four_bits: float | None = None) -> dict[str, float]:
    """Return the ratio asked at each precision but int8-all, which is int8 with the peers' output projection."""
    of_files = {} if four_bits is None else dict.fromkeys(("q8_0", *FOUR_BITS), four_bits)
    return {"bf16": bf16, "int8": int8, **of_files}


# Of a trained model, beside its own weights in float32.
KL = Measure("KL from float32, nats", "lower", 5)
TOP_1 = Measure("likeliest token as in float32, %", "higher", 1)
FIRST_TOKEN = Measure("first token after start, s", "lower", 2, _asked(1.0, 1.0, 1.0))
PEAK = Measure("peak resident, GiB", "lower", 2, _asked(0.8, 0.8, 0.8))
MIXED_TOKENS = Measure("mixed at once, output tokens/s", "higher", 0, _asked(1.2, 1.5))
MIXED_TTFT = Measure("mixed at once, mean TTFT, s", "lower", 2)
POISSON_TTFT = Measure("mixed, Poisson, p99 TTFT, s", "lower", 2, _asked(1.0, 1.0))
POISSON_ITL = Measure("mixed, Poisson, p99 ITL, ms", "lower", 0, _asked(1.0, 1.0))
_DECODE_ASKED = {
    1: _asked(1.2, 1.5, 1.3),
    4: _asked(1.5, 1.8, 1.7),
    8: _asked(1.6, 2.0, 1.6),
    16: _asked(1.6, 2.0, 1.6),
    32: _asked(1.4, 1.7, 1.5),
    64: _asked(1.2, 1.5),
}
_PREFILL_ASKED = {512: _asked(1.05, 1.15, 1.3), 2048: _asked(1.0, 1.15, 1.3)}


def measures(sizes: Sizes, judged: bool = False) -> Iterator[Measure]:
    """The rows, in the table's order. judged: a trained model's answers were, too."""
    if judged:
        yield from (KL, TOP_1)
    context = sizes.decode_prompt + sizes.decode_outputs // 2
    for batch in sizes.batches:
        most = partial(_max_decoded, batch, context)
        yield Measure(_decode_title(batch), "higher", 0, _DECODE_ASKED.get(batch, {}), most)
    for length in sizes.prefills:
        most = partial(_max_prefilled, length)
        yield Measure(_prefill_title(length), "higher", 0, _PREFILL_ASKED.get(length, {}), most)
    if sizes.mixed:
        yield from (MIXED_TOKENS, MIXED_TTFT, POISSON_TTFT, POISSON_ITL)
    yield from (FIRST_TOKEN, PEAK)


def first_request() -> list[Work]:
    return alike(1, 16, 1)


def warm_up(sizes: Sizes) -> list[list[Work]]:
    """So that no trial is the first to meet a size."""
    largest = max(sizes.batches)
    prompt = sizes.decode_prompt
    return [alike(2, prompt, 4), alike(1, max(sizes.prefills), 1), alike(largest, prompt, 4)]


def trials(sizes: Sizes) -> Iterator[Trial]:
    """All but the arrivals, whose rate is known when the mix was measured."""
    for batch in sizes.batches:
        title = _decode_title(batch)
        works = [alike(batch, sizes.decode_prompt, sizes.decode_outputs)]
        yield Trial(title, works, _decoding(title), reads=batch <= READING_BATCH)
    for length in sizes.prefills:
        title = _prefill_title(length)
        yield Trial(title, [alike(1, length, 1)] * _PREFILLS, _prefilling(title), reads=False)
    if sizes.mixed:
        # A minute or more, in which the bandwidth changes many times: what it was before and after does not matter.
        yield Trial(MIXED_TOKENS.title, [mixed(sizes.mixed)], _mixed, reads=False)


def arrivals(sizes: Sizes, capacity: float) -> Trial:
    """capacity: output tokens/s of the mix when all come at once."""
    works = mixed(sizes.mixed)
    rate = LOAD * capacity * len(works) / sum(one.output_tokens for one in works)
    return Trial(f"{len(works)} mixed requests, {rate:.2f} a second", [arriving(works, rate)], _poisson, reads=False)


def _max_decoded(batch: int, context: int, ceilings: Ceilings, bandwidth: float) -> float:
    return ceilings.decode(batch, context, bandwidth)


def _max_prefilled(tokens: int, ceilings: Ceilings, bandwidth: float) -> float:
    return ceilings.prefill(tokens, bandwidth)


def _decode_title(batch: int) -> str:
    return f"decode at batch {batch}, tokens/s"


def _prefill_title(length: int) -> str:
    return f"prefill of {length}, tokens/s"


def _decoding(title: str) -> Callable[[Sequence[list[Observation]]], dict[str, float]]:
    def figures(observed: Sequence[list[Observation]]) -> dict[str, float]:
        rate = decode_rate(observed[0])
        return {} if rate is None else {title: rate}

    return figures


def decode_rate(observed: Sequence[Observation]) -> float | None:
    """Output tokens/s while all decode: after the last one's first token, until the first one ends. None where they
    never decoded together."""
    last_joins = max(one.token_times[0] for one in observed)
    first_ends = min(one.token_times[-1] for one in observed)
    if first_ends <= last_joins:
        return None
    return summarize(observed, Window(math.nextafter(last_joins, math.inf), first_ends)).output_tokens_per_s


def _prefilling(title: str) -> Callable[[Sequence[list[Observation]]], dict[str, float]]:
    def figures(observed: Sequence[list[Observation]]) -> dict[str, float]:
        seconds = math.fsum(whole(one).seconds for one in observed)  # one token each: all of it is the prompt's
        return {title: sum(one.prompt_tokens for each in observed for one in each) / seconds}

    return figures


def _mixed(observed: Sequence[list[Observation]]) -> dict[str, float]:
    summary = summarize(observed[0])
    return {MIXED_TOKENS.title: summary.output_tokens_per_s, MIXED_TTFT.title: _known(summary.ttft.mean)}


def _poisson(observed: Sequence[list[Observation]]) -> dict[str, float]:
    summary: Summary = summarize(observed[0])
    return {POISSON_TTFT.title: _known(summary.ttft.p99), POISSON_ITL.title: _known(summary.itl.p99) * 1e3}


def _known(value: float | None) -> float:
    assert value is not None, "every request of a trial gets all its tokens"
    return value
