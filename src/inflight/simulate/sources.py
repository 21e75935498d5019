"""Where step models come from: a file of `inflight calibrate`, a record that is fitted on the spot, or a result of
`vllm bench serve --save-result --save-detailed`, of whatever server was measured.

Reads files. Their facts about the engine that was measured (its memory, its limits) stay in the model's provenance.

vLLM's result holds when each request was sent, its time to the first token and every gap between its tokens, but no
steps. What follows from it: a gap during which no request waits for its first token is a step of decodes, as wide
as the number of requests that are between their first and last token in its middle, over contexts as long as they have
become. A request during whose time to the first token no other one waits is its prompt beside those decodes, taken as
one step (network and server included). Gaps next to other prompts, and times to the first token in a queue,
say nothing of single steps, and are left out. So the fit's terms for prompts are those of an idle server.
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

from inflight.core.types.features import Features
from inflight.records.checked import Count, Malformed, Seconds, Time, converted, decoded
from inflight.records.schema import header_of, of_kind, read_records, values_of
from inflight.simulate.fitted import MIN_STEPS, FittedModel, Provenance, Size, StepModelError, fit, held_out_errors
from inflight.simulate.steps import Step, rounds, timed_steps

_LOOK = 1 << 16  # bytes of a file's beginning that distinguish a record from a step model


def read_step_model(path: Path) -> FittedModel:
    """Raises StepModelError, RecordError."""
    with path.open("rb") as file:
        first = file.readline(_LOOK)
    if b'"kind":"header"' in first.replace(b" ", b""):
        return fitted_on_record(path)
    return FittedModel.load(path)


def fitted_on_record(path: Path) -> FittedModel:
    records = list(read_records(path))
    header = header_of(records)
    steps = rounds(timed_steps(of_kind(records, "step")))
    model = fit(steps)
    fitted = replace(
        model,
        provenance=Provenance(
            source=f"the record {path.name}",
            machine="the record's",
            measured=header.get("created", "")[:10],
            steps=len(steps),
            held_out=held_out_errors(steps, model.knots),
            settings=values_of(header),
            capacity=converted(header["capacity"], Size),
        ),
    )
    try:
        fitted.check()
    except Malformed as fault:
        raise StepModelError(f"{path} cannot be fitted ({fault.cause}); record the run again.") from None
    return fitted


def cores() -> list[str]:
    """The name of each core's processor, of this machine; none where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]


def machine() -> str:
    """CPU and cores of this one."""
    names = cores()
    return f"{len(names) or '?'} cores of {names[0] if names else platform.machine()}"


def known_of(model: FittedModel) -> Size:
    """Of the engine that was measured, where the step model says it."""
    return Size() if model.provenance is None else model.provenance.capacity


MAX_GAPS = 5_000  # gaps looked at, or up to twice as many, evenly spread
TOGETHER = 0.2  # of the median gap: shorter ones are tokens that a server sent together


@dataclass(frozen=True, slots=True)
class _Request:
    """Times in seconds."""

    sent: float
    first: float
    last: float
    prompt_tokens: int
    token_times: tuple[float, ...]


class _Result(msgspec.Struct):
    """What is read of it."""

    start_times: list[Time]
    ttfts: list[Seconds]
    itls: list[list[Seconds]]
    input_lens: list[Count]


_RESULT = msgspec.json.Decoder(_Result)


def fitted_on_result(path: Path) -> FittedModel:
    """Raises StepModelError where the file does not hold what is needed."""
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
    """Gaps between tokens while no request waits for its first."""
    gaps = [
        (before, after)
        for one in requests
        for before, after in zip(one.token_times, one.token_times[1:], strict=False)
        if after > before
    ]
    if not gaps:
        return []
    least = TOGETHER * statistics.median(after - before for before, after in gaps)
    gaps = [gap for gap in gaps if gap[1] - gap[0] >= least]
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
    """Times to the first token of requests during which no other one waited for its own."""
    found = []
    for one in requests:
        if one.first <= one.sent or any(
            other is not one and other.sent < one.first and other.first > one.sent for other in requests
        ):
            continue
        width, context = _decoding(requests, (one.sent + one.first) / 2)
        tokens = one.prompt_tokens
        features = Features(tokens + width, 1 + width, 1 + width, context, tokens * tokens / 2)
        found.append(Step(features, one.first - one.sent))
    return found


def _decoding(requests: Sequence[_Request], time: float) -> tuple[int, int]:
    """Requests between their first and last token, and the tokens that they look back over."""
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
