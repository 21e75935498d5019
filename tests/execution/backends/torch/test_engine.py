"""Engines over the backend for devices: two steps in flight, drafts, swapping and every shape of batch say the tokens
of the definition, one step at a time.

Tokens are compared, greedy and drawn, with their stops; log-probabilities up to rounding, since PyTorch's products on a
CPU add up in another order for another number of rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from inflight.build import Engine, build_engine
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.events import PooledEvent, PromptScoredEvent, TokensEvent
from inflight.core.types.request import Request
from inflight.core.types.sampling import NO_SAMPLING, PoolingParams, SamplingParams
from inflight.execution import computing, ops
from inflight.execution.backends.protocol import Backend
from inflight.execution.backends.reference import ReferenceBackend
from inflight.execution.backends.torch.buckets import Buckets, row_sizes, token_sizes

from ...test_depth import SHAPES, Said, requests, run
from ...test_drafts import Remembering, Rig, answers
from ...test_drafts import requests as drafted_requests
from .opened import on_device

SCARCE: dict[str, Any] = {"max_num_seqs": 12, "num_blocks": 14, "watermark": 0.0}
SCHEDULES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"strategy": "static", "batch_size": 5, "max_wait": 0.01}, {}),
    ({"strategy": "continuous", "preemption": "swap", "swap_space": 0.001}, SCARCE),
    ({"preemption": "swap", "swap_space": 0.001}, {"enable_prefix_caching": False, **SCARCE}),
]


def opened(folder: Path, backend: Backend, scheduling: dict[str, Any] | None = None, **shape: Any) -> Engine:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(computing, "open_backend", lambda *given, **named: backend)
        settings = EngineSettings(model=str(folder), **{"device": "cpu", **shape})  # which `backend` stands in for
        return build_engine(settings, SchedulingSettings.of(**(scheduling or {})))


@pytest.fixture(scope="module")
def wanted(tiny: Path) -> dict[int, Said]:
    """Return the definition's outputs, by the seed of the requests."""
    return {seed: run(opened(tiny, ReferenceBackend("float32")), requests(seed)) for seed in (1, 2)}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("depth", [1, 2])
def test_the_tokens_of_the_definition(tiny: Path, wanted: dict[int, Said], depth: int, shape: dict[str, Any]) -> None:
    """With stop strings, samples that share a prompt, penalties, and preemption where there is little memory."""
    engine = opened(tiny, on_device(depth=depth), **shape)
    assert engine.settings["depth"].value == depth
    assert run(engine, requests(1)) == wanted[1]
    assert run(engine, requests(2)) == wanted[2], "nothing is left of the first"


@pytest.mark.parametrize(("scheduling", "shape"), SCHEDULES)
def test_other_schedules_say_the_same(
    tiny: Path, wanted: dict[int, Said], scheduling: dict[str, Any], shape: dict[str, Any]
) -> None:
    assert run(opened(tiny, on_device(depth=2), scheduling, **shape), requests(1)) == wanted[1]


@pytest.mark.parametrize(
    "buckets",
    [Buckets(row_sizes(12)), Buckets(row_sizes(12), token_sizes(32)), Buckets((), token_sizes(32))],
    ids=["rows", "separate", "alike"],
)
def test_passes_that_are_filled_up_for_graphs_say_the_same(
    tiny: Path, wanted: dict[int, Said], buckets: Buckets
) -> None:
    backend = on_device(depth=2, buckets=buckets)
    assert run(opened(tiny, backend, max_num_seqs=12), requests(1)) == wanted[1]


@pytest.mark.parametrize("right", [0.0, pytest.param(0.7, marks=pytest.mark.wide), 1.0])
def test_drafts_change_no_token(tiny: Path, right: float) -> None:
    """Under every setting; where a pass holds few tokens, and memory makes sequences come again."""
    rig, asked = Rig(tiny, "torch", max_tokens=9, blocks=24), drafted_requests()
    plain, _ = rig.run(asked)
    drafter = Remembering(answers(plain, asked), right, rig.model.vocab_size)
    drafted, observed = rig.run(asked, drafter)
    assert answers(drafted, asked) == answers(plain, asked) and observed.drafted > 50


