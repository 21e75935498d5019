"""The rows of a runner whose outputs follow grammars, and the masks of its passes.

Masks depend on tokens that are known before a pass, so that a thread fills them while that computes; the pass waits for
them before it draws. Where steps are submitted ahead, the tokens of the one before are waited for first
(`awaits`), while the device computes. A runner without such rows does nothing here.

Knows plans, rows and bits; not logits, nor how a grammar is compiled.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from inflight.core.types.plan import BatchPlan, Chunk, NewRow, Sampled
from inflight.execution.backends.protocol import Array
from inflight.execution.grammars.compiled_grammars import CompiledGrammars
from inflight.execution.grammars.grammar_row import Demand, GrammarRow

if TYPE_CHECKING:
    from llguidance import LLExecutor

_Placed = tuple[GrammarRow, int, tuple[int, ...]]  # its first line, and drafts


class PassMasks:
    """The masks of one pass, one behind the other as its chunks sample; being filled."""

    def __init__(self, owner: GrammarRows, masks: list[Array | None], filling: Future[None]) -> None:
        self._owner, self._masks, self._filling = owner, masks, filling

    def take(self, count: int) -> list[Array | None]:
        """Of the next so many draws; waits until they are filled. None: all tokens may be drawn."""
        self._owner.wait(self._filling)
        taken, self._masks = self._masks[:count], self._masks[count:]
        return taken


class GrammarRows:
    def __init__(self, compiled: CompiledGrammars, vocab_size: int, tells_forced: bool = True) -> None:
        """tells_forced: what alone may follow is told with what was drawn."""
        self._compiled, self._tells_forced = compiled, tells_forced
        self._words = -(-vocab_size // 32)
        self._rows: dict[int, GrammarRow] = {}

    def __bool__(self) -> bool:
        """Whether any row has a grammar."""
        return bool(self._rows)

    def start(self, freed: Sequence[int], new_rows: Sequence[NewRow]) -> None:
        """Rows are given up, then taken. What a script forces follows the script."""
        for row in freed:
            self._rows.pop(row, None)
        for new in new_rows:
            self._rows.pop(new.row, None)
            if new.grammar is not None and not new.forced_token_ids:
                self._rows[new.row] = GrammarRow(new.grammar, self._compiled, new.prompt_length, new.token_ids)

    def awaits(self, chunks: Sequence[Chunk]) -> bool:
        """Whether a draw of these follows tokens that are not known yet."""
        rows = self._rows
        return any(one.sample and one.row in rows and rows[one.row].num_tokens < _num_known(one) for one in chunks)

    def fill(self, chunks: Sequence[Chunk]) -> PassMasks | None:
        """Of a pass of these chunks; None where all its draws are free. What follows tokens that never came is, too: it
        is nothing that counts."""
        placed: list[_Placed] = []
        of_draws: list[int | None] = []
        lines = 0
        for chunk in chunks:
            row = self._rows.get(chunk.row) if chunk.sample else None
            if row is None or row.num_tokens != _num_known(chunk):
                of_draws += [None] * chunk.sample
                continue
            row.sequence_id = chunk.sequence_id
            placed.append((row, lines, chunk.draft_token_ids))
            of_draws += range(lines, lines + chunk.sample)
            lines += chunk.sample
        if not placed:
            return None
        # The tokenizer may have tokens that the model has no logits of.
        bits = np.full((lines, max(self._words, self._compiled.mask_words)), 0xFFFFFFFF, np.uint32)
        masks = [None if line is None else bits[line, : self._words] for line in of_draws]
        return PassMasks(self, masks, self._thread.submit(self._fill, bits, placed))

    def sampled(self, plan: BatchPlan, draws: Sequence[Sampled]) -> tuple[Sampled, ...]:
        """A step has drawn these, which its rows go on from. Dead ends are told in their grammar's words. A step that
        nobody waited for may be told of late, when its rows are others'."""
        rows = (self._rows.get(one.row) for one in plan.chunks if one.sample)
        row_of = {row.sequence_id: row for row in rows if row is not None}
        return tuple(self._taken_in(row_of.get(one.sequence_id), one) for one in draws)

    def _taken_in(self, row: GrammarRow | None, drawn: Sampled) -> Sampled:
        if row is None:
            return drawn
        if drawn.error is not None:
            error = row.error()
            return drawn if error is None else drawn._replace(error=error, by_request=True)
        forced = row.append(drawn.token_ids)
        return drawn._replace(forced_token_ids=forced) if forced and self._tells_forced else drawn

    def wait(self, filling: Future[None]) -> None:
        """Raises what broke it."""
        began = time.perf_counter()
        filling.result()
        self._compiled.tally.wait_seconds += time.perf_counter() - began

    def close(self) -> None:
        self._rows.clear()
        self._compiled.close()

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, "masks")

    @cached_property
    def _executor(self) -> LLExecutor:
        """A quarter of the cores at most: the others compute meanwhile."""
        from llguidance import LLExecutor

        return LLExecutor(max(1, min(8, (os.cpu_count() or 1) // 4)))

    def _fill(self, bits: Array, placed: Sequence[_Placed]) -> None:
        """In the thread. uint32[lines, words], all bits set."""
        began = time.perf_counter()
        asked = [(row, row.demand(bits, first, drafts)) for row, first, drafts in placed]
        demands = [(row, one) for row, one in asked if one is not None]
        self._ask([one for _, one in demands], bits)
        for row, one in demands:
            row.filled(one, bits[one.first : one.first + 1 + len(one.drafts)])
        for row, first, _ in placed:
            if row.fault is not None:
                bits[first] = 0
        self._compiled.tally.masks += len(bits)
        self._compiled.tally.mask_seconds += time.perf_counter() - began

    def _ask(self, demands: Sequence[Demand], bits: Array) -> None:
        """Behind a draft that cannot be drawn lines stay as they are."""
        plain = [(one.matcher, one.first) for one in demands if not one.drafts]
        drafted = [(one.matcher, one.first, one.drafts) for one in demands if one.drafts]
        where = (bits.ctypes.data, bits.shape[1] * 4, len(bits))
        if plain:
            self._executor.unsafe_compute_mask_ptr(plain, *where)
        if drafted:
            self._executor.unsafe_compute_mask_ptr_with_draft_token(drafted, *where)


def _num_known(chunk: Chunk) -> int:
    """Tokens that stand before its first draw."""
    return chunk.start + chunk.length - len(chunk.draft_token_ids)
