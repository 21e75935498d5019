"""The null backend under the real model runner, scheduler and loop: the protocol is all that they need."""

from __future__ import annotations

from pathlib import Path

import pytest

from inflight.build import build_engine
from inflight.config.engine import EngineSettings
from inflight.core.types.events import TokensEvent
from inflight.core.types.request import Request
from inflight.core.types.sampling import SamplingParams
from inflight.execution.backends import open_backend
from inflight.execution.backends.null import NullBackend
from inflight.execution.backends.protocol import Backend

VOCABULARY = 384


def expected(prompt: list[int], count: int) -> list[int]:
    known = list(prompt)
    for _ in range(count):
        known.append((31 * known[-1] + len(known)) % VOCABULARY)
    return known[len(prompt) :]


def test_it_is_a_backend() -> None:
    assert isinstance(open_backend("float32", 1, "null"), Backend)
    assert isinstance(open_backend("float32", 1, "null"), NullBackend)


@pytest.mark.parametrize(
    "settings", [{}, {"max_num_seqs": 4, "max_num_batched_tokens": 7}, {"num_blocks": 9, "watermark": 0.0}]
)
def test_a_whole_engine_runs_over_it(tiny: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, object]) -> None:
    """In small chunks, and in so little memory that sequences are preempted and computed again."""
    monkeypatch.setenv("INFLIGHT_ISA", "null")
    engine = build_engine(EngineSettings(model=str(tiny), **settings))  # type: ignore[arg-type]
    prompts = [[(7 * n + i) % VOCABULARY for i in range(10 + n)] for n in range(6)]
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, prompt_logprobs=0)
    for n, prompt in enumerate(prompts):
        engine.loop.add(Request(request_id=str(n), prompt_token_ids=tuple(prompt), params=params, seed=0))
    said: dict[str, list[int]] = {str(n): [] for n in range(6)}
    for event in engine.loop.run():
        if isinstance(event, TokensEvent):
            said[event.request_id] += event.token_ids
    assert said == {str(n): expected(prompt, 40) for n, prompt in enumerate(prompts)}
    engine.loop.close()
