"""Decoding by rows, prompts by length, and what comes before the first of them, beside what the device allows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from benchmarks.gpu.ceiling import StepShape, step_seconds
from benchmarks.gpu.device import MeasuredDevice
from benchmarks.gpu.model import DrawnModel
from benchmarks.gpu.steps import Stepper, checked
from benchmarks.results import table
from inflight.core.types.plan import BatchPlan


def decoding(device: MeasuredDevice, model: DrawnModel, rows: Sequence[int], context: int, steps: int) -> str:
    stepper, cells = Stepper(model), []
    for count in rows:
        seconds = stepper.decode_seconds(count, context, steps)
        best = step_seconds(model.spec, StepShape(count, 1, context), device.rates, model.quantization)
        cells.append(
            [count, f"{count / seconds:,.0f}", f"{seconds * 1e3:.2f}", f"{best * 1e3:.2f}", f"{best / seconds:.2f}"]
        )
    return table([f"rows at {context:,} tokens of context", "tokens/s", "step, ms", "at best, ms", "share"], cells)


def prompts(device: MeasuredDevice, model: DrawnModel, lengths: Sequence[int]) -> str:
    stepper, cells = Stepper(model), []
    for tokens in lengths:
        seconds = stepper.prompt_seconds(tokens)
        best = step_seconds(model.spec, StepShape(1, tokens, tokens), device.rates, model.quantization)
        cells.append(
            [
                f"{tokens:,}",
                f"{tokens / seconds:,.0f}",
                f"{seconds * 1e3:.1f}",
                f"{best * 1e3:.1f}",
                f"{best / seconds:.2f}",
            ]
        )
    return table(["tokens of a prompt", "tokens/s", "pass, ms", "at best, ms", "share"], cells)


def verifying(model: DrawnModel, rows: Sequence[int], numbers: Sequence[int], context: int, steps: int) -> str:
    """Steps with so many drafts of each row, beside those without; no more tokens than a prompt's pass has."""
    stepper, cells = Stepper(model), []
    for count in rows:
        of_row: list[object] = [count, f"{(plain := stepper.decode_seconds(count, context, steps)) * 1e3:.2f}"]
        for drafts in numbers:
            if count * (1 + drafts) > model.limits.pass_tokens:
                of_row.append("")
                continue
            seconds = stepper.verify_seconds(count, drafts, context, steps)
            of_row.append(f"{seconds * 1e3:.2f} ({seconds / plain:.2f})")
        cells.append(of_row)
    head = [f"rows at {context:,} tokens of context", "no drafts, ms", *(f"{drafts} drafts each" for drafts in numbers)]
    return f"In brackets: times a step without drafts.\n\n{table(head, cells)}"


def starting(model: DrawnModel, context: int, load_seconds: float) -> str:
    """Describe the start of a model that has computed no step yet. load_seconds: until its weights were there."""
    stepper, captured = Stepper(model), model.captured
    first = _seconds(lambda: stepper.decode_seconds(1, context, 1))
    sentence = (
        f"Ready in {load_seconds:.1f} s, with {model.weight_bytes / 2**30:.1f} GiB of weights drawn on the device. The "
        f"first steps of one row, with what they compile and load, took {first:.1f} s."
    )
    if captured is None:
        return f"{sentence} No graph is captured."
    took: list[float] = []
    captured.capture_ahead(lambda chunks: took.append(_seconds(lambda: _padded(model, chunks))), 120.0)
    if captured.failure is not None:
        return f"{sentence} Graphs: {captured.failure}."
    return (
        f"{sentence} {len(captured.captured)} graphs of up to {captured.captured[-1].tokens} tokens were captured in "
        f"{sum(took):.1f} s, {max(took):.2f} s for the slowest, the steps around them included."
    )


def _padded(model: DrawnModel, chunks: Sequence[int]) -> None:
    checked(model.runner.submit(BatchPlan(0, (), padding=tuple(chunks))))


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
