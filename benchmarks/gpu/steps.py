"""Steps without a scheduler: plans of a given shape, submitted as an engine would, as many in flight as it would have.

Contexts are taken as computed: keys and values are what memory holds, which takes as long.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from msgspec import structs

from benchmarks.gpu.model import BLOCK, DrawnModel
from inflight.core.types.executor import Pending
from inflight.core.types.plan import BatchPlan, Chunk, NewRequest, Sampled, StepResult
from inflight.core.types.sampling import SamplingParams

_GREEDY = SamplingParams(temperature=0, max_tokens=1 << 20, ignore_eos=True)
WARM_STEPS = 4  # steps before the clock starts: what is compiled, loaded and captured is not measured here


@dataclass(frozen=True, slots=True)
class Prompt:
    """token_ids: all that is known. computed: so many count as computed. logprobs: whether they are wanted."""

    token_ids: tuple[int, ...]
    computed: int = 0
    logprobs: bool = False


class Stepper:
    """Rows begin with the first plan of a run and are given up with the first of the next; run by run."""

    def __init__(self, model: DrawnModel) -> None:
        self._model = model
        self._numbers, self._rows = count(), 0

    def decode_seconds(self, rows: int, context: int, steps: int) -> float:
        """Time a step in which so many rows decode with `context` tokens behind each, one more from step to step."""
        known = tuple(at % 1000 + 3 for at in range(context))
        prompts = [Prompt(known, context - 1)] * rows
        return self._seconds(self.decodes(prompts, WARM_STEPS + steps), steps)

    def verify_seconds(self, rows: int, drafts: int, context: int, steps: int) -> float:
        """Time a step in which so many rows decode with so many drafts each, none of which is right."""
        prompts = [Prompt(tuple(at % 1000 + 3 for at in range(context)), context - 1)] * rows
        return self._seconds(self._verifying(prompts, drafts, WARM_STEPS + steps), steps)

    def prompt_seconds(self, tokens: int, repeats: int = 5) -> float:
        """Time one pass over a prompt and its first token: the minimum of some."""
        prompt, found = Prompt(tuple(at % 1000 + 3 for at in range(tokens))), []
        for _ in range(repeats + 1):
            plan = self._beginning([prompt], tokens)
            started = time.perf_counter()
            checked(self._model.runner.submit(plan))
            found.append(time.perf_counter() - started)
        return min(found[1:])

    def decodes(self, prompts: Sequence[Prompt], steps: int) -> Iterator[BatchPlan]:
        """Return what is not computed of prompts in the first, then a token of each."""
        longest = max(len(prompt.token_ids) for prompt in prompts)
        yield self._beginning(prompts, longest + steps)
        for step in range(1, steps):
            chunks = [Chunk(row, row, len(prompt.token_ids) + step - 1, 1, (), 1) for row, prompt in enumerate(prompts)]
            yield BatchPlan(next(self._numbers), tuple(chunks))

    def _verifying(self, prompts: Sequence[Prompt], drafts: int, steps: int) -> Iterator[BatchPlan]:
        """The same positions in each step: what is rolled back is computed again."""
        longest = max(len(prompt.token_ids) for prompt in prompts)
        yield self._beginning(prompts, longest + 1 + drafts)
        guessed = tuple(range(3, 3 + drafts))
        chunks = tuple(
            Chunk(row, row, len(one.token_ids), 1 + drafts, (), 1 + drafts, draft_token_ids=guessed)
            for row, one in enumerate(prompts)
        )
        for _ in range(1, steps):
            yield BatchPlan(next(self._numbers), chunks)

    def continued(self, prompts: Sequence[Prompt], pieces: Sequence[int], steps: int) -> Iterator[BatchPlan]:
        """As `decodes`, with the first prompt in chunks that end at `pieces` and then at its end, each in a step of its
        own, in which the others do not take part until the last."""
        plans = self.decodes(prompts, steps)
        first = next(plans)
        own, *others = first.chunks
        start, new, freed = 0, first.new_requests, first.freed_rows
        for end in pieces:
            chunk = structs.replace(
                own, start=start, length=end - start, sample=0, new_blocks=own.new_blocks if not start else ()
            )
            yield BatchPlan(next(self._numbers), (chunk,), new, freed)
            start, new, freed = end, (), ()
        length, blocks = len(prompts[0].token_ids) - start, own.new_blocks if not start else ()
        last = structs.replace(own, start=start, length=length, new_blocks=blocks)
        yield structs.replace(
            first, step=next(self._numbers), chunks=(last, *others), new_requests=new, freed_rows=freed
        )
        yield from plans

    def run(self, plans: Iterator[BatchPlan]) -> Iterator[tuple[Sampled, ...]]:
        """Results, in order. Raises RuntimeError for a step that failed."""
        flights: list[Pending] = []
        for plan in plans:
            flights.append(self._model.runner.submit(plan))
            if len(flights) == self._model.backend.depth:
                yield checked(flights.pop(0)).sampled
        for flight in flights:
            yield checked(flight).sampled

    def _seconds(self, plans: Iterator[BatchPlan], steps: int) -> float:
        """Return the mean seconds of the last `steps` plans."""
        ends: list[float] = []
        for _ in self.run(plans):
            ends.append(time.perf_counter())
        return (ends[-1] - ends[WARM_STEPS - 1]) / steps

    def _beginning(self, prompts: Sequence[Prompt], positions: int) -> BatchPlan:
        """All rows at once, with blocks for so many positions of each."""
        freed, self._rows = tuple(range(self._rows)), len(prompts)
        width = -(-positions // BLOCK)
        new = [
            NewRequest(
                row,
                prompt.token_ids,
                len(prompt.token_ids),
                replace(_GREEDY, logprobs=1) if prompt.logprobs else _GREEDY,
                seed=row,
                sample_index=0,
            )
            for row, prompt in enumerate(prompts)
        ]
        chunks = [
            Chunk(
                row,
                row,
                prompt.computed,
                len(prompt.token_ids) - prompt.computed,
                tuple(range(row * width, (row + 1) * width)),
                1,
            )
            for row, prompt in enumerate(prompts)
        ]
        return BatchPlan(next(self._numbers), tuple(chunks), tuple(new), freed)


def checked(flight: Pending) -> StepResult:
    """Raises RuntimeError for a step that failed."""
    result = flight.result()
    errors = [result.error, *(one.error for one in result.sampled)]
    if any(errors):
        raise RuntimeError(next(error for error in errors if error))
    return result
