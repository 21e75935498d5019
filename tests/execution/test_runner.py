"""The model runner: what a step yields, compared with the plain decoder and a plain sampler; and what a fault ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inflight.core.policies.fcfs import Fcfs
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.plan import BatchPlan, Capacity, Chunk, NewRequest, StepResult
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.engine.clock import MonotonicClock
from inflight.engine.loop import EngineLoop
from inflight.execution.backends import open_backend
from inflight.execution.checkpoints.checkpoint import Checkpoint
from inflight.execution.memory import kv_shape, states_of
from inflight.execution.model import Model
from inflight.execution.runner import ModelRunner
from inflight.execution.weights import load_weights
from inflight.frontend.offline import Offline
from inflight.frontend.outputs import RequestOutput
from inflight.models.registry import read_folder

from .driver import BLOCK, Driver, backends

PROMPT = tuple(range(40, 75))
END = 361


class Rig:
    """A runner on a tiny model, a loop over it, and a plain driver that says what the logits are."""

    def __init__(self, folder: Path, isa: str, logit_rows: int = 4, rows: int = 12) -> None:
        config = read_folder(folder, to_run=True)
        self.backend = backend = open_backend("float32", 2, isa)
        length = max(config.default_model_len, config.max_position_embeddings)  # longrope: the long factors
        kinds = states_of(config)
        snapshots = 2 if kinds else 0
        self.capacity = Capacity(64, BLOCK, rows, min(200, length), config.vocab_size, state_snapshots=snapshots)
        weights = load_weights(config, Checkpoint(folder), backend, self.capacity.max_model_len)
        cache = backend.kv_cache(kv_shape(config, BLOCK), self.capacity.num_blocks + 1 + self.capacity.host_blocks)
        self.decoder = Model(config, weights, backend, 128, logit_rows)
        states = backend.state_cache(kinds, rows + 1, snapshots) if kinds else None
        self.runner = ModelRunner(self.decoder, backend, cache, self.capacity, states)
        ends = frozenset({END} if config.vocab_size > END else ())
        scheduler = Scheduler(SchedulerConfig(self.capacity, Chunked(128), Fcfs(), end_token_ids=ends))
        self.offline = Offline(EngineLoop(scheduler, self.runner, MonotonicClock()), None)
        self.plain = Driver.of(folder, "float32", isa)

    def generate(self, *params: SamplingParams, prompt: tuple[int, ...] = PROMPT) -> list[Any]:
        return [output.outputs[0] for output in self.outputs(*params, prompt=prompt)]

    def outputs(self, *params: SamplingParams, prompt: tuple[int, ...] = PROMPT) -> list[RequestOutput]:
        collectors = [
            self.offline.add(Request(request_id=str(n), prompt_token_ids=prompt, params=one, seed=3))
            for n, one in enumerate(params)
        ]
        for _ in self.offline.run():
            pass
        return [collector.output() for collector in collectors]

    def logits(self, tokens: list[int]) -> np.ndarray:
        """After every token, float32[T, V]."""
        sequence = self.plain.start(tokens)
        logits = self.plain.prefill(sequence, 64)
        self.plain.end(sequence)
        return logits


@pytest.fixture(params=backends()[:2])
def rig(request: pytest.FixtureRequest, tiny: Path) -> Rig:
    return Rig(tiny, request.param)


def test_penalties_count_the_whole_history(rig: Rig) -> None:
    """Greedy tokens under all penalties and a bias are those of a plain sampler that looks at the full history."""
    params = SamplingParams(
        temperature=0,
        max_tokens=40,
        repetition_penalty=1.4,
        presence_penalty=0.7,
        frequency_penalty=0.9,
        logit_bias={5: 4.0, 77: -50.0},
        ignore_eos=True,
    )
    (one,) = rig.generate(params)
    logits = rig.logits([*PROMPT, *one.token_ids])
    for count, token in enumerate(one.token_ids):
        row = logits[len(PROMPT) - 1 + count].astype(np.float64)
        row[5] += 4.0
        row[77] -= 50.0
        output = one.token_ids[:count]
        for seen in {*PROMPT, *output}:
            row[seen] = row[seen] / 1.4 if row[seen] > 0 else row[seen] * 1.4
        for said in set(output):
            row[said] -= 0.7 + 0.9 * output.count(said)
        best = np.argsort(-row)[:2]
        # Where two candidates lie closer than rounding, either may win.
        assert token == best[0] or (token == best[1] and row[best[0]] - row[best[1]] < 1e-4), count


def test_log_probabilities_are_of_the_untouched_logits(rig: Rig) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=12, logprobs=3, logit_bias={9: 30.0}, ignore_eos=True)
    drawn = SamplingParams(temperature=2.0, max_tokens=12, logprobs=20, top_k=5, ignore_eos=True)
    without = SamplingParams(temperature=0, max_tokens=12)
    *asked, silent = rig.generate(greedy, drawn, without)
    assert silent.token_logprobs is None
    for one, count in zip(asked, (3, 20), strict=True):
        logits = rig.logits([*PROMPT, *one.token_ids])[len(PROMPT) - 1 :].astype(np.float64)
        expected = logits - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
        expected -= logits.max(1, keepdims=True)
        for step, entry in enumerate(one.token_logprobs):
            assert entry.token_id == one.token_ids[step]
            assert entry.logprob == pytest.approx(expected[step, entry.token_id], abs=1e-4)
            assert len(entry.top) == count
            values = [value for _, value in entry.top]
            assert values == sorted(values, reverse=True)
            assert values == pytest.approx(np.sort(expected[step])[::-1][:count], abs=1e-4)
    assert all(entry.token_id == 9 for entry in asked[0].token_logprobs)


def test_no_end_before_min_tokens(rig: Rig) -> None:
    at_once = SamplingParams(temperature=0, max_tokens=20, logit_bias={END: 100.0})
    later = SamplingParams(temperature=0, max_tokens=20, logit_bias={END: 100.0}, min_tokens=7)
    other = SamplingParams(temperature=0, max_tokens=20, logit_bias={8: 100.0}, min_tokens=3, stop_token_ids=(8,))
    first, second, third = rig.generate(at_once, later, other)
    assert (first.token_ids, first.finish_reason) == ([END], "stop")
    assert len(second.token_ids) == 8 and second.token_ids[-1] == END and END not in second.token_ids[:-1]
    assert len(third.token_ids) == 4 and third.token_ids[-1] == 8 and third.stop_reason == 8


def test_more_rows_than_the_logit_slab(tiny: Path) -> None:
    """Twelve rows sample in one step, four at a time: each gets its own token and log-probabilities."""
    isa = backends()[-1]
    params = [
        SamplingParams(temperature=1.0, seed=number, max_tokens=6, logprobs=number % 3 or None, ignore_eos=True)
        for number in range(12)
    ]
    narrow, wide = Rig(tiny, isa, logit_rows=4), Rig(tiny, isa, logit_rows=12)
    assert narrow.generate(*params) == wide.generate(*params)


def test_slabs_keep_the_plans_order(tiny: Path) -> None:
    rig = Rig(tiny, backends()[-1], logit_rows=3)
    tokens = [tuple(range(n, n + 5 + n)) for n in range(8)]
    new = tuple(NewRequest(n, t, len(t), SamplingParams(temperature=0), 0, 0) for n, t in enumerate(tokens))
    # Every other chunk stops short of its last token and samples nothing.
    chunks = tuple(Chunk(100 + n, n, 0, len(t) - n % 2, (n,), n % 2 == 0) for n, t in enumerate(tokens))
    result = rig.runner.submit(BatchPlan(0, chunks, new)).result()
    assert result.error is None
    assert [one.sequence_id for one in result.sampled] == [100, 102, 104, 106]
    for one in result.sampled:
        logits = rig.logits(list(tokens[one.sequence_id - 100]))
        assert one.token_ids == (int(np.argmax(logits[-1])),)


def test_a_broken_step_ends_its_requests_only(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    (expected,) = rig.generate(params)
    forward, steps = rig.decoder.forward, []

    def breaks(batch: Any) -> Any:
        steps.append(batch)
        if len(steps) == 3:
            raise FloatingPointError("no such luck")
        return forward(batch)

    monkeypatch.setattr(rig.decoder, "forward", breaks)
    first, second = rig.generate(params, params)
    for one in (first, second):
        assert one.finish_reason == "error"
        assert one.detail is not None
        assert "FloatingPointError: no such luck" in one.detail and "Step" in one.detail and "2 tokens" in one.detail
        assert one.token_ids == expected.token_ids[:2]
    (after,) = rig.generate(params)
    assert after == expected


def test_a_fault_is_reported_in_the_result_not_raised(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rig.decoder, "logits", lambda batch, places: 1 / 0)
    new = NewRequest(0, PROMPT, len(PROMPT), SamplingParams(), 0, 0)
    result = rig.runner.submit(BatchPlan(0, (Chunk(0, 0, 0, 35, (1, 2, 3), True),), (new,))).result()
    assert isinstance(result, StepResult) and result.sampled == () and result.seconds >= 0
    assert result.error == "Step 0 with 35 tokens failed: ZeroDivisionError: division by zero"


def test_a_sequence_whose_every_token_is_banned_ends_with_that_error(rig: Rig) -> None:
    params = SamplingParams(max_tokens=3, allowed_token_ids=(5,), bad_words=("x",))
    request = Request(request_id="0", prompt_token_ids=PROMPT, params=params, seed=3, bad_token_ids=((5,),))
    collector = rig.offline.add(request)
    for _ in rig.offline.run():
        pass
    banned = collector.output().outputs[0]
    assert banned.finish_reason == "error"
    assert "allowed_token_ids, bad_words and min_tokens leave nothing to draw" in str(banned.detail)


@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf])
def test_logits_that_mean_nothing_end_their_own_sequence_alone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, value: float
) -> None:
    params = [SamplingParams(temperature=t, max_tokens=8, logprobs=2, ignore_eos=True, seed=1) for t in (0, 0.8, 1)]
    expected = rig.generate(*params)
    logits, calls = rig.decoder.logits, []

    def breaks(batch: Any, places: Any) -> Any:
        made = logits(batch, places)
        calls.append(len(places))
        if len(calls) == 4:
            made.array[1] = value
        return made

    monkeypatch.setattr(rig.decoder, "logits", breaks)
    first, broken, third = rig.generate(*params)
    assert (first, third) == (expected[0], expected[2])
    assert (broken.finish_reason, broken.token_ids) == ("error", expected[1].token_ids[:3])
    assert broken.detail is not None
    assert f"after {len(PROMPT) + 3} tokens are not finite (NaN or infinite)" in broken.detail
    assert rig.generate(*params) == expected, "nothing of it is left"


def test_of_several_samples_the_sound_ones_go_on(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(temperature=1, n=2, max_tokens=5, ignore_eos=True, seed=1)
    ((expected, _),) = [output.outputs for output in rig.outputs(params)]
    sample = rig.backend.sample  # type: ignore[attr-defined]

    def breaks(logits: Any, batch: Any) -> Any:
        logits[(batch.sample_index == 1) & (batch.draw_index == 2)] = np.nan
        return sample(logits, batch)

    monkeypatch.setattr(rig.backend, "sample", breaks)
    ((sound, broken),) = [output.outputs for output in rig.outputs(params)]
    assert (sound.token_ids, sound.finish_reason) == (expected.token_ids, "length")
    assert (len(broken.token_ids), broken.finish_reason) == (2, "error")


def test_a_prompt_that_cannot_be_scored_ends_with_an_error(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(max_tokens=0, prompt_logprobs=1)
    logits = rig.decoder.logits

    def breaks(batch: Any, places: Any) -> Any:
        made = logits(batch, places)
        made.array[: len(places)][np.array(places) == 6] = np.nan
        return made

    monkeypatch.setattr(rig.decoder, "logits", breaks)
    (output,) = rig.outputs(params)
    assert output.outputs[0].finish_reason == "error"
    assert "logits after 7 tokens are not finite" in str(output.outputs[0].detail)


def test_what_a_failed_step_left_undone_touches_nobodys_blocks(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two steps in flight a sequence whose first step failed is in the next one, too. Its row still has the block
    table of the request before, and those blocks belong to another one by now."""
    greedy = SamplingParams(temperature=0, logprobs=5)
    prompts = [tuple(range(first, first + 20)) for first in (5, 100, 200)]

    def new(row: int, prompt: tuple[int, ...]) -> NewRequest:
        return NewRequest(row, prompt, len(prompt), greedy, 0, 0)

    def whole(number: int, row: int, blocks: tuple[int, ...]) -> Chunk:
        return Chunk(number, row, 0, 20, blocks, True)

    def said(*plans: BatchPlan) -> list[StepResult]:
        return [rig.runner.submit(plan).result() for plan in plans]

    first = BatchPlan(0, (whole(0, 0, (5, 6)),), (new(0, prompts[0]),))
    second = BatchPlan(1, (whole(1, 1, (5, 6)),), (new(1, prompts[1]),), freed_rows=(0,))
    third = BatchPlan(3, (Chunk(1, 1, 20, 1, (), True),))
    *_, expected = said(first, second, third)

    said(first, second)
    with monkeypatch.context() as patch:
        patch.setattr(rig.backend, "prepare", lambda *given: 1 / 0)
        (failed,) = said(BatchPlan(2, (whole(2, 0, (7, 8)),), (new(0, prompts[2]),)))
    assert failed.error is not None
    (after,) = said(BatchPlan(3, (Chunk(1, 1, 20, 1, (), True), Chunk(2, 0, 20, 1, (), True))))
    assert after.sampled[0] == expected.sampled[0]
    (again,) = said(BatchPlan(5, (whole(2, 0, (7, 8)),), (new(0, prompts[2]),), freed_rows=(0,)))
    assert again.sampled[0].token_ids == (int(np.argmax(rig.logits(list(prompts[2]))[-1])),), "taken anew it counts"
