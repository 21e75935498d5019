"""The last part of a server's record, to be simulated again.

It holds the requests as a workload, what their clients saw, and the engine with a step model fitted on its own steps.

A workload keeps the recorded arrivals, lengths and prompts. Simulated answers are all TOKEN, so where a prompt contains
the answer to an earlier one, as in a conversation, the blocks of that answer are TOKEN there too: they are found cached
as they were.
"""

from __future__ import annotations

import math
import statistics
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from inflight.core.types.request import Request
from inflight.counted import counted
from inflight.metrics.observation import Observation, Targets
from inflight.planning.machine import Machine, ScaledStepModel, calibrated_machine
from inflight.records.drafts import verified
from inflight.records.recent import find_recent, position_at
from inflight.records.schema import (
    Header,
    Line,
    RecordError,
    RefusedRecord,
    RequestRecord,
    StepRecord,
    read_from,
    values_of,
)
from inflight.report.reading import TOGETHER, observation_of, refused_observation
from inflight.simulate.drafting import SimulatedDrafts, acceptance_of, pass_seconds_of
from inflight.simulate.fitted import FittedModel
from inflight.simulate.omitted import TOKEN
from inflight.simulate.recorded_run import RecordedSettings, recorded_settings
from inflight.simulate.sources import fitted_on_steps
from inflight.simulate.step_fit import MIN_STEPS
from inflight.simulate.steps import Step, TimedStep, rounds, timed_steps
from inflight.workload.workload import NO_TARGETS, Entry, Workload

LEAD = 0.2  # of the measured time: requests before it that are simulated too, which fill batch and cache
MAX_TAIL = 0.1  # of it, at its end: requests there are simulated only, since others beside them had not ended
MIN_REQUESTS = 10
MIN_STEP_ERROR, MAX_STEP_ERROR = 0.01, 0.3  # of the mean step's time, at the ends of what is uncertain
MAX_FITTED_STEPS = 20_000  # that are fitted, in stretches over the whole time
_FITTED_STRETCHES = 40

Offered = RequestRecord | RefusedRecord


@dataclass(frozen=True, slots=True)
class RecordedTraffic:
    """Requests of a record, and the engine that served them.

    Attributes:
        seconds: Of the record that are measured, from `begin` to `end` after the workload's first arrival.
        workload: To be simulated. original: The same with the prompts as they were, for an engine that answers.
        observations: As recorded, of the workload's entries in their order.
        drafts: How often drafts were accepted; None: there were none.
        notes: For readers, as sentences.
    """

    path: Path
    header: Header
    settings: RecordedSettings
    model: FittedModel
    machine: Machine
    workload: Workload
    original: Workload
    observations: tuple[Observation, ...]
    begin: float
    end: float
    drafts: SimulatedDrafts | None
    notes: tuple[str, ...]

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    @property
    def measured(self) -> tuple[Observation, ...]:
        """Return the recorded observations of the requests that are measured."""
        return tuple(
            one for one, entry in zip(self.observations, self.workload.entries, strict=True) if self.holds(entry)
        )

    def holds(self, entry: Entry) -> bool:
        """Return whether an entry is measured."""
        return self.begin <= entry.arrival <= self.end

    @property
    def values(self) -> Mapping[str, Any]:
        """Return the recorded settings without their reasons."""
        return values_of(self.header)


def read_recorded(path: Path, seconds: float) -> RecordedTraffic:
    """Read the last `seconds` of a record, which a server may still write.

    Raises:
        RecordError: It is no record, or has too few requests there.
        StepModelError: It has too few steps there, or of one size only.
    """
    header, found = _read(path, (1 + LEAD) * seconds)
    settings = recorded_settings(header)
    if not found.requests:
        raise RecordError(
            f"{path} has no answer that ended{_within(found, seconds)}; tune when the server has given some, or give a "
            "longer --last."
        )
    every: list[Offered] = [*found.requests, *found.refused]
    offered = sorted(every, key=_arrival)
    origin = _arrival(offered[0])
    begin, end = _measured(found, origin, seconds)
    number = sum(begin <= one.request.arrival <= end for one in found.requests)
    if number < MIN_REQUESTS or len(found.steps) < MIN_STEPS:
        raise RecordError(
            f"{path} has {counted(number, 'request')} and {counted(len(found.steps), 'step')}"
            f"{_within(found, seconds)}, too few to tune by; {MIN_REQUESTS} requests are the least. Give a longer "
            "--last, or wait for traffic."
        )
    timed = _sampled(found.steps)
    model = fitted_on_steps(timed, header, path)
    together, name = settings.scheduling.strategy in TOGETHER, f"the requests of {path.name}"
    entries = tuple(_entries(offered, origin, settings.capacity.block_size))
    original = tuple(
        replace(entry, prompt=one.request.prompt_token_ids) if isinstance(one, RequestRecord) else entry
        for entry, one in zip(entries, offered, strict=True)
    )
    return RecordedTraffic(
        path,
        header,
        settings,
        model,
        _machine(model, rounds(timed)),
        Workload(entries, name),
        Workload(original, name),
        tuple(
            observation_of(one, found.times, together) if isinstance(one, RequestRecord) else refused_observation(one)
            for one in offered
        ),
        begin - origin,
        end - origin,
        _drafts(found, path),
        tuple(found.notes()),
    )


