"""Whether a row's bits depend on its company: the same prompt alone, among others, in pieces."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from benchmarks.gpu.model import DrawnModel
from benchmarks.gpu.steps import Prompt, Stepper
from benchmarks.results import table
from benchmarks.workloads import prompt
from inflight.core.types.plan import BatchPlan


class Answer(NamedTuple):
    """Hold the answer of the first row. logprobs: of the tokens that were drawn."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


def sameness(model: DrawnModel, companies: Sequence[int], tokens: int, steps: int) -> str:
    """companies: how many rows there are in all. tokens: of the prompt."""
    stepper, random_ = Stepper(model), random.Random(0)
    own, *others = (
        Prompt(prompt(random_, tokens if not row else random_.randint(1, tokens), model.spec.vocab_size), 0, not row)
        for row in range(max(companies))
    )
    alone, cells = _answer(stepper, stepper.decodes([own], steps)), []
    for rows in companies:
        found = _answer(stepper, stepper.decodes([own, *others[: rows - 1]], steps))
        cells.append([f"among {rows} rows" if rows > 1 else "alone once more", *_compared(found, alone)])
    for piece in (tokens // 4, 1 + tokens // 3):
        ends = range(piece, tokens, piece)
        found = _answer(stepper, stepper.continued([own], ends, steps))
        cells.append([f"its prompt in pieces of {piece}", *_compared(found, alone)])
    head = [
        f"a prompt of {tokens} and {steps} tokens",
        "same tokens",
        "same bits of log-probabilities",
        "largest difference",
    ]
    return table(head, cells)


def _answer(stepper: Stepper, plans: Iterator[BatchPlan]) -> Answer:
    token_ids: list[int] = []
    logprobs: list[float] = []
    for sampled in stepper.run(plans):
        for one in sampled:
            if one.sequence_id == 0 and one.logprobs is not None:
                token_ids += one.token_ids
                logprobs += [entry.logprob for entry in one.logprobs]
    return Answer(tuple(token_ids), tuple(logprobs))


def _compared(found: Answer, alone: Answer) -> list[object]:
    """Behind the first token that differs the rows have different pasts: up to there they are compared."""
    pairs = list(zip(found.token_ids, alone.token_ids, strict=True))
    same = next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), len(pairs))
    values = list(zip(found.logprobs[:same], alone.logprobs[:same], strict=True))
    equal = sum(ours == theirs for ours, theirs in values)
    most = max((abs(ours - theirs) for ours, theirs in values), default=0.0)
    return [f"{same} of {len(pairs)}", f"{equal} of {len(values)}", f"{most:.1e}" if most else "0"]
