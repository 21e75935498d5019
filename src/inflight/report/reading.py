"""Read files as settings: results of benches, and step records, as far as they go. The beginning of a file gives its
kind."""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from inflight.core.types.request import SLO
from inflight.counted import counted
from inflight.metrics.observation import Observation, Outcome, Targets
from inflight.metrics.summary import summarize
from inflight.records.result import KINDS
from inflight.records.schema import (
    Header,
    Line,
    RecordError,
    RefusedRecord,
    RequestRecord,
    StepRecord,
    header_of,
    read_records,
)
from inflight.report.results import read_results
from inflight.report.run import Option, Run, Setting
from inflight.report.steps.engine_run import EndedRequest, EngineRun

TOGETHER = ("static", "dynamic")  # strategies that return a batch's answers when it ends
_OUTCOMES: dict[str, Outcome] = {"stop": "completed", "length": "completed", "abort": "failed", "error": "failed"}
_WORST_FIRST = ("error", "abort", "length", "stop")


def read_record(path: Path) -> Setting:
    """Read a record as one setting with one run, named after the file. A record that was cut off is read up to there
    and marked. Raises RecordError for a file that is no record."""
    lines = read_records(path)
    header = header_of([next(lines)])
    options = _options(header)
    engine = EngineRun(header.capacity, keeps_content=bool(_value(options, "prefix_caching", True)))
    observations: list[Observation] = []
    notes: list[str] = []
    number = 1
    prefixes = Prefixes(header.capacity.block_size)
    together = _value(options, "strategy", "") in TOGETHER
    try:
        for record in lines:
            number += 1
            _take(record, engine, observations, prefixes, together)
    except RecordError as error:
        notes.append(f"The record is cut off: {error} What comes before is shown.")
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        notes.append(f"Line {number} of the record cannot be understood ({error!r}). What comes before is shown.")
    engine.finish()
    if running := _unfinished(engine):
        notes.append(
            f"The record ended with {counted(len(running), 'sequence')} running, counted as unfinished from the first "
            "step on."
        )
    observations += running
    observations.sort(key=lambda one: one.intended)
    if not engine.steps:
        raise RecordError(
            f"{path} holds a header and {number - 1} more lines, but no step: nothing was computed. Record a run with "
            "requests."
        )
    run = Run(observations, summarize(observations), engine=engine, notes=tuple(notes))
    return Setting(path.stem, [run], options, header.created or "")


def _take(record: Line, engine: EngineRun, observations: list[Observation], prefixes: Prefixes, together: bool) -> None:
    if isinstance(record, StepRecord):
        engine.step(record)
    elif isinstance(record, RequestRecord):
        request = _ended_request(record, prefixes.add(record.request.prompt_token_ids, record.request.cache_salt))
        engine.requests.append(request)
        timelines = engine.rows.timelines
        numbers = [number for number in request.sequences if number in timelines]
        times = {number: timelines[number].token_times for number in numbers}
        observations.append(observation_of(record, times, together))
    elif isinstance(record, RefusedRecord):
        observations.append(refused_observation(record))


def _ended_request(record: RequestRecord, repeated_tokens: int) -> EndedRequest:
    samples = record.samples
    return EndedRequest(
        request_id=record.request.request_id,
        sequences=tuple(sample.sequence_id for sample in samples),
        lane=record.request.lane,
        tenant=record.request.tenant,
        arrival=record.request.arrival,
        ended=record.ended,
        prompt_tokens=len(record.request.prompt_token_ids),
        output_tokens=sum(len(sample.token_ids) for sample in samples),
        reason=_worst_reason(record),
        timings=record.timings,
        outgrown=any(sample.finish.reason == "length" and sample.finish.detail is not None for sample in samples),
        repeated_tokens=repeated_tokens,
    )


def observation_of(record: RequestRecord, times: Mapping[int, Sequence[float]], together: bool) -> Observation:
    """Return a request's observation. Tokens of all samples come at the end of the step that sampled them, or with the
    batch.

    Args:
        times: Of the tokens of each sequence, by its number.
        together: Whether the strategy returns a batch's answers when it ends.
    """
    samples: list[Sequence[float]] = []
    for sample in record.samples:
        # Tokens that were sampled ahead, after its end, were dropped.
        drawn = times.get(sample.sequence_id, ())[: len(sample.token_ids)]
        samples.append([record.ended] * len(drawn) if together else drawn)
    merged = array("d", sorted(chain.from_iterable(samples)))
    details = [sample.finish.detail for sample in record.samples if sample.finish.detail is not None]
    reason, request = _worst_reason(record), record.request
    outcome = _OUTCOMES[reason]
    return Observation(
        request_id=request.request_id,
        intended=request.arrival,
        sent=record.added,
        ended=record.ended,
        outcome=outcome,
        first_token=merged[0] if merged else None,
        last_token=merged[-1] if merged else None,
        token_times=merged,
        sample_times=samples if len(samples) > 1 else (),
        prompt_tokens=len(request.prompt_token_ids),
        cached_tokens=record.timings.cached_tokens,
        output_tokens=sum(len(sample.token_ids) for sample in record.samples),
        longest_output=max((len(sample.token_ids) for sample in record.samples), default=0),
        lane=request.lane,
        tenant=request.tenant,
        program=request.of_program,
        targets=_targets(request.slo),
        error="" if outcome == "completed" else "; ".join(details) or ("aborted" if reason == "abort" else "failed"),
    )


