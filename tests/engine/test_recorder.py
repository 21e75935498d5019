"""The recorder: its lines can be read back, and a run can be repeated from them alone."""

from __future__ import annotations

import contextlib
import io
import json
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from core.builders import request
from core.harness import FaultyExecutor, LaneSetup, Setup, seconds
from core.test_state_machine import SETUPS, fitted, requests
from hypothesis import assume, example, given, settings
from msgspec import structs
from simulate.setups import chat, pool

from inflight.config.scheduling import SchedulingSettings
from inflight.core.kv.checkpoint_spacing import CheckpointSpacing
from inflight.core.types.events import FinishedEvent
from inflight.core.types.executor import Done
from inflight.core.types.features import features
from inflight.core.types.plan import HOST, BatchPlan, Chunk, StepResult, Transfer, WaitUntil
from inflight.core.types.request import SLO, Request, RequestRefused
from inflight.core.types.sampling import NO_SAMPLING, PoolingParams, SamplingParams
from inflight.engine.clock import VirtualClock
from inflight.engine.loop import EngineLoop
from inflight.engine.recorder import Recorder, open_record
from inflight.records.checked import Malformed
from inflight.records.schema import (
    Line,
    RecordError,
    StepRecord,
    decode_line,
    encode_line,
    header_of,
    of_kind,
    read_records,
    recorded_plan,
    values_of,
)
from inflight.simulate.drafting import SimulatedDrafts, parse_acceptance
from inflight.simulate.executor import SimulatedExecutor
from inflight.simulate.replay import Replay, replay
from inflight.simulate.simulation import SimulationSetup, simulate

ROOMY = Setup(num_blocks=30, max_rows=3, token_budget=8)


class Retained(io.BytesIO):
    """A file whose content outlives its closing."""

    content = b""

    def close(self) -> None:
        self.content = self.getvalue()
        super().close()


class Noted(FaultyExecutor):
    """Keeps the plans that it was given. Steps may break, or be unsound: of those the last sequence has no tokens."""

    def __init__(self, setup: Setup, broken: frozenset[int] = frozenset(), unsound: frozenset[int] = frozenset()):
        super().__init__(setup.capacity, seconds, setup.fate)
        self.plans: list[BatchPlan] = []
        self._broken, self._unsound = broken, unsound

    def submit(self, plan: BatchPlan):  # type: ignore[no-untyped-def]
        self.plans.append(plan)
        self.fail_next = plan.step in self._broken
        done = super().submit(plan)
        return Done(_unsound(done.result())) if plan.step in self._unsound else done


def _unsound(result: StepResult) -> StepResult:
    """The last sequence that samples, and the last that is scored, end with an error."""
    sampled = tuple(structs.replace(one, token_ids=(), error="Not finite.") for one in result.sampled[-1:])
    scored = tuple(structs.replace(one, logprobs=(), error="Not finite.") for one in result.scored[-1:])
    return structs.replace(result, sampled=result.sampled[:-1] + sampled, scored=result.scored[:-1] + scored)


class Recorded:
    """An engine that records, on virtual time."""

    def __init__(
        self,
        setup: Setup,
        broken: frozenset[int] = frozenset(),
        unsound: frozenset[int] = frozenset(),
        file: Retained | None = None,
    ):
        self.file = file or Retained()
        self.executor = Noted(setup, broken, unsound)
        resolved = {
            "depth": {"value": setup.depth},
            "max_num_batched_tokens": {"value": setup.token_budget},
            "prefix_caching": {"value": setup.prefix_caching},
            "watermark": {"value": setup.watermark},
            "speculation": {"value": "off" if setup.right_drafts is None else "suffix"},
            "setup": {"value": asdict(setup)},
        }
        self.recorder = Recorder(self.file, resolved, setup.capacity)
        self.loop = EngineLoop(
            setup.scheduler(), self.executor, VirtualClock(100.0), depth=setup.depth, observers=[self.recorder]
        )

    def lines_of(self, *requests: Request) -> list[dict[str, Any]]:
        """Return the lines of a run of these requests, as JSON that other programs read."""
        for one in requests:
            self.loop.add(one)
        self.loop.run()
        self.loop.close()
        return [json.loads(line, parse_constant=pytest.fail) for line in self.file.content.splitlines()]

    def records(self, folder: Path, *requests: Request) -> list[Line]:
        """Return the records of the run so far and of one of these requests."""
        self.lines_of(*requests)
        path = folder / "record.jsonl"
        path.write_bytes(self.file.content)
        return list(read_records(path))


