"""`inflight doctor --trace`: record steps of a model on every thread of the kernels, and show them by operation."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.config.setting import SettingsError
from inflight.counted import counted

if TYPE_CHECKING:
    from inflight.execution.roofline import Machine
    from inflight.execution.step_trace import OperationTime, RecordedStep, StepSize, ThreadTime
    from inflight.models.spec import ModelSpec

ROWS, PROMPT = (1, 8, 32), 512
DECODES, PROMPTS = 10, 3  # steps of a size, the fastest of which is shown
_THREAD = {
    "busy_ms": "busy",
    "put_aside_ms": "descheduled",
    "waking_ms": "waking",
    "last_task_ms": "last task",
    "alone_ms": "caller alone",
    "between_ms": "in Python",
}
ROOM = 16  # maximum tokens that a context grows by meanwhile


def trace_steps(
    settings: EngineSettings, spec: ModelSpec, context: int, machine: Machine, file: Path | None
) -> list[dict[str, Any]]:
    """Return the figures of the fastest step of each size, and write the threads' spans to `file`. Raises SettingsError
    where it cannot be written."""
    from inflight.build import build_engine
    from inflight.execution.runner import ModelRunner
    from inflight.execution.step_trace import StepSize

    sizes = [StepSize(rows, context - 1, 1) for rows in ROWS]
    sizes.append(StepSize(1, 0, min(PROMPT, spec.default_model_len - ROOM)))
    engine = build_engine(
        replace(
            settings,
            device="cpu",
            max_num_seqs=max(ROWS),
            max_num_batched_tokens=PROMPT,
            max_model_len=min(spec.default_model_len, max(context, PROMPT) + ROOM),
        ),
        SchedulingSettings(speculation="off"),
    )
    runner = engine.executor
    assert isinstance(runner, ModelRunner)
    events: list[dict[str, Any]] = []
    try:
        traces = [_trace(runner, size, machine, events) for size in sizes]
    finally:
        runner.close()
    if file is not None:
        _write(file, events)
    return traces


def check_traced(settings: EngineSettings, spec: ModelSpec, file: Path | None) -> None:
    """Raise SettingsError for a model or a device that cannot be traced, and a file that cannot be written."""
    from inflight.build.limits import resolve_device

    device = resolve_device(settings).value
    if device != "cpu":
        raise SettingsError(f"--trace records the CPU's kernels, and the device is {device}; add --device cpu.")
    if settings.backend == "transformers":
        raise SettingsError("--trace records the kernels' operations, which --backend transformers does not call.")
    if spec.head is None:
        raise SettingsError("--trace records steps of models that generate text, and this one is an encoder.")
    if file is not None:
        _write(file, ())


def _trace(runner: Any, size: StepSize, machine: Machine, events: list[dict[str, Any]]) -> dict[str, Any]:
    from inflight.execution.step_trace import UNTRACED, recorded_steps, summarize

    steps = DECODES if size.length == 1 else PROMPTS
    found: dict[str, Any] = {"rows": size.rows, "context": size.start + size.length, "tokens": size.rows * size.length}
    needed, room = size.blocks(runner.capacity, UNTRACED + steps), runner.capacity.num_blocks
    if needed > room:
        found["left_out"] = f"it needs {needed:,} KV blocks, and memory has room for {room:,}"
        return found
    recorded = recorded_steps(runner, size, steps)
    best = min(recorded, key=lambda step: step.nanoseconds)
    events += _events(name_of(found), len(events), best)
    step = summarize(best.recorded, best.nanoseconds, machine)
    return found | {
        "step_ms": step.seconds * 1e3,
        "median_step_ms": statistics.median(one.nanoseconds for one in recorded) / 1e6,
        "steps": steps,
        "ceiling_ms": step.ceiling_seconds * 1e3,
        "threads": [_milliseconds(one) for one in step.threads],
        "operations": [_operation(one) for one in step.operations],
    }


def _operation(one: OperationTime) -> dict[str, Any]:
    return {
        "name": one.name,
        "calls": one.calls,
        "ms": one.seconds * 1e3,
        "bytes": one.bytes,
        "flops": one.flops,
        "bytes_per_s": one.bytes / one.seconds,
        "flops_per_s": one.flops / one.seconds,
        "share_of_ceiling": one.ceiling_seconds / one.seconds,
        "threads": [_milliseconds(thread) for thread in one.threads],
    }


def _milliseconds(time: ThreadTime) -> dict[str, float]:
    return {name: getattr(time, name.removesuffix("_ms")) * 1e3 for name in _THREAD}


def name_of(trace: dict[str, Any]) -> str:
    if trace["tokens"] > trace["rows"]:
        return f"a prompt of {trace['tokens']:,} tokens"
    return f"{counted(trace['rows'], 'row')} at {trace['context']:,} tokens"


def table(traces: Sequence[dict[str, Any]]) -> Iterator[str]:
    for trace in traces:
        yield ""
        if "left_out" in trace:
            yield f"trace of {name_of(trace)}: left out, because {trace['left_out']}"
            continue
        step = trace["step_ms"]
        yield (
            f"trace of {name_of(trace)}: {step:.2f} ms a step, the fastest of {trace['steps']} (median "
            f"{trace['median_step_ms']:.2f}); {trace['ceiling_ms'] / step:.2f} of the ceiling"
        )
        yield f"  {'operation':<34}{'calls':>6}{'ms':>9}{'of step':>9}{'GB/s':>8}{'GOP/s':>8}{'share':>7}{'busy':>7}"
        for one in trace["operations"]:
            busy = statistics.mean(thread["busy_ms"] for thread in one["threads"]) / one["ms"]
            yield (
                f"  {one['name']:<34}{one['calls']:>6}{one['ms']:>9.3f}{one['ms'] / step:>9.1%}"
                f"{one['bytes_per_s'] / 1e9:>8.1f}{one['flops_per_s'] / 1e9:>8.0f}{one['share_of_ceiling']:>7.2f}"
                f"{busy:>7.0%}"
            )
        yield f"  {'thread, ms':<22}" + "".join(f"{title:>14}" for title in _THREAD.values())
        for number, one in enumerate(trace["threads"]):
            name = f"{number}, the caller" if number == 0 else str(number)
            yield f"  {name:<22}" + "".join(f"{one[field]:>14.3f}" for field in _THREAD)


def _events(name: str, process: int, step: RecordedStep) -> Iterator[dict[str, Any]]:
    """Yield the step's spans in the format of chrome://tracing and Perfetto: microseconds, a process for each step."""
    yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}
    threads = [step.recorded.spans, *step.recorded.workers[1:]]
    for thread, spans in enumerate(threads):
        for span in spans:
            operation = step.recorded.calls[span.call].operation
            at = {"ts": (span.begin - step.begin) / 1e3, "dur": (span.end - span.begin) / 1e3}
            yield {"ph": "X", "name": operation, "pid": process, "tid": thread, **at}


def _write(file: Path, events: Sequence[dict[str, Any]]) -> None:
    try:
        file.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"--trace-file {file} cannot be written ({error.strerror}); name another.") from error
