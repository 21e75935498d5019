"""Prefill here, decode there: the answer is whole, times hold the transfer, and nothing is computed twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from core.builders import request

from benchmarks.comparison import steady
from inflight.records.schema import of_kind, read_records
from inflight.simulate.cluster import Link, for_decode, for_prefill
from inflight.simulate.replay import replay
from inflight.simulate.simulation import Setup, best_split, simulate
from inflight.workload.workload import Entry, Workload

from .setups import Affine, chat, pool

LINK = Link(bytes_per_token=1e6, gbps=8.0, setup_s=0.5)  # a token takes a millisecond


def test_a_request_is_cut_in_two() -> None:
    whole = request("r", [1, 2, 3], output=5, max_tokens=9)
    assert (for_prefill(whole).params.max_tokens, for_prefill(whole).forced_output_tokens) == (1, 1)
    rest = for_decode(whole, 7)
    assert rest is not None
    assert rest.prompt_token_ids == (1, 2, 3, 7)
    assert (rest.params.max_tokens, rest.forced_output_tokens, rest.handed_tokens) == (8, 4, 3)
    assert for_decode(request("r", output=1), 7) is None
    assert for_decode(request("r", output=None, max_tokens=1), 7) is None


def test_times_of_one_request(tmp_path: Path) -> None:
    """Prompt of 40 and first token in a step of 0.05 s; 0.54 s on the link; then 8 tokens of a block that was not whole
    and the first answer's, 0.019 s, and two decodes of 0.011 s."""
    workload = Workload((Entry(0.0, 40, 4),), "one")
    run = simulate(workload, Setup(pool(model=Affine()), pool(model=Affine()), LINK), tmp_path / "r.jsonl")
    (seen,) = run.observations
    assert list(seen.token_times) == pytest.approx([0.05, 0.05 + 0.54 + 0.019, 0.62, 0.631])
    assert (seen.prompt_tokens, seen.output_tokens, seen.outcome) == (40, 4, "completed")
    steps = of_kind(list(read_records(tmp_path / "r.1.jsonl")), "step")
    assert [(one["start"], one["length"]) for step in steps for one in step["chunks"]] == [(32, 9), (41, 1), (42, 1)]


def test_recurrent_state_comes_with_the_blocks(tmp_path: Path) -> None:
    """A row that it was handed to begins where the handed prompt ends, and finds no snapshot there."""
    stateful = pool(model=Affine(), state_snapshots=4)
    simulate(Workload((Entry(0.0, 40, 4),), "one"), Setup(stateful, stateful, LINK), tmp_path / "r.jsonl")
    steps = of_kind(list(read_records(tmp_path / "r.1.jsonl")), "step")
    assert [(one["start"], one["length"]) for step in steps for one in step["chunks"]] == [(32, 9), (41, 1), (42, 1)]
    assert "snapshot" not in steps[0]["new_rows"][0]


def test_a_single_token_does_not_move() -> None:
    run = simulate(Workload((Entry(0.0, 40, 1),), "one"), Setup(pool(), pool(), LINK))
    assert [one.steps for one in run.replicas] == [1, 0]
    assert run.observations[0].output_tokens == 1


def test_the_link_carries_one_after_the_other() -> None:
    workload = Workload((Entry(0.0, 32, 2), Entry(0.0, 32, 2)), "two")
    first, second = simulate(workload, Setup(pool(), pool(), LINK)).observations
    assert second.last_token is not None and first.last_token is not None
    assert second.last_token - first.last_token == pytest.approx(0.532, abs=0.02)


def test_handed_blocks_are_found_by_others_and_lost_by_preemption(tmp_path: Path) -> None:
    quick = Link(1.0, 1000.0, 0.0)
    decode = pool(num_blocks=24, max_rows=8)
    run = simulate(chat(40, 100.0, shared=64), Setup(pool(), decode, quick), tmp_path / "r.jsonl")
    assert all(one.outcome == "completed" for one in run.observations)
    assert run.preemptions > 0
    for number in (0, 1):
        _, outcome = replay(list(read_records(tmp_path / f"r.{number}.jsonl")))
        assert outcome.difference is None
    told = of_kind(list(read_records(tmp_path / "r.1.jsonl")), "request")
    assert all(one["handed_tokens"] for one in told)
    assert any(one["timings"]["recomputed_tokens"] for one in told)


def test_the_best_split_is_searched() -> None:
    heavy = Workload(tuple(Entry(0.05 * k, 400, 3) for k in range(40)), "long prompts")
    quick = Link(1.0, 1000.0, 0.0)

    def score(run: object) -> float:
        return -steady(run.observations).ttft.p99  # type: ignore[attr-defined]

    found = best_split(heavy, Setup(pool(), pool(), quick), 4, score)
    assert found[0][:2] == (3, 1)
    assert sorted((one[0], one[1]) for one in found) == [(1, 3), (2, 2), (3, 1)]
    assert json.dumps([one[3] for one in found])