def test_lines_are_core_types_and_come_back_as_they_were(tmp_path: Path) -> None:
    recorded = Recorded(ROOMY, broken=frozenset({6}), unsound=frozenset({1}))
    asked = [request("a", output=2, n=2), request("b", output=None, max_tokens=9, stop="ab", ignore_eos=False)]
    for one in asked:
        recorded.loop.add(one)
    recorded.loop.run()
    records = recorded.records(tmp_path, request("c", output=5))
    assert header_of(records).capacity == ROOMY.capacity and header_of(records).version == 2
    ended = {one.request.request_id: one for one in of_kind(records, "request")}
    assert [ended[one.request_id].request for one in asked] == asked
    steps = of_kind(records, "step")
    assert [step.plan for step in steps] == [recorded_plan(plan) for plan in recorded.executor.plans]
    assert [step.features for step in steps] == [features(plan) for plan in recorded.executor.plans]
    assert [step.error for step in steps if step.error is not None] == ["Step 6 broke."]
    (faults,) = [step.faults for step in steps if step.faults]
    assert [fault.error for fault in faults] == ["Not finite."]


def test_prompts_stand_in_the_lines_of_requests_alone() -> None:
    """A prompt of which sixteen samples are asked would otherwise stand there seventeen times."""
    lines = Recorded(ROOMY).lines_of(request("a", [1, 2, 3, 4], output=1, n=3))
    (new, *others) = [one for line in lines if line["kind"] == "step" for one in line["plan"].get("new_requests", ())]
    assert new == {"row": new["row"], "prompt_length": 4} and len(others) == 2
    assert [line["request"]["prompt_token_ids"] for line in lines if line["kind"] == "request"] == [[1, 2, 3, 4]]


def test_steps_are_recorded_with_their_times(tmp_path: Path) -> None:
    steps = of_kind(Recorded(ROOMY).records(tmp_path, request("a", [0] * 9, output=2)), "step")
    assert [step.seconds for step in steps] == [0.15625, 0.046875, 0.046875]
    assert [step.planned for step in steps] == [100.0, 100.15625, 100.203125]
    assert [step.committed for step in steps] == [100.15625, 100.203125, 100.25]
    assert steps[0].features.tokens == 8


def test_requests_are_recorded_with_settings_and_samples(tmp_path: Path) -> None:
    recorded = Recorded(ROOMY)
    recorded.loop.add(request("a", output=1))
    asked = request("b", [1, 2], output=3, n=2, seed=5, temperature=0.5, arrival=99.5, logit_bias={3: 1.5}, stop="zz")
    recorded.loop.add(asked)
    events = recorded.loop.run()
    first, second = of_kind(recorded.records(tmp_path), "request")
    assert first.samples[0].finish.reason == "length"
    assert second.request == asked and second.added == 100.0
    assert [sample.sequence_id for sample in second.samples] == [1, 2]
    assert all(len(sample.token_ids) == 3 for sample in second.samples)
    assert first.before_step == first.before_commit == 0
    (end,) = [event for event in events if isinstance(event, FinishedEvent) and event.request_id == "b"]
    assert second.timings == end.timings


def test_what_is_not_finite_is_null() -> None:
    """JSON knows neither NaN nor infinities, and a record with them could be read by Python alone."""
    line = Recorded(ROOMY).lines_of(request("a", output=1, arrival=float("nan")))[-1]
    assert (line["request"]["arrival"], line["added"]) == (None, 100.0)


