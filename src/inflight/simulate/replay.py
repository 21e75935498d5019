"""A record, run again on a fresh scheduler with the record's own times: it must make the same plans.

Knows record files and the order of the loop, and no executor: tokens and seconds are the record's. Commands (adds and
aborts) come between the plans and commits that they came between, also while a step is computed; answers end where they
ended. What is compared is every plan with all its chunks, rows, blocks, padding and moves, and every request's end.
(The account of waiting is not: at which moments an engine looked and found that it had to wait, or at depth 2 that it
had nothing to plan ahead, a record does not hold. For the same reason the borders of dynamic batching's buckets may
differ where requests were aborted while they waited.)
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from inflight.config.assembly import make_rules, make_scheduler
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SCHEDULING_NAMES, SchedulingSettings
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.scheduling.snapshot import Snapshot
from inflight.core.stopping import StopTextFactory
from inflight.core.types.events import Event, FinishedEvent
from inflight.core.types.plan import BatchPlan, Capacity, Sampled, Scored, StepResult
from inflight.core.types.request import SLO, Request
from inflight.core.types.sampling import SamplingParams
from inflight.records.schema import RecordError

Records = Sequence[dict[str, Any]]
COMPARED = ("step", "chunks", "new_rows", "freed_rows", "padding", "moves")


def of_kind(records: Records, kind: str) -> list[dict[str, Any]]:
    return [record for record in records if record["kind"] == kind]


# -- settings of a record -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecordedSettings:
    capacity: Capacity
    engine: EngineSettings
    scheduling: SchedulingSettings
    token_budget: int
    depth: int


def recorded_settings(header: dict[str, Any]) -> RecordedSettings:
    """From a record's header. Raises RecordError where it lacks what decides plans."""
    try:
        values = {name: entry["value"] for name, entry in header["settings"].items()}
        capacity = Capacity(**header["capacity"])
        engine = EngineSettings(
            max_num_seqs=capacity.max_rows,
            max_model_len=capacity.max_model_len,
            block_size=capacity.block_size,
            num_blocks=capacity.num_blocks,
            enable_prefix_caching=values["prefix_caching"],
            watermark=values["watermark"],
        )
        given = {name: value for name, value in values.items() if name in SCHEDULING_NAMES}
        for name in ("lanes", "tenant_weights"):
            if name in given:
                given[name] = json.loads(given[name])
        given.setdefault("early_end_tokens", 0)  # records of versions that filled every step do not have it
        given.setdefault("lane_floor", 0.0)  # nor this, of versions in which background lanes were owed nothing
        if given.get("predictor") == "quantiles":
            del given["predictor"]  # the default, where it is asked at all
        scheduling = SchedulingSettings.of(**given)
        return RecordedSettings(capacity, engine, scheduling, values["max_num_batched_tokens"], values["depth"])
    except (KeyError, TypeError) as error:
        raise RecordError(
            f"The record's header lacks {error}, which decides plans; record the run again with this version."
        ) from None


def recorded_scheduler(settings: RecordedSettings, stop_text: StopTextFactory | None = None) -> Scheduler:
    """A fresh one, as it was in the recorded run."""
    capacity = settings.capacity
    rules = make_rules(settings.scheduling, settings.token_budget, capacity.max_model_len, capacity.max_rows)
    return make_scheduler(capacity, rules, settings.engine, settings.scheduling, stop_text=stop_text)


# -- requests of a record -------------------------------------------------------------------------------------------


class Recall:
    """Stop texts that end each sample after as many tokens as it had in the record."""

    def __init__(self, requests: Records, reasons: tuple[str, ...] = ("stop",)):
        """reasons: samples that ended for one of these are ended; others end by themselves, as they did."""
        self._lengths = {
            record["request_id"]: iter(
                [
                    len(sample["token_ids"]) if sample["finish_reason"] in reasons else None
                    for sample in record["samples"]
                ]
            )
            for record in requests
        }

    def __call__(self, of: Request) -> RecalledEnd:
        return RecalledEnd(next(self._lengths[of.request_id]))  # samples are made in their order


