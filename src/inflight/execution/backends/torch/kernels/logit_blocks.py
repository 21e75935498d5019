"""One read of the logits: masked, penalised and scaled by the way, and of every block the best tokens and the mass.

Each block of a row is a program of its own, so that a sum depends on its row alone; `sampling` adds biases before,
since they are few. Which tokens came before is counted first, where a penalty asks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from inflight.execution.backends.torch.kernels.draw_functions import LOWEST, key_of, weight_of
from inflight.execution.backends.torch.sampling_tensors import Draws

BLOCK = 1024  # logits of a program
HISTORY = 1024  # tokens of a program that counts
_OF_PROMPT = tl.constexpr(1 << 30)  # of a count: the token stands in the prompt


class Blocks(NamedTuple):
    """Each block's best tokens of a row (keys, `draw_functions`), and Σ exp of its logits relative to the best."""

    best: Tensor  # int64[S, blocks, top]
    mass: Tensor  # float64[S, blocks]

    @property
    def per_row(self) -> int:
        """Keys of a row."""
        return self.best.shape[1] * self.best.shape[2]

    @property
    def tile(self) -> int:
        return int(triton.next_power_of_2(self.per_row))


def read_untouched(logits: Tensor, top: int) -> Blocks:
    """Return the `top` best, one at least, of each block of logits float32[S, V] as they are."""
    blocks = _empty(logits, max(top, 1))
    _read[_grid(logits)](
        logits, None, None, 0, None, None, None, None, None, *blocks, logits.shape[1], blocks.best.shape[2], BLOCK,
        enable_fp_fusion=False,
    )  # fmt: skip
    return blocks


def read_for_draw(logits: Tensor, draws: Draws) -> Blocks:
    """Return the best of each block of logits float32[S, V] once they are biased, masked and penalised. The logits are
    changed in place, and scaled by temperature, except where all rows are greedy, which need no mass either."""
    settings, rows, allowed = draws.settings, draws.rows, draws.allowed
    blocks = _empty(logits, 1)
    _read[_grid(logits)](
        logits, rows, allowed, 0 if allowed is None else allowed.shape[1],
        _counted(logits, draws) if draws.needs_history else None,
        settings.repetition_penalty, settings.frequency_penalty, settings.presence_penalty,
        None if draws.greedy else settings.temperature, blocks.best, None if draws.greedy else blocks.mass,
        logits.shape[1], 1, BLOCK,
        enable_fp_fusion=False,
    )  # fmt: skip
    return blocks


def _grid(logits: Tensor) -> tuple[int, int]:
    return logits.shape[0], triton.cdiv(logits.shape[1], BLOCK)


def _empty(logits: Tensor, top: int) -> Blocks:
    rows, blocks = _grid(logits)
    kept = triton.next_power_of_2(top)  # so that few kernels are compiled
    return Blocks(
        torch.empty(rows, blocks, kept, dtype=torch.int64, device=logits.device),
        torch.empty(rows, blocks, dtype=torch.float64, device=logits.device),
    )


def _counted(logits: Tensor, draws: Draws) -> Tensor:
    """How often each token stands in a draw's output, and whether in its prompt: int32[S, V]."""
    counts = torch.zeros(logits.shape, dtype=torch.int32, device=logits.device)
    _count[len(counts), triton.cdiv(draws.longest_history, HISTORY)](
        draws.tokens, draws.tokens.shape[1], draws.rows, draws.num_tokens, draws.settings.prompt_length, counts,
        logits.shape[1], HISTORY,
    )  # fmt: skip
    return counts


@triton.jit
def _count(tokens, stride, rows, num_tokens, prompt_length, counts, vocabulary, BLOCK: tl.constexpr):
    draw = tl.program_id(0)
    row = tl.load(rows + draw).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_known = place < tl.load(num_tokens + draw)
    is_output = place >= tl.load(prompt_length + row)
    at = counts + draw.to(tl.int64) * vocabulary + tl.load(tokens + row * stride + place, mask=is_known, other=0)
    tl.atomic_add(at, 1, mask=is_known & is_output)
    tl.atomic_or(at, _OF_PROMPT, mask=is_known & ~is_output)


@triton.jit
def _read(
    logits, rows, allowed, words, counts, repetition_penalty, frequency_penalty, presence_penalty, temperature,
    best, mass, vocabulary, TOP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """words: int32 of `allowed` a row. allowed, counts, temperature, mass: None where nothing asks for them."""
    draw, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    inside = ids < vocabulary
    at = draw * vocabulary + ids
    x = tl.load(logits + at, mask=inside, other=float("-inf"))
    x = tl.where(x != x, float("-inf"), x)
    if allowed is not None:
        word = tl.load(allowed + draw * words + (ids >> 5), mask=inside, other=0)
        x = tl.where((word >> (ids & 31)) & 1 != 0, x, float("-inf"))
    if counts is not None:
        row = tl.load(rows + draw)
        count = tl.load(counts + at, mask=inside, other=0)
        x = _penalised(
            x, count,
            tl.load(repetition_penalty + row), tl.load(frequency_penalty + row), tl.load(presence_penalty + row),
        )  # fmt: skip
    keys = tl.where(inside, key_of(x, ids), LOWEST)
    if temperature is not None:
        factor = tl.load(temperature + tl.load(rows + draw))
        x = tl.div_rn(x, tl.where(factor > 0, factor, 1.0))
        tl.store(logits + at, x, mask=inside)
    first = tl.program_id(0) * tl.num_programs(1) + block
    if mass is not None:
        weights = weight_of(x, tl.max(x, axis=0))
        tl.store(mass + first, tl.sum(tl.where(inside & (x > float("-inf")), weights, 0.0), axis=0))
    for place in range(TOP):
        largest = tl.max(keys, axis=0)
        tl.store(best + first * TOP + place, largest)
        keys = tl.where(keys == largest, LOWEST, keys)


@triton.jit
def _penalised(x, count, repetition, frequency, presence):
    """Each step in float32, as everywhere. A count of the output leaves out whether the prompt has the token, too."""
    repeated = tl.where(x > 0, tl.div_rn(x, repetition), x * repetition)
    x = tl.where(count != 0, repeated, x)
    output = count & (_OF_PROMPT - 1)
    x = x - frequency * output.to(tl.float32)
    return tl.where(output > 0, x - presence, x)