def test_what_json_cannot_hold_is_written_all_the_same(tmp_path: Path) -> None:
    """Names of files that are not UTF-8 have half characters, and callers in Python have numbers of any size."""
    odd = structs.replace(request("a", output=1, top_k=10**30), session="é", cache_salt="\udcff")
    (ended,) = of_kind(Recorded(ROOMY).records(tmp_path, odd), "request")
    assert (ended.request.params.top_k, ended.request.session) == (10**30, "é")
    assert ended.request.cache_salt == "\\udcff"
    file = Retained()
    Recorder(file, {"model": {"value": "m\udcff", "reason": ""}}, ROOMY.capacity)
    assert b"m\\\\udcff" in file.getvalue()


def test_refused_requests_are_recorded_with_the_reason_and_take_no_numbers(tmp_path: Path) -> None:
    recorded = Recorded(ROOMY)
    with pytest.raises(RequestRefused):
        recorded.loop.add(request("a", prompt=[], tenant="anna", slo=SLO(0.5)))
    recorded.recorder.refused(request("b"), RequestRefused("9 wait already.", retry_after=1.5), 101.0)
    records = recorded.records(tmp_path, request("c", output=1))
    assert of_kind(records, "request")[0].samples[0].sequence_id == 0
    never, later = of_kind(records, "refused")
    assert (never.request_id, never.tenant, never.prompt_tokens) == ("a", "anna", 0)
    assert "0 tokens" in never.reason and never.retry_after is None and never.slo.ttft == 0.5
    assert (later.reason, later.retry_after, later.refused) == ("9 wait already.", 1.5, 101.0)


def test_how_it_ended(tmp_path: Path) -> None:
    recorded = Recorded(Setup(num_blocks=2, block_size=2, token_budget=8))
    for name, output in ("outgrown", None), ("aborted", 4):
        recorded.loop.add(request(name, [0] * 3, output=output))
    recorded.loop.advance()
    recorded.loop.abort("aborted")
    aborted, outgrown = of_kind(recorded.records(tmp_path), "request")
    assert (aborted.samples[0].finish.reason, aborted.ended_before_step) == ("abort", 1)
    assert outgrown.samples[0].finish.reason == "length"
    assert "KV blocks" in (outgrown.samples[0].finish.detail or "")


def test_steps_that_contradict_themselves_are_refused() -> None:
    plan = BatchPlan(0, (Chunk(0, 0, 0, 3, (1,), 3, num_drafts=2),))
    sound = StepRecord(plan, 1.0, 2.0, 0.5, features(plan), accepted=((0, 2),))
    assert decode_line(encode_line(sound), 2) == sound
    odd = structs.replace(plan, transfers=(Transfer(1, "store", HOST, (1, 2), (0,)),))
    with pytest.raises(Malformed, match="a transfer has 2 blocks, and 1 in its tier"):
        decode_line(encode_line(structs.replace(sound, plan=odd)), 2)
    with pytest.raises(Malformed, match="sequence 0 has 9,007,199,254,740,992 right drafts of 2"):
        decode_line(encode_line(structs.replace(sound, accepted=((0, 2**53),))), 2)


def test_other_files_are_refused_by_line(tmp_path: Path) -> None:
    path, header = tmp_path / "record.jsonl", io.BytesIO()
    Recorder(header, {}, ROOMY.capacity)
    for written, sentence in (
        (b'{"kind": "step"}\n', "starts with kind 'step'"),
        (b'{"kind": "header", "version": 99}\n', "version 99"),
        (header.getvalue() + b'{"kind": "st', "line 2: not JSON"),
    ):
        path.write_bytes(written)
        with pytest.raises(RecordError, match=sentence):
            list(read_records(path))


# -- replay -----------------------------------------------------------------------------------------------------


def rebuilt_setup(header: Line) -> Setup:
    setup = header_of([header]).settings["setup"]["value"]
    lanes = [LaneSetup(lane["name"], lane["policy"], tuple(map(tuple, lane["settings"]))) for lane in setup["lanes"]]
    made = {"lanes": tuple(lanes), "spacing": CheckpointSpacing(**setup["spacing"]), "windows": tuple(setup["windows"])}
    return Setup(**{**setup, **made, "right_drafts": None})  # drafts are the record's


def difference(records: list[Line], setup: Setup = ROOMY) -> str:
    """Return in what a replay differs from its record; "" where it does not."""
    return replay(records, setup.scheduler)[1].difference or ""


