"""Read step models: a file of `inflight calibrate`, a record, or a result of `vllm bench serve --save-detailed`.

vLLM's result has no steps. A gap between tokens while no request waits for its first token is taken as a step of
decodes; the time to first token of a request that waits alone as a step of its prompt beside those decodes, network and
server included. Other gaps say nothing of single steps and are left out.
"""

from __future__ import annotations

import bisect
import itertools
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from msgspec import structs

from inflight.core.types.features import Features
from inflight.counted import Count, Seconds, Time
from inflight.records.checked import Malformed, converted, decoded
from inflight.records.schema import Header, header_of, of_kind, read_records, values_of
from inflight.simulate.fitted import EngineSize, FittedModel, Provenance, StepModelError
from inflight.simulate.steps import Step, TimedStep, rounds, timed_steps

_LOOK = 1 << 16  # bytes of a file's beginning that distinguish a record from a step model


def read_step_model(path: Path) -> FittedModel:
    """Read a step model, or fit one to a record. Raises StepModelError, RecordError."""
    with path.open("rb") as file:
        first = file.readline(_LOOK)
    if b'"kind":"header"' in first.replace(b" ", b""):
        return fitted_on_record(path)
    return FittedModel.load(path)


def fitted_on_record(path: Path) -> FittedModel:
    """Fit a step model to a record. Raises StepModelError, RecordError."""
    records = list(read_records(path))
    return fitted_on_steps(timed_steps(of_kind(records, "step")), header_of(records), path)


def fitted_on_steps(timed: Sequence[TimedStep], header: Header, path: Path) -> FittedModel:
    """Fit a step model to steps of a record, in their order. Raises StepModelError."""
    from inflight.simulate.step_fit import fit, held_out_errors  # with numpy, which those who read a file do without

    steps = rounds(timed)
    model = fit(steps)
    fitted = replace(
        model,
        provenance=Provenance(
            source=f"the record {path.name}",
            machine="the record's",
            measured=(header.created or "")[:10],
            steps=len(steps),
            held_out=held_out_errors(steps, model.knots),
            settings=values_of(header),
            capacity=converted(structs.asdict(header.capacity), EngineSize),
        ),
    )
    try:
        fitted.check()
    except Malformed as fault:
        raise StepModelError(f"{path} cannot be fitted ({fault.cause}); record the run again.") from None
    return fitted


def cores() -> list[str]:
    """Return the processor's name of each core of this machine; empty where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]


def machine() -> str:
    """Return CPU and cores of this machine."""
    names = cores()
    return f"{len(names) or '?'} cores of {names[0] if names else platform.machine()}"


MAX_GAPS = 5_000  # of a fit, or up to twice as many, evenly spread
MIN_GAP_RATIO = 0.2  # of the median gap: shorter ones are between tokens that a server sent together


@dataclass(frozen=True, slots=True)
class _Request:
    """Times in seconds."""

    sent: float
    first: float
    last: float
    prompt_tokens: int
    token_times: tuple[float, ...]


class _Result(msgspec.Struct):
    """The fields that are used of a result."""

    start_times: list[Time]
    ttfts: list[Seconds]
    itls: list[list[Seconds]]
    input_lens: list[Count]


_RESULT = msgspec.json.Decoder(_Result)


def fitted_on_result(path: Path) -> FittedModel:
    """Fit a step model to a result of `vllm bench serve`. Raises StepModelError where the file lacks what it needs."""
    from inflight.simulate.step_fit import MIN_STEPS, fit, held_out_errors

    requests = _read(path)
    decodes, prompts = decode_steps(requests), prompt_steps(requests)
    if len(decodes) < MIN_STEPS:
        raise StepModelError(
            f"{path} has {len(decodes)} gaps between tokens during which no prompt was computed; a fit needs "
            f"{MIN_STEPS}. Measure again at a lower request rate."
        )
    steps = decodes + (prompts if len(prompts) >= MIN_STEPS else [])
    about = f"{len(prompts)} prompts that met no other" if len(prompts) >= MIN_STEPS else "no prompts (all met others)"
    model = fit(steps)
    return replace(
        model,
        provenance=Provenance(
            source=f"{path.name}: {len(decodes):,} gaps between tokens, {about}",
            machine="the measured server's",
            measured="",
            steps=len(steps),
            held_out=held_out_errors(steps, model.knots),
        ),
    )


def decode_steps(requests: Sequence[_Request]) -> list[Step]:
    """Return the gaps between tokens while no request waits for its first, as steps."""
    gaps = [
        (before, after)
        for one in requests
        for before, after in zip(one.token_times, one.token_times[1:], strict=False)
        if after > before
    ]
    if not gaps:
        return []
    shortest = MIN_GAP_RATIO * statistics.median(after - before for before, after in gaps)
    gaps = [gap for gap in gaps if gap[1] - gap[0] >= shortest]
    found = []
    for before, after in gaps[:: max(1, len(gaps) // MAX_GAPS)]:
        middle = (before + after) / 2
        if any(one.sent < after and one.first > before for one in requests):
            continue
        width, context = _decoding(requests, middle)
        if width:
            found.append(Step(Features(width, width, width, context, 0.0), after - before))
    return found


def prompt_steps(requests: Sequence[_Request]) -> list[Step]:
    """Return the times to first token during which no other request waited for its own, as steps."""
    found = []
    for one in requests:
        if one.first <= one.sent or any(
            other is not one and other.sent < one.first and other.first > one.sent for other in requests
        ):
            continue
        width, context = _decoding(requests, (one.sent + one.first) / 2)
        tokens = one.prompt_tokens
        features = Features(tokens + width, 1 + width, 1 + width, context, tokens * tokens / 2, prompt_chunks=1)
        found.append(Step(features, one.first - one.sent))
    return found


def _decoding(requests: Sequence[_Request], time: float) -> tuple[int, int]:
    """Return the number of requests between their first and last token, and the sum of their contexts."""
    running = [one for one in requests if one.first <= time < one.last]
    context = sum(one.prompt_tokens + bisect.bisect_right(one.token_times, time) for one in running)
    return len(running), context


def _read(path: Path) -> list[_Request]:
    try:
        result = decoded(_RESULT, path.read_bytes())
        lists = (result.start_times, result.ttfts, result.itls, result.input_lens)
        if len({len(one) for one in lists}) > 1:
            raise Malformed(f"has lists of {', '.join(str(len(one)) for one in lists)} entries")
    except Malformed as fault:
        raise StepModelError(
            f"{path} does not hold aligned start_times, ttfts, itls and input_lens (it {fault.cause}); "
            "`vllm bench serve` writes them with --save-result --save-detailed."
        ) from None
    requests = []
    for sent, ttft, gaps, prompt_tokens in zip(*lists, strict=True):
        if ttft:  # else it failed
            times = tuple(itertools.accumulate(gaps, initial=sent + ttft))
            requests.append(_Request(sent, times[0], times[-1], prompt_tokens, times))
    return requests
