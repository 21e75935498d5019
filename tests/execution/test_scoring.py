"""Prompt scores against `transformers`, and against the plain decoder where slabs and passes cut them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inflight.core.types.plan import BatchPlan, Chunk, NewRequest
from inflight.core.types.sampling import SamplingParams, TokenLogprob
from inflight.execution.passes import joined

from .conftest import OracleOf
from .driver import backends
from .test_model import BACKENDS, DISTINCT
from .test_runner import Rig

NAMES = backends()


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """float32[T, V] → float64[T, V]."""
    exact = logits.astype(np.float64) - logits.max(1, keepdims=True)
    return exact - np.log(np.exp(exact).sum(1, keepdims=True))


def compare(prompt: np.ndarray, entries: list[TokenLogprob], expected: np.ndarray, top: int, tolerance: float) -> None:
    """expected: log-probabilities after every prompt token, float64[T, V]."""
    assert [entry.token_id for entry in entries] == prompt[1:].tolist()
    for position, entry in enumerate(entries):
        assert entry.logprob == pytest.approx(expected[position, entry.token_id], abs=tolerance)
        values = [value for _, value in entry.top]
        assert values == pytest.approx(np.sort(expected[position])[::-1][:top], abs=tolerance)
        assert values == sorted(values, reverse=True)
        assert values == pytest.approx([expected[position, token] for token, _ in entry.top], abs=tolerance)


@pytest.mark.parametrize("isa", BACKENDS)
@pytest.mark.parametrize("variant", DISTINCT)
def test_scores_are_the_oracles(oracle_of: OracleOf, variant: str, isa: str) -> None:
    """Over the whole of a prompt as long as the model allows, to its last token; in two chunks."""
    oracle = oracle_of(variant)
    params = SamplingParams(max_tokens=0, prompt_logprobs=5)
    (output,) = Rig(oracle.folder, isa).outputs(params, prompt=tuple(oracle.prompt.tolist()))
    assert len(oracle.prompt) == 160 and output.outputs[0].token_ids == []
    assert output.prompt_token_logprobs is not None
    compare(oracle.prompt, output.prompt_token_logprobs, log_softmax(oracle.logits), 5, 2e-3)


@pytest.fixture(params=NAMES[:2])
def rigs(request: pytest.FixtureRequest, tiny: Path) -> Iterator[tuple[Rig, Rig]]:
    """Logits three rows at a time, and sixty-four."""
    yield Rig(tiny, request.param, logit_rows=3), Rig(tiny, request.param, logit_rows=64)


def new(row: int, tokens: tuple[int, ...], **settings: Any) -> NewRequest:
    return NewRequest(row, tokens, len(tokens), SamplingParams(temperature=0, **settings), 0, 0)


def test_chunks_that_score_beside_others_in_slabs(rigs: tuple[Rig, Rig]) -> None:
    """Parts of two prompts are scored, in one pass with a third that only samples; slabs change no bit."""
    prompts = [tuple(range(n, n + length)) for n, length in ((5, 14), (90, 9), (200, 11))]
    rows = (new(0, prompts[0], prompt_logprobs=2), new(1, prompts[1]), new(2, prompts[2], prompt_logprobs=0))
    chunks = (
        Chunk(10, 0, 0, 14, (1,), True, score=range(4, 13)),
        Chunk(11, 1, 0, 9, (2,), True),
        Chunk(12, 2, 0, 7, (3,), False, score=range(7)),
    )
    narrow, wide = (rig.runner.submit(BatchPlan(0, chunks, rows)).result() for rig in rigs)
    assert narrow.error is None
    assert (narrow.scored, narrow.sampled) == (wide.scored, wide.sampled)
    assert [(one.sequence_id, one.start, len(one.logprobs)) for one in narrow.scored] == [(10, 5, 9), (12, 1, 7)]
    assert [one.sequence_id for one in narrow.sampled] == [10, 11]
    for one, prompt, first, top in zip(narrow.scored, (prompts[0], prompts[2]), (4, 0), (2, 0), strict=True):
        expected = log_softmax(rigs[0].logits(list(prompt)))
        part = np.array(prompt[first : one.start + len(one.logprobs)])
        compare(part, list(one.logprobs), expected[first:], top, 1e-4)


def test_a_chunk_of_several_passes_yields_one_entry(tiny: Path) -> None:
    """The decoder takes 128 tokens at a time; the whole prompt is one chunk."""
    prompt = tuple(np.random.default_rng(2).integers(0, 384, 190).tolist())
    chunk = Chunk(7, 0, 0, 190, tuple(range(12)), True, score=range(189))
    rig = Rig(tiny, NAMES[-1])
    result = rig.runner.submit(BatchPlan(0, (chunk,), (new(0, prompt, prompt_logprobs=1),))).result()
    assert result.error is None
    (one,) = result.scored
    assert (one.sequence_id, one.start, len(one.logprobs)) == (7, 1, 189)
    compare(np.array(prompt), list(one.logprobs), log_softmax(rig.logits(list(prompt))), 1, 1e-4)


def test_nothing_scored_is_nothing_reported(tiny: Path) -> None:
    rig = Rig(tiny, NAMES[-1])
    result = rig.runner.submit(BatchPlan(0, (Chunk(0, 0, 0, 3, (0,), True),), (new(0, (1, 2, 3)),))).result()
    assert result.scored == () == joined([])
