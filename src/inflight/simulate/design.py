"""The steps that a calibration measures: plans made by hand for an executor, without a scheduler.

A round starts all rows, empty, with its first step. Their contexts grow by prompt chunks of many lengths, fewer rows to
each higher level; at each level decodes of many widths run on the contexts that are there, alone and beside chunks.
Rounds are alike, so that each step comes once in every round, at another time. Knows plans and rows; not what a step
costs.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from inflight.core.types.plan import BatchPlan, Capacity, Chunk, NewRow
from inflight.core.types.sampling import SamplingParams

_GREEDY = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=None)
_LEVELS = (64, 256, 1024, 4096)  # tokens of context
_PROMPT_ROOM = 2  # a row's prompt is this part of its positions; what it samples has the rest


@dataclass(frozen=True, slots=True)
class Design:
    """budget: most tokens of a step. tokens: of prompts to compute in one round, about."""

    capacity: Capacity
    budget: int
    tokens: int

    def levels(self) -> list[tuple[int, int]]:
        """(context, rows that reach it): the lowest with all rows, the higher ones with what tokens are left."""
        longest = self.capacity.max_model_len // _PROMPT_ROOM * 3 // 4  # decodes go on from there
        blocks = self.capacity.num_blocks // len(self.capacity.windows)  # of a KV group
        left = min(self.tokens, blocks * self.capacity.block_size // 2)
        lowest = max(1, min(_LEVELS[0], longest, left // 2 // self.capacity.max_rows))
        found = [(lowest, self.capacity.max_rows)]
        left -= lowest * self.capacity.max_rows
        for level in _LEVELS[1:]:
            (below, rows), context = found[-1], min(level, longest)
            if context - below < 16 or left < context - below:
                break
            rows = min(rows, max(1, left // 2 // (context - below)))
            found.append((context, rows))
            left -= rows * (context - below)
        return found

    def widths(self) -> list[int]:
        """Of decode steps: doubling, half-way, and all rows."""
        most = min(self.capacity.max_rows, self.budget)
        found = {round(base * 2**power) for base in (1, 1.5) for power in range(12)} | {most}
        return sorted(one for one in found if one <= most)

    def lengths(self) -> list[int]:
        """Of prompt chunks."""
        return [one for one in (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512) if one < self.budget] + [self.budget]

    def round(self, first_step: int, freed: tuple[int, ...]) -> Iterator[BatchPlan]:
        """freed: rows of the round before. What would not fit into rows and blocks any more is left out."""
        device = _Device(self.capacity, first_step, freed)
        for decodes, prompts in self._sizes(device):
            if device.fits(decodes, prompts):
                yield device.plan(decodes, prompts)

    def _sizes(self, device: _Device) -> Iterator[tuple[list[int], dict[int, int]]]:
        """Rows that decode, and rows with the prompt tokens that they compute."""
        lengths = itertools.cycle(self.lengths())
        for context, rows in self.levels():
            for row in range(rows):
                left = context - device.contexts[row]
                while left > 0:
                    length = min(left, next(lengths))
                    left -= length
                    yield [], {row: length}
            for width in self.widths():
                yield list(range(width)), {}
            yield from self._mixed(device)

    def _mixed(self, device: _Device) -> Iterator[tuple[list[int], dict[int, int]]]:
        """Decodes beside a chunk of the row whose context is shortest."""
        rows = self.capacity.max_rows
        for width in sorted({rows // 8, rows // 2, rows - 1} - {0}):
            for length in (8, 32, self.budget - width):
                if 1 < length <= self.budget - width:
                    grower = min(range(width, rows), key=lambda row: device.contexts[row])
                    yield list(range(width)), {grower: length}


class _Device:
    """Rows and blocks of an executor that nobody else uses."""

    def __init__(self, capacity: Capacity, first_step: int, freed: tuple[int, ...]):
        self.contexts = [0] * capacity.max_rows  # tokens computed
        self._capacity = capacity
        self._groups = len(capacity.windows)
        self._freed = freed
        self._started = False
        self._step = first_step
        self._blocks = [0] * capacity.max_rows
        self._next_block = 0
        self.longest = min(capacity.max_model_len // _PROMPT_ROOM, 2 * _LEVELS[-1])
        rng = random.Random(0)
        self._prompt = tuple(rng.randrange(capacity.vocab_size) for _ in range(self.longest))

    def fits(self, decodes: list[int], prompts: dict[int, int]) -> bool:
        ends = {row: self.contexts[row] + prompts.get(row, 1) for row in (*decodes, *prompts)}
        blocks = sum(-(-end // self._capacity.block_size) - self._blocks[row] for row, end in ends.items())
        in_all = self._next_block + blocks * self._groups
        return max(ends.values()) < self.longest and in_all <= self._capacity.num_blocks

    def plan(self, decodes: list[int], prompts: dict[int, int]) -> BatchPlan:
        new_rows = () if self._started else tuple(self._new(row) for row in range(self._capacity.max_rows))
        self._started = True
        chunks = [self._chunk(row, 1, True) for row in decodes]
        chunks += [self._chunk(row, length, False) for row, length in prompts.items()]
        plan = BatchPlan(self._step, tuple(chunks), new_rows, self._freed)
        self._freed = ()
        self._step += 1
        return plan

    def _chunk(self, row: int, length: int, sample: bool) -> Chunk:
        start = self.contexts[row]
        self.contexts[row] = start + length
        missing = -(-self.contexts[row] // self._capacity.block_size) - self._blocks[row]
        self._blocks[row] += missing
        new = [self._take(missing) for _ in range(self._groups)]  # all of them: what windows pass by is not taken again
        return Chunk(row, row, start, length, new[0], sample, window_blocks=tuple(new[1:]))

    def _take(self, blocks: int) -> tuple[int, ...]:
        self._next_block += blocks
        return tuple(range(self._next_block - blocks, self._next_block))

    def _new(self, row: int) -> NewRow:
        return NewRow(row, self._prompt, self.longest, _GREEDY, seed=0, sample_index=0)