def _machine(model: FittedModel, steps: Sequence[Step]) -> Machine:
    """Return the machine of the record. Its ends are the 95 % interval of the mean step's time over the modelled one:
    single steps scatter by more, but an answer is a sum of many."""
    length = max(1, len(steps) // _FITTED_STRETCHES)
    ratios = []
    for start in range(0, len(steps) - length + 1, length):
        some = steps[start : start + length]
        ratios.append(sum(one.seconds for one in some) / sum(model.seconds(one.features) for one in some))
    error = 2 * statistics.stdev(ratios) / math.sqrt(len(ratios)) / statistics.fmean(ratios) if len(ratios) > 1 else 0.0
    error = max(MIN_STEP_ERROR, min(MAX_STEP_ERROR, error))
    cases = (ScaledStepModel(model, 1 + error), ScaledStepModel(model, 1 - error))
    return replace(calibrated_machine(model), cases=cases)


@dataclass(slots=True)
class _Found:
    """The lines of a part of a record. since, last: its first and last time. times: of the tokens of each
    sequence."""

    last: float
    since: float = 0.0
    steps: list[TimedStep] = field(default_factory=list)
    drafted: list[StepRecord] = field(default_factory=list)
    requests: list[RequestRecord] = field(default_factory=list)
    refused: list[RefusedRecord] = field(default_factory=list)
    times: dict[int, array[float]] = field(default_factory=lambda: defaultdict(lambda: array("d")))
    impossible: int = 0
    pooled: int = 0
    aborted: int = 0
    several: int = 0

    def take(self, line: Line) -> None:
        if isinstance(line, StepRecord):
            self._take_step(line)
        elif isinstance(line, RefusedRecord):
            self._take_refused(line)
        elif isinstance(line, RequestRecord):
            self._take_request(line)

    def _take_step(self, step: StepRecord) -> None:
        if not self.steps and step.plan.step > 0:  # the record's beginning is not in this part
            self.since = step.planned
        self.steps += timed_steps([step])
        if step.accepted or step.draft_seconds:
            self.drafted.append(step)
        if step.error is None:
            accepted = {one.sequence: one.accepted for one in verified(step)}
            for chunk in step.plan.chunks:
                if chunk.sample:
                    tokens = 1 + accepted.get(chunk.sequence_id, 0)
                    self.times[chunk.sequence_id].extend([step.committed] * tokens)

    def _take_request(self, record: RequestRecord) -> None:
        if record.request.pooling is not None or not any(sample.token_ids for sample in record.samples):
            self.pooled += record.request.pooling is not None
            return
        if record.request.arrival >= self.since:  # else its first steps are not in this part
            self.requests.append(record)
            self.aborted += any(sample.finish.reason in ("abort", "error") for sample in record.samples)
            self.several += len(record.samples) > 1

    def _take_refused(self, record: RefusedRecord) -> None:
        if record.retry_after is None or not record.prompt_tokens:  # no settings could serve it
            self.impossible += 1
        elif record.arrival >= self.since:
            self.refused.append(record)

    def notes(self) -> Iterable[str]:
        if self.refused:
            yield (
                f"Refused until later: {len(self.refused):,} requests. They are offered again; the lengths of their "
                "answers are not known, and are drawn from those of the others."
            )
        if self.impossible:
            yield f"Requests that no settings could serve: {self.impossible:,}. They are left out."
        if self.aborted:
            yield f"Aborted or failed requests: {self.aborted:,}. Their answers are as long as they had become."
        if self.several:
            yield f"Requests for several samples: {self.several:,}. One of each is simulated, the longest."
        if self.pooled:
            yield f"Embeddings and scores: {self.pooled:,}. They are left out."


def _read(path: Path, seconds: float) -> tuple[Header, _Found]:
    header, behind = next(read_from(path))
    assert isinstance(header, Header), "read_from yields the header first"
    recent = find_recent(path, seconds)
    last = 0.0 if recent.last is None else recent.last
    found = _Found(last)
    if recent.begin >= recent.end:
        return header, found
    for line, position in read_from(path, position_at(path, recent.begin, behind.version)):
        if position.offset > recent.end:  # written meanwhile, or not whole yet
            break
        found.take(line)
        if position.offset == recent.end:
            break
    return header, found


def _arrival(record: Offered) -> float:
    return record.request.arrival if isinstance(record, RequestRecord) else record.arrival


def _within(found: _Found, seconds: float) -> str:
    return f" in its last {min(seconds, found.last - found.since):,.0f} s"


def _measured(found: _Found, first: float, seconds: float) -> tuple[float, float]:
    """Return when the measured part begins and ends. At its end requests are missing that had not ended yet, so that
    the engine looks emptier than it was."""
    begin = max(first, found.last - seconds)
    longest = max(one.ended - one.request.arrival for one in found.requests)
    return begin, found.last - min(longest, MAX_TAIL * (found.last - begin))


def _sampled(steps: list[TimedStep]) -> list[TimedStep]:
    """Return the steps, or stretches of them where they are many."""
    if len(steps) <= MAX_FITTED_STEPS:
        return steps
    length, every = MAX_FITTED_STEPS // _FITTED_STRETCHES, len(steps) // _FITTED_STRETCHES
    return [one for start in range(0, _FITTED_STRETCHES * every, every) for one in steps[start : start + length]]


def _drafts(found: _Found, path: Path) -> SimulatedDrafts | None:
    """Return how often drafts were accepted; None where there were none, or too few to say."""
    if not found.drafted:
        return None
    try:
        acceptance = acceptance_of(found.drafted, f"the record {path.name}")
    except RecordError:
        return None
    return SimulatedDrafts(acceptance, pass_seconds=pass_seconds_of(found.drafted))


def _entries(offered: Sequence[Offered], origin: float, block_size: int) -> Iterator[Entry]:
    answers, lengths = _Answers(block_size), Random("lengths of refused requests")
    known = [len(_longest(one)) for one in offered if isinstance(one, RequestRecord)]
    for record in offered:
        slo = record.slo if isinstance(record, RefusedRecord) else record.request.slo
        limits = NO_TARGETS if slo.ttft is slo.pace is None else Targets(ttft=slo.ttft, itl=slo.itl, tpot=slo.tpot)
        arrival = _arrival(record) - origin
        if isinstance(record, RefusedRecord):
            length, lane, tenant = lengths.choice(known), record.lane, record.tenant
            yield Entry(arrival, record.prompt_tokens, length, lane=lane, tenant=tenant, targets=limits)
            continue
        request, answer = record.request, _longest(record)
        prompt = answers.replaced(request)
        answers.add(request, answer)
        yield Entry(
            arrival=arrival,
            prompt_tokens=len(prompt),
            output_tokens=request.forced_output_tokens or len(answer),
            max_tokens=request.params.max_tokens,
            prompt=prompt,
            cache_salt=request.cache_salt,
            session=request.session,
            lane=request.lane,
            tenant=request.tenant,
            priority=request.priority,
            targets=limits,
            program=request.program,
        )


def _longest(record: RequestRecord) -> tuple[int, ...]:
    return max((sample.token_ids for sample in record.samples), key=len)


class _Answers:
    """Blocks that answers fill, by the chain of blocks up to there: later prompts may contain them."""

    def __init__(self, block_size: int):
        self._size = block_size
        self._known: dict[int, tuple[int, ...]] = {}  # chain → the block as it is simulated

    def replaced(self, request: Request) -> tuple[int, ...]:
        """Return a request's prompt with the blocks of earlier answers as they are simulated."""
        prompt = request.prompt_token_ids
        if not self._known:
            return prompt
        pieces = [self._known.get(chain, block) for chain, block in self._chains(request.cache_salt, prompt)]
        return tuple(token for piece in pieces for token in piece)

    def add(self, request: Request, answer: tuple[int, ...]) -> None:
        prompt, size = request.prompt_token_ids, self._size
        first = len(prompt) // size  # the first block that the answer is in
        blocks = list(self._chains(request.cache_salt, prompt + answer))
        for number, (chain, block) in enumerate(blocks[first:], first):
            if len(block) == size:
                own = max(0, len(prompt) - number * size)
                before = self._known.get(chain, block)
                self._known[chain] = before[:own] + (TOKEN,) * (size - own)

    def _chains(self, salt: str, token_ids: tuple[int, ...]) -> Iterable[tuple[int, tuple[int, ...]]]:
        """Yield the blocks, the last one as far as it goes, each with a number for all up to its end."""
        chain = hash(salt)
        for start in range(0, len(token_ids), self._size):
            block = token_ids[start : start + self._size]
            chain = hash((chain, block))
            yield chain, block