def test_checkpoints_of_state_are_recorded_and_replay(tmp_path: Path) -> None:
    """Where a row began from one, and which slots a chunk wrote; without state a record says nothing of it."""
    recorded = Recorded(replace(ROOMY, snapshots=3, token_budget=6))
    for name in ("a", "b"):
        recorded.loop.add(request(name, [0, 1, 1, 0, 1, 0, 0], output=5))
        recorded.loop.run()
    records = recorded.records(tmp_path)
    header, steps = header_of(records), of_kind(records, "step")
    assert header.capacity.state_snapshots == 3
    rows = [new for step in steps for new in step.plan.new_requests]
    assert rows[0].snapshot == -1 and rows[1].snapshot in range(3)
    first = steps[0].plan.chunks[0].snapshots
    assert [position for position, _ in first] == [4, 6]
    setup = rebuilt_setup(header)
    assert not difference(records, setup)
    other = (first[0], (first[1][0], first[1][1] ^ 1))
    changed = with_chunks(records, lambda one: structs.replace(one, snapshots=other))
    assert "differs in its chunks" in difference(changed, setup)
    plain = Recorded(ROOMY)
    plain.lines_of(request("a"))
    assert b"snapshot" not in b"".join(line for line in plain.file.content.splitlines() if b'"kind":"step"' in line)


def test_pooled_requests_replay_also_in_version_1_which_does_not_say_what_pools(tmp_path: Path) -> None:
    asked = structs.replace(request("p", [0, 1] * 6, output=None), params=NO_SAMPLING, pooling=PoolingParams())
    records = Recorded(ROOMY).records(tmp_path, asked)
    assert any(chunk.pool for step in of_kind(records, "step") for chunk in step.plan.chunks)
    assert not difference(records)
    plain = with_chunks(records, lambda chunk: structs.replace(chunk, pool=False))
    assert "differs in its chunks" in difference(plain)
    assert not difference([structs.replace(header_of(records), version=1), *plain[1:]])


def with_chunks(records: list[Line], change: Callable[[Chunk], Chunk]) -> list[Line]:
    """Return the records with the first chunk of each step changed."""
    return [
        structs.replace(one, plan=structs.replace(one.plan, chunks=(change(one.plan.chunks[0]), *one.plan.chunks[1:])))
        if isinstance(one, StepRecord) and one.plan.chunks
        else one
        for one in records
    ]


class Unlocked:
    """Actions of other threads while the engine computes: one each time that it is unlocked."""

    def __init__(self) -> None:
        self.wanted: deque[Callable[[], object]] = deque()

    def __enter__(self) -> None:
        if self.wanted:
            self.wanted.popleft()()

    def __exit__(self, *_: object) -> None:
        """The engine goes on."""


def test_what_came_while_a_step_was_computed_replays_after_its_plan(tmp_path: Path) -> None:
    recorded = Recorded(ROOMY)
    loop, others = recorded.loop, Unlocked()
    loop.add(request("first", [0] * 2, output=3))
    loop.add(request("gone", [0] * 9, output=9))
    others.wanted += [lambda: loop.add(request("second", [1] * 2, output=2)), lambda: loop.abort("gone")]
    loop.advance(others)
    records = recorded.records(tmp_path)
    came = {one.request.request_id: (one.before_step, one.before_commit) for one in of_kind(records, "request")}
    assert came == {"first": (0, 0), "gone": (0, 0), "second": (1, 0)}
    assert not difference(records)


def test_drafts_replay_as_they_were(tmp_path: Path) -> None:
    recorded = Recorded(replace(ROOMY, right_drafts=0.7, max_model_len=40, token_budget=12))
    asked = (request(str(n), [n], output=None, max_tokens=20, stop_token_ids=(2,)) for n in range(3))
    records = recorded.records(tmp_path, *asked)
    setup = rebuilt_setup(records[0])
    assert not difference(records, setup)
    chunks = [chunk for step in of_kind(records, "step") for chunk in step.plan.chunks]
    drafted = [chunk for chunk in chunks if chunk.draft_token_ids]
    assert drafted and all(chunk.length == 1 + len(chunk.draft_token_ids) for chunk in drafted)

    def wrong(chunk: Chunk) -> Chunk:
        return structs.replace(chunk, draft_token_ids=tuple(one ^ 1 for one in chunk.draft_token_ids))

    assert "differs in its chunks" in difference(with_chunks(records, wrong), setup)