def test_every_setting_of_a_draw_has_its_effect(tiny: Path) -> None:
    """As on the definition: filters, biases, tokens and sequences that are banned, lists of those that are allowed."""
    settings: list[dict[str, Any]] = [
        {"temperature": 0.9, "top_k": 5},
        {"temperature": 1.1, "top_p": 0.8, "min_p": 0.02},
        {"temperature": 0.7, "presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.2},
        {"temperature": 0.0, "logit_bias": {50: 8.0, 51: 7.9}},
        {"temperature": 1.0, "allowed_token_ids": tuple(range(30, 60))},
        {"temperature": 0.0, "min_tokens": 12},
        {"temperature": 0.0},
    ]
    bad = {3: ((50,),), 4: ((40, 41), (45, 46, 47), (35,)), 6: ()}
    asked = [
        Request(
            request_id=str(number),
            prompt_token_ids=tuple(range(60 + number, 75)),
            params=SamplingParams(max_tokens=24, **one),
            bad_token_ids=bad.get(number, ()),
            seed=number,
        )
        for number, one in enumerate(settings)
    ]
    want = run(opened(tiny, ReferenceBackend("float32")), asked)
    greedy = [tuple(want["6/0"][0][at : at + 2]) for at in (3, 9)]
    asked[6] = structs.replace(asked[6], bad_token_ids=tuple(greedy))  # sequences that it would say
    again = run(opened(tiny, ReferenceBackend("float32")), asked)
    assert again["6/0"] != want["6/0"]
    assert run(opened(tiny, on_device(depth=2)), asked) == again


def test_log_probabilities_scores_and_vectors(tiny: Path) -> None:
    asked = [
        Request(
            request_id="said",
            prompt_token_ids=tuple(range(40, 90)),
            params=SamplingParams(max_tokens=9, temperature=0.0, logprobs=4),
        ),
        Request(
            request_id="scored",
            prompt_token_ids=tuple(range(50, 110)),
            params=SamplingParams(max_tokens=1, prompt_logprobs=3),
        ),
        Request(
            request_id="pooled",
            prompt_token_ids=tuple(range(60, 100)),
            params=NO_SAMPLING,
            pooling=PoolingParams(normalize=True),
        ),
        Request(
            request_id="as it is",
            prompt_token_ids=tuple(range(60, 100)),
            params=NO_SAMPLING,
            pooling=PoolingParams(normalize=False),
        ),
    ]
    ours, theirs = (
        _numbers(opened(tiny, one, pooling="last"), asked) for one in (on_device(depth=2), ReferenceBackend("float32"))
    )
    assert ours.keys() == theirs.keys() == {"said", "scored", "pooled", "as it is"}
    for name, (ids, values) in theirs.items():
        assert ours[name][0] == ids
        np.testing.assert_allclose(ours[name][1], values, atol=2e-4, rtol=2e-4)
    assert np.linalg.norm(ours["pooled"][1]) == pytest.approx(1)


def test_a_step_that_breaks_ends_its_requests_and_no_others(tiny: Path) -> None:
    """The one behind it has been submitted; who comes later says what he would have said."""
    backend = on_device(depth=2)
    want = run(opened(tiny, on_device()), requests(2))
    engine, failing = opened(tiny, backend), _Failing(backend._launcher, 40)
    backend._launcher = failing  # type: ignore[assignment]
    said = run(engine, requests(1))
    assert failing.left == 0 and any(end == "error" for _, end in said.values())
    assert run(engine, requests(2)) == want


class _Failing:
    """A launcher of which the last of `left` products fails."""

    def __init__(self, launcher: Any, left: int) -> None:
        self._launcher, self.left = launcher, left

    def __getattr__(self, name: str) -> Any:
        return getattr(self._launcher, name)

    def launch(self, operation: Any, *given: Any) -> None:
        if self.left and operation is ops.linear:
            self.left -= 1
            if not self.left:
                raise RuntimeError("out of memory")
        self._launcher.launch(operation, *given)


def _numbers(engine: Engine, asked: Sequence[Request]) -> dict[str, tuple[list[int], list[float]]]:
    """Return each one's token ids and numbers, in order."""
    found: dict[str, tuple[list[int], list[float]]] = {}
    for one in asked:
        engine.loop.add(one)
    for event in engine.loop.run():
        ids, values = found.setdefault(event.request_id, ([], []))
        if isinstance(event, PooledEvent):
            values += event.vector
        entries = event.logprobs if isinstance(event, TokensEvent | PromptScoredEvent) else None
        for entry in entries or ():
            ids += [entry.token_id, *(token for token, _ in entry.top)]
            values += [entry.logprob, *(value for _, value in entry.top)]
    return found
