"""Attention in PyTorch against the formula in numpy, query by query.

Tolerances: products and sums differ in the order of float32 additions; in bf16 probabilities are rounded relative to
the largest score on both sides, and what comes out is rounded once.
"""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
import torch

from inflight.execution.backends.bf16 import round_to_bf16
from inflight.execution.backends.torch.eager.attention import attention
from inflight.execution.ops.attention import attend, seen_from

from ..material import Array, normal
from .cached_tensors import CachedTensors, Chunk, Held

LENGTHS = [1, 16, 17, 70, 150]
WHOLE = [(i, 0, n) for i, n in enumerate(LENGTHS)]


def attended(
    case: CachedTensors, chunks: list[Chunk], heads: int, window: int = 0, soft_cap: float = 0, sinks: bool = False
) -> tuple[Array, Array]:
    """Return the operation's result, and the formula's: float32[T, H, M] both."""
    of_heads = 3 * normal(8, heads) if sinks else None
    width, q = case.value_dim or case.key_dim - 6, case.queries(chunks, heads)
    out = torch.full((len(q), heads * width), torch.nan, dtype=case.act)
    own = None if of_heads is None else torch.from_numpy(of_heads)
    attention(q, case.layer, 0.3, window, soft_cap, own, True, case.over(chunks), out)
    queries = q.float().numpy().reshape(len(q), case.kv_heads, -1, case.key_dim)
    shares = [None] * case.kv_heads if of_heads is None else np.split(of_heads, case.kv_heads)
    rounded = round_to_bf16 if case.act == torch.bfloat16 and case.held == "act" else np.asarray
    want, t = np.empty((len(q), case.kv_heads, heads // case.kv_heads, width), np.float32), 0
    for i, start, count in chunks:
        keys, values = case.meant[i]
        for at in range(start, start + count):
            seen = seen_from(at, window)
            for g, share in enumerate(shares):
                of_values = values[seen, g, :width]
                want[t, g] = attend(queries[t, g], keys[seen, g], of_values, 0.3, soft_cap, share, rounded)
            t += 1
    return out.float().numpy().reshape(len(q), heads, width), want.reshape(len(q), heads, width)


def close(case: CachedTensors, both: tuple[Array, Array]) -> None:
    bound = dict(atol=2e-2, rtol=2e-2) if case.act == torch.bfloat16 else dict(atol=3e-6, rtol=2e-5)
    np.testing.assert_allclose(*both, **bound)


@pytest.mark.parametrize("held", ["act", "int8", "fp8"])
@pytest.mark.parametrize("act", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kv_heads", "heads", "dims"), [(2, 2, (16, 16)), (2, 8, (32, 20)), (1, 5, (22, 0))])
def test_whole_sequences(held: Held, act: torch.dtype, kv_heads: int, heads: int, dims: tuple[int, int]) -> None:
    case = CachedTensors(LENGTHS, kv_heads, *dims, held, act)
    close(case, attended(case, WHOLE, heads))


@pytest.mark.parametrize("window", [1, 5, 16, 100])
def test_a_window_hides_what_lies_before_it_and_blocks_that_are_given_up(window: int) -> None:
    case = CachedTensors(LENGTHS)
    close(case, attended(case, WHOLE, 4, window))
    case.forget(4, (120 - window + 1) // 16)
    close(case, attended(case, [(4, 120, 30)], 4, window))


@pytest.mark.parametrize(("soft_cap", "sinks"), [(2.0, False), (0.0, True), (2.0, True)])
def test_scores_are_capped_and_sinks_take_their_share(soft_cap: float, sinks: bool) -> None:
    case = CachedTensors(LENGTHS)
    close(case, attended(case, WHOLE, 4, 0, soft_cap, sinks))


def test_decodes_beside_prompts_and_queries_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module(attention.__module__), "_QUERIES", 7)
    case = CachedTensors(LENGTHS, block_size=48)
    close(case, attended(case, [(4, 149, 1), (3, 10, 33), (0, 0, 1), (2, 15, 2)], 4))