def drafting(folder: Path, speculation: str, acceptance: str, pass_seconds: float) -> list[Line]:
    """Records of a simulated engine whose drafts are right as often as was said."""
    drafts = SimulatedDrafts(parse_acceptance(acceptance), pass_seconds=pass_seconds)
    setup = SimulationSetup(pool(SchedulingSettings(speculation=speculation), drafts=drafts))
    simulate(chat(20, 20.0), setup, folder / "drafted.jsonl")
    return list(read_records(folder / "drafted.jsonl"))


@pytest.mark.parametrize(("speculation", "key"), [("suffix", "draft_token_ids"), ("draft:small", "num_drafts")])
def test_drafts_of_both_kinds_are_recorded_with_acceptance_and_replay(
    tmp_path: Path, speculation: str, key: str
) -> None:
    """From the record alone."""
    records = drafting(tmp_path, speculation, "0.7", 0.001 if key == "num_drafts" else 0.0)
    assert values_of(header_of(records))["speculation"] == speculation
    steps = of_kind(records, "step")
    drafted = [chunk for step in steps for chunk in step.plan.chunks if chunk.num_drafts]
    assert drafted and all(getattr(chunk, key) and chunk.length == 1 + chunk.num_drafts for chunk in drafted)
    accepted = [count for step in steps for _, count in step.accepted]
    assert 0 < sum(accepted) < sum(chunk.num_drafts for chunk in drafted) and len(accepted) == len(drafted)
    assert any(step.draft_seconds for step in steps) == (key == "num_drafts")
    assert replay(records)[1].difference is None
    first = next(step for step in steps if step.accepted)
    ((sequence, right), *others) = first.accepted
    other = structs.replace(first, accepted=((sequence, right ^ 1), *others))
    changed = [other if one is first else one for one in records]
    assert (replay(changed)[1].difference is None) == (key == "draft_token_ids"), "there, tokens show the right drafts"