class RecalledEnd:
    def __init__(self, after: int | None):
        self._after = after
        self._tokens = 0

    def push(self, token_id: int) -> str | None:
        self._tokens += 1
        return "recorded" if self._tokens == self._after else None


def rebuilt(record: dict[str, Any]) -> Request:
    """The request of a record. Its own stop rules make room for the record's word on where it stopped."""
    params = {**record["params"], "stop": ("recorded",), "stop_token_ids": (), "min_tokens": 0, "ignore_eos": True}
    return Request(
        request_id=record["request_id"],
        prompt_token_ids=tuple(record["prompt_token_ids"]),
        params=SamplingParams(**params),
        seed=record["seed"],
        arrival=record["arrival"],
        lane=record["lane"],
        tenant=record["tenant"],
        priority=record["priority"],
        slo=SLO(**record["slo"]),
        cache_salt=record["cache_salt"],
        handed_tokens=record.get("handed_tokens", 0),
        forced_output_tokens=record.get("forced_output_tokens"),
    )


# -- replay ---------------------------------------------------------------------------------------------------------


class Replay:
    """Feeds a fresh scheduler with nothing but a record. make: the scheduler, given the stop texts of the record."""

    def __init__(self, records: Records, make: Callable[[StopTextFactory], Scheduler], depth: int):
        self.steps = of_kind(records, "step")
        self.requests = of_kind(records, "request")
        self.events: list[tuple[float, list[Event]]] = []  # of each commit and abort, with its time
        self._depth = depth
        self._tokens = {
            sample["sequence"]: iter(sample["token_ids"]) for one in self.requests for sample in one["samples"]
        }
        self._commands = _commands(self.requests)
        self._scheduler = make(Recall(self.requests))

    def plans(self) -> Iterator[BatchPlan]:
        """As they are made; ends early where the record's next plan cannot be made."""
        flights: deque[BatchPlan] = deque()
        planned = 0
        for committed in count():
            self._obey(planned, committed)
            while len(flights) < self._depth and planned < len(self.steps):
                plan = self._scheduler.plan(self.steps[planned]["planned"])
                if not isinstance(plan, BatchPlan):
                    break  # the run, too, had nothing to plan before the next commit
                yield plan
                flights.append(plan)
                planned += 1
                self._obey(planned, committed)
            if not flights:
                return
            self._commit(flights.popleft())

    @property
    def ends(self) -> list[tuple[str, list[str], dict[str, Any]]]:
        """Every request that ended: its id, how its samples ended, and what its timings tell of memory."""
        return [
            (event.request_id, [finish.reason for finish in event.finishes], _memory(event.timings.to_json()))
            for _, events in self.events
            for event in events
            if isinstance(event, FinishedEvent)
        ]

    def snapshot(self) -> Snapshot:
        return self._scheduler.snapshot()

    def _obey(self, planned: int, committed: int) -> None:
        """What came when so many steps were planned, and so many of them committed."""
        for _, is_abort, time, one in self._commands.get((planned, committed), ()):
            if is_abort:
                self.events.append((time, self._scheduler.abort(one["request_id"], time)))
            else:
                self._scheduler.add(rebuilt(one), time)

    def _commit(self, plan: BatchPlan) -> None:
        record = self.steps[plan.step]
        faults = {fault["sequence"]: fault["error"] for fault in record.get("faults", ())}
        chunks = () if "error" in record else plan.chunks
        sampled = tuple(self._sampled(chunk.sequence_id, faults) for chunk in chunks if chunk.sample)
        scored = tuple(
            Scored(chunk.sequence_id, 0, (), faults[chunk.sequence_id])
            for chunk in chunks
            if chunk.score and chunk.sequence_id in faults
        )
        result = StepResult(plan.step, sampled, record["seconds"], record.get("error"), scored)
        self.events.append((record["committed"], self._scheduler.commit(plan, result, record["committed"])))

    def _sampled(self, sequence: int, faults: Mapping[int, str]) -> Sampled:
        if sequence in faults:
            return Sampled(sequence, (), error=faults[sequence])
        return Sampled(sequence, (next(self._tokens[sequence], 0),))  # 0: drawn ahead, and dropped


Command = tuple[int, bool, float, dict[str, Any]]  # its number, whether it is an abort, its time, the request's record


