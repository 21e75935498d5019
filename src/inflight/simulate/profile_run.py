"""Profile runs: the steps that a calibration measures, designed for an executor, or of traffic through a whole engine.

Designed steps are plans without a scheduler: contexts grow by prompt chunks of many lengths, fewer rows to each higher
level, and at each level decodes of many widths run, alone and beside chunks. Arrivals of traffic are counted in steps,
not in seconds, so that the same traffic makes the same plans in every round, however fast the machine is.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from msgspec import structs

from inflight.core.types.features import features
from inflight.core.types.plan import BatchPlan, Capacity, Chunk, NewRequest, StepResult, WaitUntil
from inflight.core.types.request import Request, RequestRefused
from inflight.core.types.sampling import SamplingParams
from inflight.engine.loop import EngineLoop
from inflight.engine.observers import EngineObserver
from inflight.simulate.fitted import StepModelError
from inflight.simulate.steps import TimedStep
from inflight.workload.lengths import Lognormal

_GREEDY = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=None)
# Tokens of context: little in all rows, then much in as many rows as there is time for. The cost of context is
# distinguished from that of rows only where many rows have long ones; between the levels nothing bends.
_LEVELS = (16, 512, 4096)
_LEVEL_SHARE = 3 / 4  # of the prompt tokens that are left, for a level's rows
_PROMPT_ROOM = 2  # a row's prompt is this part of its positions; what it samples has the rest


@dataclass(frozen=True, slots=True)
class Design:
    """The designed steps of one round.

    budget: maximum tokens of a step. tokens: of prompts to compute in one round, about."""

    capacity: Capacity
    budget: int
    tokens: int

    def levels(self) -> list[tuple[int, int]]:
        """Return (context, rows that reach it): the lowest with all rows, the higher ones with tokens that are left."""
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
            rows = min(rows, max(1, int(left * _LEVEL_SHARE) // (context - below)))
            found.append((context, rows))
            left -= rows * (context - below)
        return found

    def widths(self) -> list[int]:
        """Return the widths of decode steps: doubling, half-way, from 16 on in quarters, and all rows."""
        widest = min(self.capacity.max_rows, self.budget)
        found = {round(base * 2**power) for base in (1, 1.5) for power in range(12)} | {widest}
        found |= {round(base * 2**power) for base in (1.25, 1.75) for power in range(4, 12)}
        return sorted(one for one in found if one <= widest)

    def lengths(self) -> list[int]:
        """Return the lengths of prompt chunks."""
        return [one for one in (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512) if one < self.budget] + [self.budget]

    def round(self, first_step: int, freed: tuple[int, ...]) -> Iterator[BatchPlan]:
        """Yield the plans. Steps that would not fit into rows and blocks any more are left out.

        freed: rows of the round before."""
        device = _Device(self.capacity, first_step, freed)
        for decodes, prompts in self._sizes(device):
            if device.fits(decodes, prompts):
                yield device.plan(decodes, prompts)

    def _sizes(self, device: _Device) -> Iterator[tuple[list[int], dict[int, int]]]:
        """Yield rows that decode, and rows with the prompt tokens that they compute."""
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
        """Yield decodes beside a chunk of the row whose context is shortest."""
        rows = self.capacity.max_rows
        for width in sorted({rows // 8, rows // 2, rows - 1} - {0}):
            for length in (8, 32, self.budget - width):
                if 1 < length <= self.budget - width:
                    grower = min(range(width, rows), key=lambda row: device.contexts[row])
                    yield list(range(width)), {grower: length}


class _Device:
    """Rows and blocks of an executor that runs these plans alone."""

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
        new_requests = () if self._started else tuple(self._new(row) for row in range(self._capacity.max_rows))
        self._started = True
        chunks = [self._chunk(row, 1, True) for row in decodes]
        chunks += [self._chunk(row, length, False) for row, length in prompts.items()]
        plan = BatchPlan(self._step, tuple(chunks), new_requests, self._freed)
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

    def _new(self, row: int) -> NewRequest:
        return NewRequest(row, self._prompt, self.longest, _GREEDY, seed=0, sample_index=0)


LONGEST_REST = 0.1  # seconds
Arrivals = list[tuple[float, Request]]  # (step before which it comes, the request)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Poisson arrivals of prompts and outputs with these lengths in tokens, at one load after the other: shares of
    about what rows and token budget can take. The seed makes lengths and gaps."""

    prompts: Lognormal
    outputs: Lognormal
    loads: tuple[float, ...]
    seed: int

    def arrivals(self, capacity: Capacity, budget: int, steps: int, run: int) -> Arrivals:
        """Return arrivals for so many steps at each load. Runs differ in the tokens of prompts alone, so that they find
        nothing of each other in a prefix cache."""
        rng, words = random.Random(self.seed), random.Random(f"run {run} of {self.seed}")
        lengths = [(self.prompts.draw(rng), self.outputs.draw(rng)) for _ in range(1000)]
        prompt, output = (sum(each) / len(lengths) for each in zip(*lengths, strict=True))
        gap = max(output / capacity.max_rows, (prompt + output) / budget)  # steps between arrivals at full load
        found: Arrivals = []
        at = 0.0
        while at < steps * len(self.loads):
            tokens, answer = lengths[len(found) % len(lengths)]
            request = Request(
                request_id=f"{self.seed}.{run}.{len(found)}",
                prompt_token_ids=tuple(words.choices(range(capacity.vocab_size), k=tokens)),
                params=SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=answer),
            )
            found.append((at, request))
            at += rng.expovariate(self.loads[int(at // steps)] / gap)
        return found


class _StepCollector(EngineObserver):
    """Collects an engine's steps, and the first error of one."""

    def __init__(self) -> None:
        self.steps: list[TimedStep] = []
        self.error: str | None = None

    def step(self, plan: BatchPlan, result: StepResult, planned: float, committed: float) -> None:
        self.error = self.error or result.error
        sequences = frozenset(chunk.sequence_id for chunk in plan.chunks)
        self.steps.append(
            TimedStep(features(plan), result.seconds, planned, committed, sequences, result.draft_seconds)
        )


class ProfileRun:
    """Runs traffic through a loop, and returns the steps that it made."""

    def __init__(self, loop: EngineLoop):
        self._loop = loop
        self._collector = _StepCollector()
        loop.add_observer(self._collector)

    def run(self, arrivals: Arrivals, max_steps: int) -> list[TimedStep]:
        """Return the first steps of the arrivals. Requests that are in flight then are aborted. Raises StepModelError
        where a step fails."""
        steps = self._collector.steps = []
        coming, skipped = deque(arrivals), 0.0  # skipped: steps in whose time no request was there
        while len(steps) < max_steps:
            early = coming[0][0] - len(steps) - skipped if coming else math.inf
            if early > 0 and not self._loop.idle:
                self._advance()
                continue
            if not coming:
                break
            if early > 0:
                self._wait(steps[-1].seconds * early if steps else 0.0)
                skipped += early
            self._add(coming.popleft()[1])
        for _, request in arrivals:
            self._loop.abort(request.request_id)
        return steps

    def _advance(self) -> None:
        outcome = self._loop.advance()
        if self._collector.error is not None:
            raise StepModelError(f"A step of the calibration failed: {self._collector.error}")
        if isinstance(outcome, WaitUntil):
            self._wait(outcome.time - self._loop.clock.now())

    def _wait(self, seconds: float) -> None:
        self._loop.clock.wait_until(self._loop.clock.now() + min(seconds, LONGEST_REST))

    def _add(self, request: Request) -> None:
        with contextlib.suppress(RequestRefused):  # admission is part of the engine as it is set
            self._loop.add(structs.replace(request, arrival=self._loop.clock.now()))