def test_drafts_that_were_not_made_do_not_count_as_wrong_and_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its drafter is to catch up first, now and then."""
    made = SimulatedExecutor.submit
    lacking = set[tuple[int, int]]()  # (step, sequence)

    def submit(self: SimulatedExecutor, plan: BatchPlan) -> Done:
        result = made(self, plan).result()
        drafted = [one.sequence_id for one in plan.chunks if one.num_drafts]
        undrafted = tuple(one for one in drafted if (plan.step + one) % 3 == 0)
        lacking.update((plan.step, one) for one in undrafted)
        sampled = [
            structs.replace(one, token_ids=one.token_ids[:1]) if one.sequence_id in undrafted else one
            for one in result.sampled
        ]
        return Done(structs.replace(result, sampled=tuple(sampled), undrafted=undrafted))

    monkeypatch.setattr(SimulatedExecutor, "submit", submit)
    records = drafting(tmp_path, "draft:small", "0.9", 0.001)
    steps = of_kind(records, "step")
    drafted = {(step.plan.step, sequence) for step in steps for sequence, _ in step.accepted}
    assert lacking and drafted and not lacking & drafted
    assert replay(records)[1].difference is None


def asked(prompt: tuple[int, ...], **params: Any) -> Request:
    return Request(request_id="", prompt_token_ids=prompt, params=SamplingParams(**params))


SOUND: dict[str, Any] = {"broken": frozenset(), "unsound": frozenset()}


@given(
    # A record does not have the content of tiers and peers.
    setup=SETUPS.map(lambda setup: replace(setup, tier=None, peers=False)),
    script=st.lists(
        st.tuples(requests(max_prompt=6), st.integers(1, 3), st.one_of(st.none(), st.integers(0, 5)), st.booleans()),
        max_size=7,
    ),
    broken=st.frozensets(st.integers(0, 30), max_size=2),
    unsound=st.frozensets(st.integers(0, 30), max_size=3),
)
@example(  # Steps wait for the one before them, though no step has drafts.
    setup=Setup(depth=2, right_drafts=1.0, drafting="fickle"),
    script=[
        (asked((0, 0, 1, 1, 0, 1), max_tokens=0), 3, None, True),
        (asked((0,), max_tokens=3, ignore_eos=True), 2, None, False),
        (asked((1, 1, 0, 1, 0, 1), temperature=0.0), 1, None, False),
    ],
    **SOUND,
)
@example(  # A pooled request ends between answers that a drafter with changing drafts holds back.
    setup=Setup(
        num_blocks=5, max_rows=2, token_budget=1, max_model_len=8, depth=2, strategy="continuous",
        lanes=(
            LaneSetup("interactive", "fcfs", (("weight", 0.5),)),
            LaneSetup("batch", "fcfs", (("background", True), ("weight", 0.5))),
        ),
        right_drafts=0.0, drafting="fickle",
    ),
    script=[
        (structs.replace(asked((0,)), params=NO_SAMPLING, pooling=PoolingParams()), 1, None, False),
        *[(asked((0,), temperature=0.0, max_tokens=None), 1, None, False)] * 3,
    ],
    **SOUND,
)  # fmt: skip
@example(  # A sample lacks a block when a step is looked at ahead, and no other sequence can be planned.
    setup=Setup(
        num_blocks=4, block_size=3, max_rows=2, token_budget=8, prefix_caching=False, max_model_len=8, depth=2,
        strategy="continuous", right_drafts=0.0,
    ),
    script=[(asked((0,) * 4, n=2, temperature=0.0), 1, None, False)],
    **SOUND,
)  # fmt: skip
@settings(deadline=None)
def test_a_record_replays_to_the_same_plans(
    tmp_path_factory: pytest.TempPathFactory,
    setup: Setup,
    script: list[tuple[Request, int, int | None, bool]],
    broken: frozenset[int],
    unsound: frozenset[int],
) -> None:
    """Invariant 6. Script: a request, rounds until the next one, whom to abort then, and whether both come while the
    next steps are computed."""
    # Windows slide at each attempt, also at one that finds nothing to plan ahead but those who wait for drafts.
    assume(setup.depth == 1 or setup.right_drafts is None or setup.windows == (0,))
    recorded = Recorded(setup, broken, unsound)
    loop, others = recorded.loop, Unlocked()

    def add(of: Request, number: int) -> None:
        with contextlib.suppress(RequestRefused):
            arrival = loop.clock.now() - number % 2
            loop.add(fitted(of, setup, request_id=str(number), arrival=arrival))

    def abort(number: int) -> None:
        loop.abort(str(number))
        loop.clock.passed(1 / 64)  # by the time a record shows whether others came before or after it

    for number, (of, rounds, victim, beside) in enumerate(script):
        others.wanted.append(partial(add, of, number))
        if victim is not None:
            others.wanted.append(partial(abort, victim))
        while others.wanted and not (beside and not loop.idle):
            others.wanted.popleft()()
        for _ in range(rounds):
            waiting = loop.advance(others)
            if isinstance(waiting, WaitUntil):
                loop.clock.wait_until(waiting.time)
    while others.wanted:
        others.wanted.popleft()()
    loop.run()
    records = recorded.records(tmp_path_factory.mktemp("replay"))
    again, outcome = replay(records, rebuilt_setup(records[0]).scheduler)
    assert outcome.difference is None
    assert outcome.steps == len(of_kind(records, "step")) == len(recorded.executor.plans)
    plans = list(Replay(records, rebuilt_setup(records[0]).scheduler, setup.depth).plans())
    assert plans == [
        # Stop rules were replaced, and the plans of the run name them.
        structs.replace(plan, new_requests=again.new_requests)
        for plan, again in zip(recorded.executor.plans, plans, strict=True)
    ]
    assert len(again.ends) == len(of_kind(records, "request"))


def test_a_record_is_for_its_owner_only(tmp_path: Path) -> None:
    with open_record(tmp_path / "record.jsonl") as file:
        file.write(b"prompts stand here\n")
    assert (tmp_path / "record.jsonl").stat().st_mode & 0o777 == 0o600
