"""Records of version 1 are read as those of today: a run that was recorded then replays to the same plans."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inflight.core.types.events import Finish
from inflight.core.types.plan import HOST, AdapterLoad, Chunk, NewRequest, Transfer, Transferred
from inflight.core.types.request import SLO
from inflight.core.types.sampling import Adapter
from inflight.records.schema import (
    Fault,
    RecordError,
    RequestRecord,
    StepRecord,
    decode_line,
    header_of,
    of_kind,
    read_records,
)
from inflight.simulate.replay import replay

RECORD = Path(__file__).parent / "fixtures/version1.jsonl"  # simulated, with drafts, shared prefixes and preemptions

CHUNK = {"sequence": 4, "row": 1, "start": 16, "length": 3, "new_blocks": [5], "sample": True}
STEP: dict[str, Any] = {
    "kind": "step", "step": 7, "planned": 1.0, "committed": 2.0, "seconds": 0.5,
    "chunks": [
        {**CHUNK, "draft_token_ids": [8, 9], "window_blocks": [[6]], "score": [16, 18]},
        {**CHUNK, "num_drafts": 2, "snapshots": [[16, 0]]},
        {**CHUNK, "sample": False},
    ],
    "new_rows": [{"row": 1, "tokens": 20, "prompt_tokens": 18, "snapshot": 2, "adapter_slot": 0}],
    "freed_rows": [3], "padding": [2], "moves": {"out": [[5, 0], [6, 1]], "back": [[2, 9]]},
    "adapter_loads": [{"name": "law", "number": 2, "ticket": 3, "slot": 1}],
    "features": {"tokens": 9, "rows": 3, "samples": 6, "decode_context": 0, "prefill_context": 1.5},
    "before_commit": 6, "held_back": [8], "draft_seconds": 0.25, "waits": [[4, -1]], "accepted": [[4, 1]],
    "error": "It broke.", "out_of_memory": True,
    "transferred": [{"ticket": 3, "error": "Gone."}], "faults": [{"sequence": 4, "error": "Not finite."}],
}  # fmt: skip


def line(record: dict[str, Any]) -> Any:
    return decode_line(json.dumps(record).encode(), 1)


def test_a_run_that_was_recorded_then_replays_to_the_same_plans() -> None:
    records = list(read_records(RECORD))
    assert header_of(records).version == 1
    _, outcome = replay(records)
    assert outcome.difference is None and outcome.steps == outcome.recorded_steps == 90
    assert outcome.requests == 7 and outcome.prefix_hits > 0 and outcome.preemptions > 0
    assert sum(len(step.accepted) for step in of_kind(records, "step")) > 50


def test_a_step_has_all_that_it_had() -> None:
    step = line(STEP)
    assert isinstance(step, StepRecord)
    plan = step.plan
    of = (4, 1, 16, 3, (5,))
    assert plan.chunks == (
        Chunk(*of, 3, range(16, 18), (8, 9), window_blocks=((6,),), num_drafts=2),
        Chunk(*of, 3, snapshots=((16, 0),), num_drafts=2),
        Chunk(*of, 0),
    )
    assert plan.new_requests == (NewRequest(1, prompt_length=18, snapshot=2, adapter_slot=0),)
    assert (plan.step, plan.freed_rows, plan.padding, plan.held_back) == (7, (3,), (2,), (8,))
    assert plan.transfers == (Transfer(0, "store", HOST, (5, 6), (0, 1)), Transfer(0, "load", HOST, (9,), (2,)))
    assert plan.adapter_loads == (AdapterLoad(3, 1, Adapter("law", "", 2)),)
    assert step.transferred == (Transferred(3, "Gone."),) and step.faults == (Fault(4, "Not finite."),)
    assert (step.before_commit, step.draft_seconds, step.waits, step.accepted) == (6, 0.25, ((4, -1),), ((4, 1),))
    assert (step.error, step.out_of_memory, step.features.prefill_context) == ("It broke.", True, 1.5)
    assert step.features.prompt_chunks is None, "was not counted then"


def test_a_request_has_all_that_it_had() -> None:
    old = next(json.loads(one) for one in RECORD.read_text().splitlines() if one.startswith('{"kind":"request"'))
    old |= {
        "handed_tokens": 16,
        "session": "s",
        "adapter": {"name": "law", "number": 2},
        "slo": {"ttft": 2, "itl": None},
    }
    old["samples"][0] |= {"finish_reason": "stop", "stopped_by": "zz"}
    record = line(old)
    assert isinstance(record, RequestRecord)
    request = record.request
    assert request.prompt_token_ids == tuple(old["prompt_token_ids"]) and request.arrival == old["arrival"]
    assert (request.num_external_tokens, request.session, request.slo) == (16, "s", SLO(2.0))
    assert request.adapter == Adapter("law", "", 2) and request.params.max_tokens == old["params"]["max_tokens"]
    assert record.samples[0].finish == Finish("stop", "zz") and record.timings.to_json() == old["timings"]


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda step: step.pop("moves"), "lacks 'moves'"),
        (lambda step: step["chunks"][0].pop("sample"), "lacks 'sample'"),
        (lambda step: step["chunks"][0].pop("row"), "lacks 'row'"),
        (lambda step: step.update(chunks=7), "holds something else than a record of version 1 has"),
        (lambda step: step["moves"].update(out=[[1, 2, 3]]), "holds something else than a record of version 1 has"),
        (lambda step: step["chunks"][0].update(row=-1), "holds something else than a record has at"),
        (lambda step: step.update(committed=0.5), "the step ends at 0.5 s, before it was planned at 1 s"),
    ],
)
def test_damage_is_a_sentence(damage: Callable[[dict[str, Any]], object], sentence: str, tmp_path: Path) -> None:
    step = json.loads(json.dumps(STEP))
    damage(step)
    path = tmp_path / "damaged.jsonl"
    path.write_text(RECORD.read_text().splitlines()[0] + "\n" + json.dumps(step) + "\n")
    with pytest.raises(RecordError, match=sentence) as caught:
        list(read_records(path))
    assert "ine 2 of" in str(caught.value)