def _worst_reason(record: RequestRecord) -> str:
    reasons = {sample.finish.reason for sample in record.samples}
    return next((reason for reason in _WORST_FIRST if reason in reasons), "error")


def _targets(slo: SLO) -> Targets:
    return Targets(ttft=slo.ttft, itl=slo.itl, tpot=slo.tpot)


def refused_observation(record: RefusedRecord) -> Observation:
    """Return a refused request: rejected, because the queue was full, or failed, because it can never be served."""
    return Observation(
        request_id=record.request_id,
        intended=record.arrival,
        sent=record.refused,
        ended=record.refused,
        outcome="rejected" if record.retry_after is not None else "failed",
        prompt_tokens=record.prompt_tokens,
        lane=record.lane,
        tenant=record.tenant,
        targets=_targets(record.slo),
        error=record.reason,
    )


def _unfinished(engine: EngineRun) -> list[Observation]:
    """Return the sequences that were computed and whose request has no line."""
    ended = engine.owner_of()
    end = engine.steps.end if engine.steps else 0.0
    found = []
    for number, timeline in engine.rows.timelines.items():
        if number in ended:
            continue
        times = timeline.token_times
        found.append(
            Observation(
                request_id=f"sequence {number}",
                intended=timeline.joined[0],
                ended=end,
                outcome="unfinished",
                first_token=times[0] if times else None,
                last_token=times[-1] if times else None,
                token_times=times,
                prompt_tokens=timeline.prompt_tokens,
                output_tokens=len(times),
                longest_output=len(times),
                error="running when the record ended",
            )
        )
    return found


def _options(header: Header) -> dict[str, Option]:
    """Return the settings, with their reasons where the record has them."""
    return {
        name: Option(entry["value"], entry.get("reason", ""))
        if isinstance(entry, dict) and "value" in entry
        else Option(entry)
        for name, entry in header.settings.items()
    }


def _value(options: Mapping[str, Option], name: str, default: Any) -> Any:
    return options[name].value if name in options else default


class Prefixes:
    """Beginnings of prompts, as an unbounded prefix cache would find them, in the order in which requests ended."""

    def __init__(self, block_size: int):
        self._size = block_size
        self._known: set[int] = set()

    def add(self, token_ids: Sequence[int], salt: str) -> int:
        """Add a prompt, and return its leading tokens in whole blocks that an earlier prompt of the same salt began
        with. The last token is never looked up, as the next one is sampled from it."""
        chain, found, is_known = hash(salt), 0, True
        for start in range(0, len(token_ids) - self._size, self._size):
            chain = hash((chain, tuple(token_ids[start : start + self._size])))
            is_known = is_known and chain in self._known
            found += self._size * is_known
            self._known.add(chain)
        return found


_BEGINNING = 4096  # bytes of a file
_KIND = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"kind"\s*:\s*"([^"\\]*)"')  # of the first object, which may be longer


class SourceError(ValueError):
    """A file is neither a step record nor a result."""


def read_sources(paths: Sequence[Path]) -> list[Setting]:
    """Read a setting from each file, named after it; files of one name get their folder's before it."""
    names = Counter(path.stem for path in paths)
    settings = [(path, read_source(path)) for path in paths]
    return [
        setting if names[path.stem] == 1 else replace(setting, name=f"{path.parent.name}/{path.stem}")
        for path, setting in settings
    ]


def read_source(path: Path) -> Setting:
    """Read a setting from a file; raise SourceError, RecordError or ResultError."""
    with path.open("rb") as file:
        beginning = file.read(_BEGINNING)
    if not beginning.strip():
        raise SourceError(f"{path} is empty: {len(beginning)} bytes; give {_KNOWN}.")
    match = _KIND.match(beginning)
    kind = match[1].decode(errors="replace") if match else None
    if kind in ("header", "step", "request"):
        return read_record(path)
    if kind in KINDS:
        return read_results(path)
    found = (
        f"it has kind {kind!r}" if kind is not None else f"it begins with {beginning[:40].decode(errors='replace')!r}"
    )
    raise SourceError(f"{path} is neither a step record nor a result: {found}. Give {_KNOWN}.")


_KNOWN = (
    'a step record (JSON lines, the first with "kind": "header", written by --record of inflight run or serve), or a '
    f'result (a JSON object with "kind": {", ".join(json.dumps(kind) for kind in KINDS)}, written by --output of '
    "inflight bench)"
)