def _commands(requests: Records) -> dict[tuple[int, int], list[Command]]:
    """Adds and aborts in their order, by the numbers of plans and of commits before them."""
    found: dict[tuple[int, int], list[Command]] = {}
    for one in requests:
        came = one["before_step"], one["before_commit"]
        found.setdefault(came, []).append((one["command"], False, one["added"], one))
        if "abort" in [sample["finish_reason"] for sample in one["samples"]]:
            went = one["ended_before_step"], one["ended_before_commit"]
            found.setdefault(went, []).append((one["ended_command"], True, one["ended"], one))
    for commands in found.values():
        commands.sort(key=lambda command: command[0])
    return found


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of a replay. difference: a sentence about the first one, None where all is the same. steps: planned alike."""

    steps: int
    recorded_steps: int
    requests: int
    prefix_hits: int
    preemptions: int
    moved_blocks: int
    difference: str | None


def replay(records: Records, make: Callable[[StopTextFactory], Scheduler] | None = None) -> tuple[Replay, Outcome]:
    """Runs a record again and compares. make: as for `Replay`; None: as the record's header says."""
    settings = recorded_settings(records[0]) if make is None else None
    depth = records[0]["settings"]["depth"]["value"]
    again = Replay(records, make or (lambda stop_text: recorded_scheduler(settings, stop_text)), depth)  # type: ignore[arg-type]
    difference, alike = None, 0
    for plan, record in zip(again.plans(), again.steps, strict=False):
        difference = _difference(told(plan), record)
        if difference is not None:
            break
        alike += 1
    if difference is None and alike < len(again.steps):
        difference = f"After step {alike - 1} nothing is planned, but the record has {len(again.steps)} steps."
    if difference is None:
        difference = _different_end(again)
    last = again.snapshot()
    moved = sum(len(step["moves"]["out"]) + len(step["moves"]["back"]) for step in again.steps)
    hits = sum(one["timings"]["cached_tokens"] for one in again.requests)
    return again, Outcome(alike, len(again.steps), len(again.requests), hits, last.preemptions, moved, difference)


def told(plan: BatchPlan) -> dict[str, Any]:
    """A plan in the words of its record."""
    return {
        "step": plan.step,
        "chunks": [
            {
                "sequence": chunk.sequence_id,
                "row": chunk.row,
                "start": chunk.start,
                "length": chunk.length,
                "new_blocks": list(chunk.new_blocks),
                "sample": chunk.sample,
                **({"score": [chunk.score.start, chunk.score.stop]} if chunk.score else {}),
            }
            for chunk in plan.chunks
        ],
        "new_rows": [
            {"row": new.row, "tokens": len(new.token_ids), "prompt_tokens": new.prompt_length} for new in plan.new_rows
        ],
        "freed_rows": list(plan.freed_rows),
        "padding": list(plan.padding),
        "moves": {"out": [list(one) for one in plan.moves.out], "back": [list(one) for one in plan.moves.back]},
    }


def _difference(again: dict[str, Any], record: dict[str, Any]) -> str | None:
    for name in COMPARED:
        if again[name] != record[name]:
            first = next(
                (
                    f"place {place}: {one} against the record's {other}"
                    for place, (one, other) in enumerate(zip(again[name], record[name], strict=False))
                    if one != other
                )
                if isinstance(again[name], list)
                else iter(()),
                f"{again[name]} against the record's {record[name]}",
            )
            return f"Step {record['step']} differs in its {name.replace('_', ' ')}, {first}."
    return None


def _memory(timings: dict[str, Any]) -> dict[str, Any]:
    return {name: timings[name] for name in ("ttft_ms", "cached_tokens", "recomputed_tokens", "swapped_blocks")}


def _different_end(again: Replay) -> str | None:
    ends = [
        (one["request_id"], [sample["finish_reason"] for sample in one["samples"]], _memory(one["timings"]))
        for one in again.requests
    ]
    mine = again.ends
    for one, other in zip(mine, ends, strict=False):
        if one != other:
            return f"Request {other[0]!r} ends as {one}, in the record as {other[1:]}."
    if len(mine) != len(ends):
        return f"{len(mine)} requests ended, in the record {len(ends)}."
    return None
