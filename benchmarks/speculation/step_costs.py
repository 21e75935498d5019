"""Measure what a step costs that verifies k drafts in each row, over one that verifies none: what there is to win.

The same rows at the same contexts are computed with each number of drafts in turn, so that only the drafts differ. A
draft that is surely right pays where the step's time grows by less than its tokens: the last column is the chance at
which the k-th draft begins to.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence

from benchmarks.comparison import log_line
from benchmarks.engines import Model
from benchmarks.results import table
from inflight.config.engine import EngineSettings
from inflight.config.scheduling import SchedulingSettings
from inflight.core.types.executor import Executor
from inflight.core.types.plan import BatchPlan, Chunk, NewRequest
from inflight.core.types.sampling import SamplingParams
from inflight.counted import counted
from inflight.engine.clock import Clock
from inflight.execution.backends.protocol import Quantization

CONTEXT, BLOCK = 320, 16  # tokens of each row, and of a block
WIDTH = -(-(CONTEXT + 32) // BLOCK)  # blocks of a row
PARAMS = SamplingParams(temperature=0, ignore_eos=True)


class Rows:
    """Decodes of so many rows, the same step over and over, with any number of drafts."""

    def __init__(self, executor: Executor, rows: int, clock: Clock):
        self._executor, self._rows, self._clock, self._step = executor, rows, clock, 0
        self._rng = random.Random(rows)
        self._random = range(executor.capacity.vocab_size)
        new = tuple(NewRequest(row, self._ids(CONTEXT), CONTEXT - 1, PARAMS, row, 0) for row in range(rows))
        blocks = [tuple(range(row * WIDTH, (row + 1) * WIDTH)) for row in range(rows)]
        self._submit([Chunk(row, row, CONTEXT - 1, 1, blocks[row], 1) for row in range(rows)], new)

    def seconds(self, drafts: int) -> float:
        """Return the seconds of a step with so many drafts in each row."""
        chunks = [
            Chunk(
                row, row, CONTEXT - 1, 1 + drafts, (), 1 + drafts, draft_token_ids=self._ids(drafts), num_drafts=drafts
            )
            for row in range(self._rows)
        ]
        return self._submit(chunks)

    def _submit(self, chunks: Sequence[Chunk], new: tuple[NewRequest, ...] = ()) -> float:
        self._step += 1
        began = self._clock.now()
        result = self._executor.submit(BatchPlan(self._step, tuple(chunks), new)).result()
        assert result.error is None, result.error
        return self._clock.now() - began

    def _ids(self, number: int) -> tuple[int, ...]:
        return tuple(self._rng.choices(self._random, k=number))


def curves(
    model: Model, batches: Sequence[int], drafts: Sequence[int], repeats: int, clock: Clock
) -> dict[int, list[list[float]]]:
    """Seconds by rows: of each number of drafts, each repeat."""
    settings = EngineSettings(
        max_model_len=WIDTH * BLOCK,
        num_blocks=max(batches) * WIDTH,
        max_num_seqs=max(batches),
        max_num_batched_tokens=max(batches) * (1 + max(drafts)),
    )
    found = {}
    for rows in batches:
        tried = Rows(model.executor(settings, SchedulingSettings()), rows, clock)
        times: list[list[float]] = [[] for _ in drafts]
        for number in range(repeats + 1):
            for place, k in enumerate(drafts):
                seconds = tried.seconds(k)
                if number:  # the first touches memory
                    times[place].append(seconds)
        found[rows] = times
        log_line(f"{model.name}: {counted(rows, 'row')}, {statistics.median(times[0]) * 1e3:.1f} ms without drafts")
    return found


def report(
    models: Sequence[tuple[str, Quantization]],
    batches: Sequence[int],
    drafts: Sequence[int],
    repeats: int,
    threads: int | None,
    clock: Clock,
) -> str:
    """drafts: numbers of them, from 0 on."""
    rows: list[list[object]] = []
    for name, quantization in models:
        model = Model(name, max(batches) * WIDTH, WIDTH * BLOCK, quantization, threads)
        for number, times in curves(model, batches, drafts, repeats, clock).items():
            over = [statistics.median(map(_ratio, these, times[0])) for these in times]
            cells = [f"{ratio:.2f}" for ratio in over[1:]]
            rows.append([model.name, number, f"{statistics.median(times[0]) * 1e3:.1f}", *cells])
    head = ["model", "rows", "a step without drafts, ms", *(f"k = {k}" for k in drafts[1:])]
    about = (
        f"A step whose rows have {CONTEXT} tokens each, and k drafts, over the same without: medians of {repeats} "
        "ratios, each of steps that ran one after the other. Where all drafts are right, a step yields 1 + k times the "
        "tokens."
    )
    return f"{about}\n\n{table(head, rows)}"


def _ratio(one: float, two: float) -> float:
    return one / two
