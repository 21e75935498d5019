"""Requests as they come: Poisson arrivals, lengths with heavy tails, at a share of what the device can take."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

from benchmarks.drive import Run, drive
from benchmarks.gpu.model import DrawnModel
from benchmarks.gpu.steps import Stepper
from benchmarks.results import table
from benchmarks.workloads import lognormal, poisson, prompt
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.metrics.definitions import percentiles

_SEED = 1


class Lengths:
    """Prompts and answers with this median and 99th percentile, in tokens."""

    def __init__(self, model: DrawnModel) -> None:
        longest = model.limits.positions
        self.prompt = (min(512, longest // 4), min(4096, longest // 2))
        self.answer = (min(128, longest // 8), min(512, longest // 4))

    def draw(self, random_: random.Random) -> tuple[int, int]:
        return lognormal(random_, *self.prompt, self.prompt[1]), lognormal(random_, *self.answer, self.answer[1])


def served(model: DrawnModel, seconds: float, shares: Sequence[float]) -> str:
    """Return a table of shares of the capacity, each run once over so many seconds of arrivals."""
    at_most, cells = requests_per_s(model), []
    for share in shares:
        requests = offered(model, share * at_most, seconds)
        cells.append([f"{share:.0%} ({share * at_most:.1f}/s)", *_cells(drive(model.loop(), requests))])
    head = ["offered", "requests", "tokens/s", "TTFT p50, ms", "p99", "ITL p50, ms", "p99", "refused"]
    lengths = Lengths(model)
    return (
        f"Prompts of {lengths.prompt[0]:,} tokens in the median and up to {lengths.prompt[1]:,}, answers of "
        f"{lengths.answer[0]:,} and up to {lengths.answer[1]:,}; Poisson arrivals over {seconds:.0f} s. 100% is what "
        "prompts and decoding at the most rows, each measured by itself, would come to one after the other.\n\n"
        f"{table(head, cells)}"
    )


def requests_per_s(model: DrawnModel) -> float:
    lengths, random_, stepper, rows = Lengths(model), random.Random(_SEED), Stepper(model), model.limits.rows
    drawn = [lengths.draw(random_) for _ in range(1000)]
    prompt_tokens, answer_tokens = (statistics.fmean(one) for one in zip(*drawn, strict=True))
    median, _ = lengths.prompt
    of_prompt = stepper.prompt_seconds(median, 3) / median
    of_token = stepper.decode_seconds(rows, median, 8) / rows
    return 1 / (prompt_tokens * of_prompt + answer_tokens * of_token)


def offered(model: DrawnModel, rate: float, seconds: float) -> list[Request]:
    lengths, random_, found = Lengths(model), random.Random(_SEED), []
    for number, arrival in enumerate(poisson(random.Random(_SEED + 1), rate)):
        if number and arrival > seconds:
            break
        prompt_tokens, answer_tokens = lengths.draw(random_)
        found.append(
            Request(
                request_id=str(number),
                prompt_token_ids=prompt(random_, prompt_tokens, model.spec.vocab_size),
                params=SamplingParams(temperature=0, max_tokens=answer_tokens, ignore_eos=True),
                arrival=arrival,
                forced_output_tokens=answer_tokens,
            )
        )
    return found


def _cells(run: Run) -> list[object]:
    ttft, gaps = percentiles(run.ttfts()), percentiles(run.gaps())
    of = ["-" if one is None else f"{one * 1e3:,.1f}" for one in (ttft.p50, ttft.p99, gaps.p50, gaps.p99)]
    refused = sum(one.refused is not None for one in run.outcomes)
    return [len(run.outcomes), f"{run.output_tokens_per_s:,.0f}", *of, refused]
