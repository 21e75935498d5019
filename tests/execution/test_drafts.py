"""Drafts, masks, scripts and vectors on real backends: what comes out is what comes out without them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inflight.core.policies.fcfs import Fcfs
from inflight.core.scheduling.config import SchedulerConfig
from inflight.core.scheduling.scheduler import Scheduler
from inflight.core.sequence import SequenceView
from inflight.core.speculation.speculation import Drafter, Proposal
from inflight.core.strategies.chunked import Chunked
from inflight.core.types.events import FinishedEvent, PooledEvent, TokensEvent
from inflight.core.types.executor import Executor
from inflight.core.types.plan import BatchPlan, Capacity
from inflight.core.types.request import Request
from inflight.core.types.sampling import NO_SAMPLING, PoolingParams, SamplingParams
from inflight.engine.clock import MonotonicClock
from inflight.engine.loop import EngineLoop
from inflight.engine.observers import EngineObserver
from inflight.execution.backends import open_backend
from inflight.execution.checkpoints.checkpoint import Checkpoint
from inflight.execution.memory import kv_shape
from inflight.execution.model import Model
from inflight.execution.runner import ModelRunner
from inflight.execution.weights import load_weights
from inflight.models.pooler import with_pooling
from inflight.models.registry import read_folder
from inflight.testing.eager_speculation import EagerSpeculation
from inflight.testing.scripted import ScriptedExecutor

from .driver import BLOCK, backends

SETTINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 0.9, "top_p": 0.9},
    {"temperature": 1.1, "top_k": 40, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
    {"temperature": 0.7, "logprobs": 3, "min_tokens": 20, "presence_penalty": 0.2},
    {"temperature": 0.8, "allowed_token_ids": tuple(range(40, 200))},
    {"temperature": 1.0, "logit_bias": {50: 4.0, 51: 4.0}, "logprobs": 1, "stop_token_ids": (50,)},
)


class Observed(EngineObserver):
    def __init__(self) -> None:
        self.drafted = self.steps = 0

    def planned(self, plan: BatchPlan) -> None:
        self.steps += 1
        self.drafted += sum(len(chunk.draft_token_ids) for chunk in plan.chunks)


class Remembering:
    """Drafts what was answered before, here and there something else."""

    name = "remembering"

    def __init__(self, answers: dict[tuple[int, ...], tuple[int, ...]], right: float, vocab_size: int) -> None:
        self._answers, self._right, self._vocab_size = answers, right, vocab_size
        self._chance = random.Random(1)

    def propose(self, view: SequenceView, max_drafts: int) -> Proposal:
        prompt = view.token_slice(0, view.prompt_tokens)
        rest = self._answers[prompt][view.output_tokens :][: min(max_drafts, 6)]
        token_ids = tuple(
            token if self._chance.random() < self._right else self._chance.randrange(self._vocab_size) for token in rest
        )
        return Proposal(token_ids, (self._right,) * len(token_ids))

    def finished(self, view: SequenceView) -> None:
        """It remembers already."""


class Rig:
    def __init__(self, folder: Path, isa: str, dtype: Any = "float32", max_tokens: int = 128, blocks: int = 96) -> None:
        self.model = model = with_pooling(read_folder(folder, to_run=True), "last")
        backend = open_backend(dtype, 1 if isa == "torch" else 2, isa)
        self.capacity = Capacity(blocks, BLOCK, 8, 160, model.vocab_size, embedding_size=model.hidden_size)
        weights = load_weights(model, Checkpoint(folder), backend, 160)
        self._make = lambda: ModelRunner(
            Model(model, weights, backend, max_tokens, 3),
            backend,
            backend.kv_cache(kv_shape(model, BLOCK), blocks + 1),
            self.capacity,
        )

    def run(
        self, requests: Sequence[Request], drafter: Drafter | None = None, script: Any = None
    ) -> tuple[dict[str, list[Any]], Observed]:
        """Events of each request, tokens folded; and what was planned."""
        executor: Executor = self._make()
        if script is not None:
            executor = ScriptedExecutor(executor, script)
        observed = Observed()
        speculation = None if drafter is None else EagerSpeculation(drafter)
        scheduler = Scheduler(
            SchedulerConfig(self.capacity, Chunked(64), Fcfs(), end_token_ids=frozenset({361}), speculation=speculation)
        )
        loop = EngineLoop(scheduler, executor, MonotonicClock(), observers=[observed])
        for one in requests:
            loop.add(one)
        of: dict[str, list[Any]] = {one.request_id: [] for one in requests}
        for event in loop.run():
            if isinstance(event, TokensEvent):
                logprobs = event.logprobs or (None,) * len(event.token_ids)
                of[event.request_id] += zip(event.token_ids, logprobs, strict=True)
            elif isinstance(event, FinishedEvent):
                of[event.request_id].append(event.finishes)
            else:
                of[event.request_id].append(event)
        return of, observed


def requests(**changes: Any) -> list[Request]:
    return [
        Request(
            request_id=str(number),
            prompt_token_ids=tuple(range(40 + number, 70 + 3 * number)),
            params=SamplingParams(max_tokens=40, **settings, **changes),
            seed=number,
        )
        for number, settings in enumerate(SETTINGS)
    ]


def answers(of: dict[str, list[Any]], asked: Sequence[Request]) -> dict[tuple[int, ...], tuple[int, ...]]:
    return {one.prompt_token_ids: tuple(entry[0] for entry in of[one.request_id][:-1]) for one in asked}


@pytest.fixture(params=backends()[:2])
def isa(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("right", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tokens_and_logprobs_are_those_without_drafts(tiny: Path, isa: str, dtype: str, right: float) -> None:
    """To the bit, under every setting; also where a pass holds few tokens, and memory makes sequences come again."""
    for rig in (Rig(tiny, isa, dtype), Rig(tiny, isa, dtype, max_tokens=9, blocks=24)):
        plain, before = rig.run(requests())
        drafter = Remembering(answers(plain, requests()), right, rig.model.vocab_size)
        drafted, after = rig.run(requests(), drafter)
        assert drafted == plain and after.drafted > 50
        if right == 1.0:
            assert after.steps < before.steps


def test_a_script_is_answered_and_everything_else_is_real(tiny: Path, isa: str) -> None:
    rig, asked = Rig(tiny, isa), requests(ignore_eos=True)
    said = {one.prompt_token_ids: tuple(range(100, 100 + 5 * int(one.request_id))) for one in asked}
    scripted, _ = rig.run(asked, script=lambda prompt, sample: said[prompt])
    for one in asked:
        forced, got = said[one.prompt_token_ids], answers(scripted, [one])[one.prompt_token_ids]
        assert got[: len(forced)] == forced and len(got) > len(forced)
        entries = scripted[one.request_id][: len(forced)]
        if one.params.logprobs is not None:
            assert all(entry.token_id == token and entry.logprob < 0 for token, entry in entries)
    again, observed = rig.run(
        asked, Remembering(answers(scripted, asked), 0.8, 300), lambda prompt, sample: said[prompt]
    )
    assert again == scripted and observed.drafted > 50


def test_a_vector_is_the_last_hidden_state(tiny: Path, isa: str) -> None:
    """Chunks, and others in the batch, change nothing of it, and it is what the logits are made of."""
    rig, prompt = Rig(tiny, isa), tuple(range(40, 140))

    def pooled(*lengths: int, normalize: bool = False, **changes: Any) -> list[tuple[float, ...]]:
        asked = [
            Request(
                request_id=str(number),
                prompt_token_ids=prompt[:length],
                params=NO_SAMPLING,
                pooling=PoolingParams(normalize=normalize),
            )
            for number, length in enumerate(lengths)
        ]
        of, _ = Rig(tiny, isa, **changes).run(asked)
        vectors = []
        for one in asked:
            event, finishes = of[one.request_id]
            assert isinstance(event, PooledEvent) and finishes[0].reason == "length"
            vectors.append(event.vector)
        return vectors

    (alone,) = pooled(100)
    assert pooled(3, 100, 77)[1] == alone == pooled(100, max_tokens=7)[0]
    (normalized,) = pooled(100, normalize=True)
    assert np.linalg.norm(normalized) == pytest.approx(1) and len(alone) == rig.model.hidden_size
    np.testing.assert_allclose(np.array(alone) / np.linalg.norm(alone), normalized, rtol=1e-6)
