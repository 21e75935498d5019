"""The steady state in closed form, and how long a trial must run to be in it.

The closed form is a first guess, within about 30 % of the simulator: it orders machines, chooses the first rates of
searches, and bounds them. In a trial the batch fills first and drains last. After two mean residences it holds about
95 % of what it will hold (answers vary widely, so that one is not enough); requests that end after the last arrival run
in emptying batches, whose steps are shorter. Measured too early or too late, every rate looks better than it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from inflight.core.types.features import Features
from inflight.planning.traffic import Traffic
from inflight.simulate.steps import StepModel, in_steps_of

FILL = 2.0  # mean residences before the measured part of a run
DRAIN = 0.5  # and after it, of arrivals that keep the batch full for the measured requests
MIN_FILL = 0.05  # share of the run


@dataclass(frozen=True, slots=True)
class Steady:
    """rows: sequences that decode at once. step_seconds: of a step with its share of prompts. requests_per_s:
    served."""

    rows: float
    step_seconds: float
    requests_per_s: float


def steady_state(model: StepModel, traffic: Traffic, rows: int, budget: int) -> Steady:
    """Return the steady state with at most `rows` sequences and steps of at most `budget` tokens.

    In balance a step that gives each of B sequences a token computes B·p/o tokens of prompts, p and o being the mean
    lengths of prompts and answers; so B ≤ rows, and B(1 + p/o) ≤ budget. Served are B / (o · step) requests per second.

    Whole prompts are spread over the steps of their answers, too, and each step is one forward pass, where this engine
    takes several for long prompts (`candidate.idle_prompt_seconds` has those). Of Llama-3.1-8B on an H100 that is 3 %
    too fast with a median of 4,000 tokens of prompts and 20 of answers, and makes no difference with 200.
    """
    fresh = traffic.fresh_mean
    per_row = fresh / traffic.output_mean
    running = max(1.0, min(rows, budget / (1 + per_row)))
    seconds = model.seconds(mixed_step(traffic, running, running * per_row))
    return Steady(running, seconds, running / (traffic.output_mean * seconds))


def rows_at(model: StepModel, traffic: Traffic, rate: float, max_rows: float) -> float:
    """Return the sequences that run at once at this rate, by Little's law: rate · o · step(rows), solved by repetition;
    beyond capacity all of max_rows run."""
    per_row = traffic.fresh_mean / traffic.output_mean
    rows = 1.0
    for _ in range(20):
        seconds = model.seconds(mixed_step(traffic, rows, rows * per_row))
        rows = min(max_rows, rate * traffic.output_mean * seconds)
    return rows


def full_step(model: StepModel, traffic: Traffic, rows: float, budget: int) -> float:
    """Return the seconds of a step that is filled to the budget."""
    return model.seconds(mixed_step(traffic, rows, max(0.0, budget - rows)))


def prompt_seconds(model: StepModel, tokens: float, budget: int | None) -> float:
    """Return the seconds of a prompt on an idle engine, chunk by chunk. budget: tokens of a step; None: all at once."""
    length = round(tokens)
    chunk, seconds, start = budget or length, 0.0, 0
    model = in_steps_of(model, budget)
    while start < length:
        taken = min(chunk, length - start)
        ends = start + taken == length
        seconds += model.seconds(Features(taken, 1, ends, 0, taken * (start + taken / 2), prompt_chunks=1))
        start += taken
    return seconds


def mixed_step(traffic: Traffic, rows: float, prompt_tokens: float) -> Features:
    """Return a step of decodes of typical length beside tokens of prompts, halfway through them. Of its rows as many
    compute prompts as have so many tokens to compute."""
    all_rows = round(rows) + (prompt_tokens > 0)
    fresh = max(1.0, traffic.fresh_mean)
    return Features(
        tokens=round(rows + prompt_tokens),
        rows=all_rows,
        samples=max(1, round(rows)),
        decode_context=round(rows * traffic.mean_context),
        prefill_context=prompt_tokens * traffic.prompt_context,
        prompt_chunks=min(all_rows, max(1, round(prompt_tokens / fresh))) if prompt_tokens > 0 else 0,
    )


@dataclass(frozen=True, slots=True)
class Length:
    """requests: of the run. begin, end: shares of its arrivals' span between which it is measured."""

    requests: int
    begin: float = MIN_FILL
    end: float = 1.0


def length(residents: float, measured: float, max_requests: float, warm_up: float = 0.0) -> Length:
    """Return how long a run must be.

    Args:
        residents: Requests in flight at once, over all replicas; by Little's law so many come in a mean residence.
        measured: Requests to measure; where the run would be too long they are fewer, down to a third of it.
        max_requests: Of the run, beside those that warm up.
        warm_up: Requests after which conversations are as long as they will be.
    """
    fill, drain = FILL * residents, DRAIN * residents
    measured = max(measured, 1.0)
    if fill + measured + drain > max_requests:
        measured = max(min(measured, max_requests / 3), max_requests - fill - drain)
        squeezed = min(1.0, (max_requests - measured) / max(fill + drain, 1e-9))
        fill, drain = fill * squeezed, drain * squeezed
    fill = max(fill, warm_up)
    requests = fill + measured + drain
    return Length(math.ceil(requests), max(MIN_FILL, fill / requests), 1 - drain / requests)
