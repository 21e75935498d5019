"""Kernels on states: against the definitions, the same bits however tokens come, what they take of a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from breadth import first_of

from inflight.execution import ops
from inflight.execution.backends.protocol import LayerState
from inflight.execution.backends.torch.tensors import LayerStates, PassTensors, StateTensors

from ..recurrent import HEADS, WIDE, numbers
from .compiled import Compiler
from .launched import LAYER, Given, define, launch
from .recurrent_tensors import TensorLayer

CASES = [("convolve", WIDE), ("convolve_gated", WIDE), *(("delta", one) for one in HEADS)]
# (row, start, length) of each chunk, and (position, slot) of each one's snapshots. The last steps have a token of each.
STEPS = [
    ([(3, 0, 4), (0, 0, 1), (5, 0, 2)], []),
    ([(3, 4, 7), (0, 1, 1), (5, 2, 5)], [[(5, 2), (9, 0), (11, 2)], [], [(4, 1)]]),
    ([(0, 2, 1), (3, 11, 1), (4, 0, 1)], [[(3, 0)], [], []]),
    ([(4, 1, 1)], []),
]


@pytest.mark.parametrize(
    ("operation", "state", "act"),
    [
        *[(*CASES[0], torch.float16), *[(*one, torch.float32) for one in CASES[:3]]],
        *first_of([*[(*one, torch.float16) for one in CASES[1:]], *[(*one, torch.float32) for one in CASES[3:]]], 0),
    ],
)
def test_the_implementations_agree(operation: str, state: LayerState, act: torch.dtype, device: torch.device) -> None:
    ours, theirs = (TensorLayer(one, state, act, device) for one in (launch, define))
    tolerance = 1e-5 if act == torch.float32 else 1e-3
    for at, (runs, snapshots) in enumerate(STEPS):
        x = numbers(state, operation, 10 + at, sum(count for _, _, count in runs))
        found, expected = (getattr(one, operation)(runs, x, snapshots=snapshots) for one in (ours, theirs))
        assert np.abs(found - expected).max() <= np.abs(expected).max() * tolerance
        for left, right in zip(ours.states, theirs.states, strict=True):
            torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize(
    ("operation", "state", "act"),
    first_of([(*one, act) for act in (torch.float32, torch.float16) for one in CASES[:3]], 3),
)
def test_bits_do_not_depend_on_chunks_company_or_snapshots(
    operation: str, state: LayerState, act: torch.dtype, device: torch.device
) -> None:
    x, others = numbers(state, operation, 5, 12), numbers(state, operation, 6, 3)
    whole = getattr(TensorLayer(launch, state, act, device), operation)([(1, 0, 12)], x)
    layer, at = TensorLayer(launch, state, act, device), 0
    for count in (1, 5, 2, 1, 3):
        mixed = np.concatenate([others[:1], x[at : at + count], others[1:]])
        due = [[], [(at + count, 1)], []]
        found = getattr(layer, operation)([(4, 0, 1), (1, at, count), (0, 0, 2)], mixed, snapshots=due)
        at += count
        assert np.array_equal(found[1 : 1 + count], whole[at - count : at]), f"to {at}"
        if at == 8:
            layer.begin(1, 1)


def test_no_token_is_no_work(device: torch.device) -> None:
    for operation, state in CASES:
        x = numbers(state, operation, 1, 0)
        assert not getattr(TensorLayer(launch, state, torch.float32, device), operation)([(0, 0, 0)], x).size


@pytest.mark.parametrize("tokens", first_of([8, 200]), ids=["decode", "chunks"])
def test_what_they_take_of_a_gpu(compiler: Compiler, tokens: int) -> None:
    """Compile for Qwen3-Next: 16 heads of keys, 32 of values, 128 numbers each, a convolution of 4."""
    heads, channels, inner = 32, 2 * 16 * 128 + 32 * 128, 32 * 128
    states = LayerStates(_meta(9, 3, channels, kind=torch.bfloat16), _meta(9, heads, 128, 128))
    pass_, moves = _pass(tokens, chunks=8)
    given = Given(pass_, states=states, moves=moves, act=torch.bfloat16)
    x, taps = _meta(tokens, channels), _meta(4 * channels)
    compiler.fits(lambda: launch(ops.convolve, given, x, LAYER, taps, x), registers=48, shared=0)
    wide, gated = _meta(tokens, 3 * channels), _meta(tokens, channels, kind=torch.bfloat16)
    compiler.fits(lambda: launch(ops.convolve_gated, given, wide, LAYER, taps, None, gated), registers=72, shared=0)
    inputs = x, _meta(tokens, channels + inner), _meta(tokens, 2 * heads)
    of_layer, out = (
        (LAYER, 16, _meta(heads), _meta(heads), _meta(128), 1e-6),
        _meta(tokens, inner, kind=torch.bfloat16),
    )
    compiler.fits(lambda: launch(ops.delta_rule, given, *inputs, *of_layer, out), registers=192, shared=1024)


def _meta(*shape: int, kind: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=kind, device="meta")


def _pass(tokens: int, chunks: int) -> tuple[PassTensors, StateTensors]:
    def whole(*shape: int) -> torch.Tensor:
        return _meta(*shape, kind=torch.int32)

    of_tokens, of_chunks = [whole(tokens) for _ in range(3)], (whole(chunks), whole(chunks + 1), whole(chunks))
    pass_ = PassTensors(*of_tokens, *of_chunks, whole(1, 9, 8), 16, tokens, 4096)
    return pass_, StateTensors(whole(chunks + 1), whole(2 * chunks), whole(2 * chunks))
