"""Recurrent states through the runner: rows begin from snapshots, chunks leave them, and what failed leaves none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from models import write_model

from inflight import api
from inflight.api import LLM
from inflight.core.types.plan import BatchPlan, Capacity, Chunk, NewRequest, StepResult
from inflight.core.types.sampling import SamplingParams
from inflight.execution.backends import open_backend
from inflight.execution.backends.null import NullBackend
from inflight.execution.checkpoints.checkpoint import Checkpoint
from inflight.execution.memory import kv_shape, states_of
from inflight.execution.model import Model
from inflight.execution.passes import passes
from inflight.execution.runner import ModelRunner
from inflight.execution.weights import load_weights
from inflight.models.known import known_model, read_model
from inflight.models.registry import read_folder

from .conftest import OracleOf
from .driver import BLOCK, backends

GREEDY = SamplingParams(temperature=0, logprobs=3)
PROMPT = tuple(range(60, 105))


class Rig:
    """A runner of three rows and two snapshots, whose passes take 24 tokens at most, and its plans, made by hand."""

    def __init__(self, folder: Path, isa: str) -> None:
        model = read_folder(folder, to_run=True)
        backend = open_backend("bfloat16", 2, isa)
        capacity = Capacity(40, BLOCK, 3, 160, model.vocab_size, state_snapshots=2)
        weights = load_weights(model, Checkpoint(folder), backend, 160)
        decoder = Model(model, weights, backend, 24, 24)
        states = backend.state_cache(states_of(model), capacity.max_rows + 1, capacity.state_snapshots)
        self.runner = ModelRunner(
            decoder, backend, backend.kv_cache(kv_shape(model, BLOCK), capacity.num_blocks + 1), capacity, states
        )
        self._step = 0

    def run(self, *chunks: Chunk, new: tuple[NewRequest, ...] = (), freed: tuple[int, ...] = ()) -> StepResult:
        self._step += 1
        plan = BatchPlan(self._step, chunks, new, freed, padding=(5, 2))
        return self.runner.submit(plan).result()


def new(row: int, tokens: tuple[int, ...] = PROMPT, snapshot: int = -1) -> NewRequest:
    return NewRequest(row, tokens, len(tokens), GREEDY, 0, 0, snapshot=snapshot)


def drawn(result: StepResult, number: int = 0) -> object:
    assert result.error is None
    (one,) = [one for one in result.sampled if one.sequence_id == number]
    return one.token_ids, one.logprobs


@pytest.fixture(params=[(variant, isa) for variant in ("qwen35", "lfm2") for isa in backends()[:2]], ids=str)
def rig(request: pytest.FixtureRequest, oracle_of: OracleOf) -> Rig:
    variant, isa = request.param
    return Rig(oracle_of(variant).folder, isa)


def test_a_row_begins_where_a_snapshot_was_taken(rig: Rig) -> None:
    blocks = (1, 2, 3)
    whole = rig.run(Chunk(0, 0, 0, 45, blocks, 1, snapshots=((16, 1), (32, 0))), new=(new(0),))
    expected = [drawn(whole), drawn(rig.run(Chunk(0, 0, 45, 1, (), 1)))]
    # Two rows begin, one of them in the place of the first, from a slot that is overwritten in the same step.
    begun = rig.run(
        Chunk(1, 0, 32, 13, blocks, 1),
        Chunk(2, 2, 16, 29, (1, 4, 5), 1, snapshots=((32, 0),)),
        new=(new(0, snapshot=0), new(2, snapshot=1)),
        freed=(0,),
    )
    assert drawn(begun, 1) == drawn(begun, 2) == expected[0]
    after = rig.run(Chunk(1, 0, 45, 1, (), 1), Chunk(2, 2, 45, 1, (), 1))
    assert drawn(after, 1) == drawn(after, 2) == expected[1]
    again = rig.run(Chunk(3, 1, 32, 13, (1, 4, 6), 1), new=(new(1, snapshot=0),))
    assert drawn(again, 3) == expected[0]


def test_a_row_that_is_taken_again_has_nothing_of_the_request_before(rig: Rig) -> None:
    expected = drawn(rig.run(Chunk(0, 0, 0, 45, (1, 2, 3), 1), new=(new(0),)))
    rig.run(Chunk(1, 0, 0, 30, (4, 5), 1), new=(new(0, PROMPT[::-1]),), freed=(0,))
    assert drawn(rig.run(Chunk(2, 0, 0, 45, (6, 7, 8), 1), new=(new(0),), freed=(0,)), 2) == expected


def test_a_failed_step_leaves_no_snapshot_later(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sequence may be in the next step already, when the slot is another's."""
    first = rig.run(Chunk(0, 0, 0, 45, (1, 2, 3), 1, snapshots=((32, 1),)), new=(new(0),))
    with monkeypatch.context() as patch:
        patch.setattr(rig.runner._decoder, "forward", lambda batch: 1 / 0)
        assert rig.run(Chunk(1, 1, 0, 16, (4,), 0), new=(new(1, PROMPT[::-1]),)).error is not None
    late = rig.run(Chunk(1, 1, 16, 24, (5, 6), 1, snapshots=((32, 1),)))
    assert late.error is None
    begun = rig.run(Chunk(2, 2, 32, 13, (1, 2, 7), 1), new=(new(2, snapshot=1),))
    assert drawn(begun, 2) == drawn(first)


