"""A null executor whose draws follow grammars, by the masks that a runner has; and one that finds them the slow way.

The vocabulary is the harness's: six pieces of text, two of which others make together, and an end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np
from msgspec import structs
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from inflight.core.types.executor import Done
from inflight.core.types.plan import BatchPlan, Chunk, NewRequest, Sampled, StepResult
from inflight.core.types.request import Request
from inflight.core.types.sampling import Grammar
from inflight.execution.backends.protocol import Array
from inflight.execution.grammars.compiled_grammars import CompiledGrammars
from inflight.execution.grammars.grammar_rows import Filling, GrammarRows
from inflight.execution.grammars.vocabulary import Vocabulary
from inflight.testing.null import NullExecutor

from .harness import END_TOKENS, VOCABULARY, Drafts, FaultyExecutor, Harness, Setup, next_tokens, seconds

PIECES = ("a", "b", "c", "ab", "ca", "<", ">")
assert len(PIECES) == VOCABULARY - 1


@cache
def compiled() -> CompiledGrammars:
    tokenizer = Tokenizer(
        models.BPE({piece: token_id for token_id, piece in enumerate(PIECES)}, [("a", "b"), ("c", "a")])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["END"])
    vocabulary = Vocabulary(tokenizer.to_str(), VOCABULARY, VOCABULARY, tuple(END_TOKENS))
    made = CompiledGrammars(lambda: vocabulary)
    made.check(
        Grammar("regex", "a")
    )  # an engine hears of no request before its grammar is compiled, and so knows the ends
    return made


def tokens_of(mask: Array) -> list[int]:
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:VOCABULARY]).tolist()


class PatientRows(GrammarRows):
    """Waits for masks however busy the machine is, so that what is drawn depends on the run alone."""

    def wait(self, filling: Filling) -> bool:
        filling.done.result()
        return True

    def _fill(self, bits: Array, placed: Sequence[Any]) -> None:
        super()._fill(bits, placed)
        for one in placed:
            one.row.is_slow = False  # or it sits out, which nothing here expects


class BoundExecutor(FaultyExecutor):
    """Rows take in what a step has drawn when its result is asked for, as a runner's do, or when the next step draws
    behind it."""

    def __init__(self, *given: Any, **named: Any):
        super().__init__(*given, **named)
        self._grammars = PatientRows(compiled(), VOCABULARY)
        self._flights: deque[tuple[BatchPlan, tuple[Sampled, ...]]] = deque()
        self._masks: list[Array | None] = []
        self.sampled: dict[int, tuple[Sampled, ...]] = {}  # what steps have drawn, and what alone may follow

    def submit(self, plan: BatchPlan) -> Done:
        for new in plan.new_requests:
            if new.grammar is not None:
                compiled().check(new.grammar)  # as an engine does when its request comes
        self._grammars.start(plan.freed_rows, plan.new_requests)
        done: Done = super().submit(plan)
        self._flights.append((plan, done.result().sampled))
        return done

    def take_in(self, plan: BatchPlan | None = None) -> None:
        """The result of this plan is asked for; None: of all."""
        while self._flights and (plan is None or self._flights[0][0].step <= plan.step):
            taken, sampled = self._flights.popleft()
            self.sampled[taken.step] = self._grammars.sampled(taken, sampled)

    def _sample(self, row: Any, chunk: Chunk) -> tuple[int, ...]:
        if self._grammars.awaits([chunk]):
            self.take_in()
        masks = self._grammars.fill([chunk])
        self._masks = [None] * chunk.sample if masks is None else list(masks.take(chunk.sample))
        return super()._sample(row, chunk)

    def _draw(self, row: Any, value: int) -> int:
        return among(self._masks.pop(0), super()._draw(row, value))


class SlowBoundExecutor(NullExecutor):
    """Each token's mask is that of a row which begins behind the tokens before it."""

    def _draw(self, row: Any, value: int) -> int:
        token_id, new = super()._draw(row, value), row.start
        if new.grammar is None:
            return token_id
        rows = PatientRows(compiled(), VOCABULARY)
        rows.start((), [structs.replace(new, token_ids=tuple(row.tokens))])
        masks = rows.fill([Chunk(0, new.row, len(row.tokens) - 1, 1, (), 1)])
        assert masks is not None
        return among(masks.take(1)[0], token_id)


def among(mask: Array | None, token_id: int) -> int:
    """Return the token, or one that may be drawn instead, which follows from it."""
    if mask is None:
        return token_id
    allowed = tokens_of(mask)
    assert allowed, "nothing is left to draw"
    return allowed[token_id % len(allowed)]


class BoundDrafts(Drafts):
    def right(self, new: NewRequest, count: int) -> list[int]:
        return next_tokens(new, count, SlowBoundExecutor)


class BoundSetup(Setup):
    @classmethod
    def of(cls, setup: Setup) -> BoundSetup:
        return cls(**{one.name: getattr(setup, one.name) for one in fields(Setup)})

    def drafts(self) -> Drafts:
        return BoundDrafts(self.right_drafts or 0.0)

    def executor(self) -> BoundExecutor:
        return BoundExecutor(self.capacity, seconds, self.fate, self.draft())


class BoundHarness(Harness):
    """Its requests may have grammars."""

    executor: BoundExecutor

    def __init__(self, setup: Setup, *requests: Request):
        super().__init__(BoundSetup.of(setup), *requests)
        self.forced = 0  # tokens that alone may follow

    def commit(self) -> Any:
        plan, pending = self.flights[0]
        self.executor.take_in(plan)
        sampled = self.executor.sampled.pop(plan.step)
        result: Future[StepResult] = Future()
        result.set_result(structs.replace(pending.result(), sampled=sampled))
        self.flights[0] = plan, result
        self.forced += sum(len(one.forced_token_ids) for one in sampled)
        return super().commit()
