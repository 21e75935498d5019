"""Draws on a device from the arrays that the host's backends take, and what both make of the same rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from inflight.execution.backends.protocol import Array, SampledBatch, SamplingBatch
from inflight.execution.backends.torch.sampling_tensors import BadSequences, Bias, Drawn, Draws, DrawSettings
from inflight.execution.ops import sampling as reference

from ..material import normal, sampling

Sample = Callable[[torch.Tensor, Draws], Drawn]
_FLOATS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


def draws_of(batch: SamplingBatch, device: torch.device, bad: BadSequences | None = None) -> Draws:
    """One slot a draw, in falling order, so that rows are not draws."""
    count = len(batch.temperature)
    histories = [np.zeros(1, np.int32) if one is None else one for one in batch.histories]
    num_tokens = np.array([len(one) for one in histories], np.int32)
    tokens = np.full((count, max(map(len, histories), default=0) + 3), -1, np.int32)  # -1: may not be read
    for line, history in zip(tokens, histories, strict=True):
        line[: len(history)] = history
    prompt_length = (num_tokens - batch.draw_index.astype(np.int64)).astype(np.int32)  # wraps, where no history counts

    def of_slots(values: Array) -> torch.Tensor:
        return torch.from_numpy(values[::-1].copy()).to(device)

    def of_draws(values: Array) -> torch.Tensor:
        return torch.from_numpy(np.array(values)).to(device)

    settings = DrawSettings(
        **{name: of_slots(getattr(batch, name)) for name in _FLOATS},
        top_k=of_slots(batch.top_k),
        seed=of_slots(batch.seed.view(np.int64)),
        sample_index=of_slots(batch.sample_index.astype(np.int64)),
        prompt_length=of_slots(prompt_length),
    )
    bias = Bias(*map(of_draws, (batch.bias_offsets, batch.bias_ids, batch.bias_values)))
    allowed = next((np.full_like(one, 2**32 - 1) for one in batch.allowed if one is not None), None)
    if allowed is not None:
        allowed = np.stack([allowed if one is None else one for one in batch.allowed]).view(np.int32)
    return Draws(
        settings,
        rows=of_draws(np.arange(count, dtype=np.int32)[::-1]),
        num_tokens=of_draws(num_tokens),
        tokens=of_slots(tokens),
        needs_history=any(one is not None for one in batch.histories),
        filters=bool(((batch.top_k > 0) | (batch.top_p < 1) | (batch.min_p > 0)).any()),
        greedy=not (batch.temperature > 0).any(),
        longest_history=int(num_tokens.max(initial=0)),
        bias=bias if len(batch.bias_ids) else None,
        bad=bad,
        allowed=None if allowed is None else of_draws(allowed),
        want_logprobs=bool(batch.want_logprobs.any()),
        top_logprobs=int(np.where(batch.want_logprobs, batch.top_logprobs, 0).max(initial=0)),
    )


def compared(sample: Sample, device: torch.device, logits: Array, **given: Any) -> tuple[Drawn, SampledBatch]:
    """Sample the same rows by `sample` and the definition; assert that they agree."""
    batch = sampling(len(logits), **given)
    got = sample(torch.from_numpy(logits.copy()).to(device), draws_of(batch, device))
    kept = logits.copy()
    want = reference.sample(kept, batch)
    np.testing.assert_array_equal(got.token_ids.cpu().numpy(), want.token_ids)
    if not batch.want_logprobs.any():
        assert got.logprobs is None
        return got, want
    assert got.logprobs is not None and got.top_ids is not None and got.top_logprobs is not None
    wants = batch.want_logprobs
    np.testing.assert_allclose(got.logprobs.cpu().numpy()[wants], want.logprobs[wants], rtol=1e-6, atol=1e-6)
    assert got.top_ids.shape == got.top_logprobs.shape == want.top_ids.shape
    for row in np.flatnonzero(wants):
        n = min(int(batch.top_logprobs[row]), logits.shape[1])
        np.testing.assert_array_equal(got.top_ids.cpu().numpy()[row, :n], want.top_ids[row, :n])
        np.testing.assert_allclose(
            got.top_logprobs.cpu().numpy()[row, :n], want.top_logprobs[row, :n], rtol=1e-6, atol=1e-6
        )
    return got, want


def bad_words(rows: int = 60) -> tuple[Array, SamplingBatch, BadSequences, list[list[int]]]:
    """Logits, rows of few different tokens with sequences of those, and which tokens these ban in each."""
    rng = np.random.default_rng(11)
    prompts = rng.integers(1, 6, rows)
    lengths = prompts + rng.integers(0, 6, rows)
    histories = [rng.integers(0, 3, n).astype(np.int32) for n in lengths]
    sequences = [[rng.integers(0, 3, rng.integers(2, 5)).tolist() for _ in range(row % 7)] for row in range(rows)]
    banned = []
    for history, prompt, of_row in zip(histories, prompts, sequences, strict=True):
        output = history[prompt:].tolist()
        banned.append([one[-1] for one in of_row if len(output) >= len(one) - 1 and output[1 - len(one) :] == one[:-1]])
    flat = [one for of_row in sequences for one in of_row]
    bad = BadSequences(
        torch.tensor(np.cumsum([0, *map(len, sequences)]), dtype=torch.int32),
        torch.tensor(np.cumsum([0, *map(len, flat)]), dtype=torch.int32),
        torch.tensor([token for one in flat for token in one], dtype=torch.int32),
    )
    batch = sampling(rows, histories=histories, prompt_lengths=prompts, draw_index=lengths - prompts)
    return normal(2, rows, 3), batch, bad, banned


def penalties(rows: int) -> dict[str, Any]:
    """Settings of rows with penalties, biases and log-probabilities, of which every third has no history."""
    rng = np.random.default_rng(3)
    histories = [None if r % 3 == 0 else rng.integers(0, 40, 60 + r).astype(np.int32) for r in range(rows)]
    prompts, has = np.where(np.arange(rows) % 2, 30, 60), np.array([one is not None for one in histories])
    return {
        "seed": np.arange(rows),
        "histories": histories,
        "prompt_lengths": prompts,
        "draw_index": np.where(has, 60 + np.arange(rows) - prompts, 11),
        "repetition_penalty": np.where(has, 1.3, 1),
        "presence_penalty": np.where(has, 0.4, 0),
        "frequency_penalty": np.where(has, np.linspace(-0.5, 0.5, rows), 0),
        "bias_offsets": (np.arange(rows + 1) * 2).astype(np.int32),
        "bias_ids": rng.integers(0, 50, 2 * rows).astype(np.int32),
        "bias_values": np.where(np.arange(2 * rows) % 3, 2.5, -np.inf).astype(np.float32),
        "want_logprobs": True,
        "top_logprobs": np.arange(rows),
    }