def test_a_step_that_does_not_fit_a_state_fails_in_a_sentence(rig: Rig) -> None:
    rig.run(Chunk(0, 0, 0, 20, (1, 2), 0), new=(new(0),))
    again = rig.run(Chunk(0, 0, 16, 10, (), 1))
    assert "row 0 computes from position 16, but its recurrent state stands at 20" in str(again.error)


def test_snapshots_go_with_the_tokens_that_they_follow() -> None:
    whole = Chunk(0, 0, 8, 60, (1, 2), 1, snapshots=((16, 3), (32, 1), (48, 0), (64, 2)))
    pieces = [piece for part in passes([whole], 24) for piece in part]
    assert [(piece.start, piece.length, piece.snapshots) for piece in pieces] == [
        (8, 24, ((16, 3), (32, 1))),
        (32, 24, ((48, 0),)),
        (56, 12, ((64, 2),)),
    ]


def test_the_null_backend_counts_states_and_keeps_none() -> None:
    states = states_of(read_model("qwen3-next-80b-a3b"))
    assert NullBackend().bytes_per_state(states) == 36 * (32 * 128 * 128 * 4 + 8192 * 3 * 2)
    assert NullBackend().state_cache(states, 3, 2).nbytes == 0
    assert states_of(known_model("qwen3-0.6b")) == ()


@pytest.mark.parametrize("family", ["qwen3_5", "lfm2"])
def test_an_engine_finds_a_prefix_by_its_snapshot(tmp_path: Path, family: str) -> None:
    llm = LLM(str(write_model(tmp_path / family, family)), num_blocks=30, max_model_len=160)
    prompts = [list(range(40, 110)), list(range(40, 104))]
    params = api.SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    first, second = (llm.generate(prompts, params) for _ in range(2))
    assert [one.outputs[0].token_ids for one in first] == [one.outputs[0].token_ids for one in second]
    assert {one.outputs[0].finish_reason for one in (*first, *second)} == {"length"}
    assert [one.num_cached_tokens for one in second] == [64, 48]  # the last block's end that leaves four tokens
    assert llm.settings["state_snapshots"].value > 0


@pytest.mark.parametrize("family", ["qwen3_5", "lfm2"])
def test_a_prefix_that_is_found_changes_no_token(tmp_path: Path, family: str) -> None:
    """Prompts that begin alike, several samples, and few blocks, so that some are preempted, in a whole engine."""
    folder = write_model(tmp_path / family, family)
    prompts = [list(range(40, 40 + length)) for length in (70, 64, 100, 70)]
    params = api.SamplingParams(temperature=1, seed=5, n=2, max_tokens=30, ignore_eos=True)

    def answers(**settings: object) -> list[list[object]]:
        llm = LLM(str(folder), max_model_len=160, **settings)
        runs = [llm.generate(prompts, params) for _ in range(2)]
        found = [[one.outputs for one in run] for run in runs]
        assert found[0] == found[1]
        assert {one.finish_reason for outputs in found[0] for one in outputs} == {"length"}
        return found[0]

    plain = answers(num_blocks=200, enable_prefix_caching=False, max_num_seqs=1)
    assert answers(num_blocks=200) == plain
    assert answers(num_blocks=16, max_num_seqs=4) == plain


def test_arithmetic_counts_what_a_backend_takes(oracle_of: OracleOf) -> None:
    from inflight.models.sequence_memory import state_bytes

    model = read_folder(oracle_of("lfm2").folder, to_run=True)
    taken = open_backend("bfloat16", 1, "reference").bytes_per_state(states_of(model))
    assert taken == state_bytes(model) == np.dtype(np.uint16).itemsize * 2 * 2 * 64
