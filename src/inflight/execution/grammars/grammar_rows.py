"""Fill the masks of a pass for the rows whose outputs follow grammars."""

from __future__ import annotations

import contextlib
import os
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import Struct, structs

from inflight.core.types.plan import BatchPlan, Chunk, NewRequest, Sampled
from inflight.execution.backends.protocol import Array
from inflight.execution.grammars.compiled_grammars import CompiledGrammars
from inflight.execution.grammars.grammar_row import GrammarRow
from inflight.execution.grammars.slow_masks import PATIENCE_SECONDS, SLOW_SECONDS, MaskThread, SlowMasks

if TYPE_CHECKING:
    from llguidance import LLExecutor

_MAX_WAITING = 256  # rows that sat out, whose sequences may come again
_CORES = os.cpu_count() or 1
_IS_PARALLEL = _CORES >= 8  # whether several threads fill the masks of a pass


class _RowMasks(NamedTuple):
    """A row whose masks are being filled, from this line on."""

    row: GrammarRow
    first: int
    drafts: tuple[int, ...]

    @property
    def lines(self) -> range:
        return range(self.first, self.first + 1 + len(self.drafts))


class PassMasks:
    """The masks of one pass, one behind the other as its chunks sample; being filled."""

    def __init__(self, owner: GrammarRows, masks: list[Array | None], filling: Filling | None) -> None:
        self._owner, self._masks, self._filling = owner, masks, filling

    def take(self, count: int) -> list[Array | None]:
        """Return the masks of the next so many draws, and wait until they are filled. None: all tokens may be drawn. A
        mask of zeros: the row sits the step out, or nothing can follow."""
        filling, self._filling = self._filling, None
        if filling is not None and not self._owner.wait(filling):
            for line in chain.from_iterable(one.lines for one in filling.to_fill):
                self._masks[line] = np.zeros_like(self._masks[line])
        taken, self._masks = self._masks[:count], self._masks[count:]
        return taken


class Filling(Struct):
    """Masks that a thread fills. bits: uint32[lines, words]."""

    bits: Array
    to_fill: list[_RowMasks]
    done: Future[None]
    thread: MaskThread


class GrammarRows:
    """The rows of a runner that have a grammar; a runner without any does nothing here.

    Masks depend on tokens that are known before a pass, so that a thread fills them while it computes. The pass waits
    for them before it draws, but no longer than a moment: a row whose mask takes longer sits the step out
    (`slow_masks`), and the others draw. Where steps are submitted ahead, the tokens of the one before are waited for
    first (`awaits`), while the device computes.

    rows: those that have a grammar.
    """

    def __init__(self, compiled: CompiledGrammars, vocab_size: int, reports_forced: bool = True) -> None:
        """Start without rows. reports_forced: tokens that alone may follow are reported with draws."""
        self._compiled, self._reports_forced = compiled, reports_forced
        self._words = -(-vocab_size // 32)
        self.rows: dict[int, GrammarRow] = {}
        self._waiting: OrderedDict[int, GrammarRow] = OrderedDict()  # that sat out, by sequence: they may be preempted
        self._slow = SlowMasks()
        self._thread: MaskThread | None = None
        self._is_suspicious = False

    def start(self, freed: Sequence[int], new_requests: Sequence[NewRequest]) -> None:
        """Free rows, then take new ones. Tokens that a script forces follow the script."""
        for row in freed:
            self.rows.pop(row, None)
        for new in new_requests:
            self.rows.pop(new.row, None)
            if new.grammar is not None and not new.forced_token_ids:
                self.rows[new.row] = GrammarRow(new.grammar, self._compiled, new.prompt_length, new.token_ids)

    def awaits(self, chunks: Sequence[Chunk]) -> bool:
        """Return whether a draw of these follows tokens that are not known yet."""
        rows = self.rows
        return any(one.sample and one.row in rows and rows[one.row].num_tokens < _num_known(one) for one in chunks)

    def fill(self, chunks: Sequence[Chunk]) -> PassMasks | None:
        """Begin to fill the masks of a pass of these chunks; None where all its draws are free. What follows tokens
        that never came is free, too: nothing of it counts."""
        rows = [(chunk, self.rows.get(chunk.row)) for chunk in chunks if chunk.sample]
        if all(row is None or (row.mask is None and row.num_tokens != _num_known(chunk)) for chunk, row in rows):
            return None
        num_lines = sum(chunk.sample for chunk, _ in rows)
        # The tokenizer may have tokens that the model has no logits of.
        bits = np.full((num_lines, max(self._words, self._compiled.mask_words)), 0xFFFFFFFF, np.uint32)
        to_fill: list[_RowMasks] = []
        masks: list[Array | None] = []
        for chunk, row in rows:
            if row is None:
                masks += [None] * chunk.sample
                continue
            row = self._resumed(chunk, row)
            lines = bits[len(masks) : len(masks) + chunk.sample]
            if row.num_tokens == _num_known(chunk):
                self._fill_or_wait(row, chunk.draft_token_ids, lines, len(masks), to_fill)
            elif row.mask is None:
                masks += [None] * chunk.sample
                continue
            else:
                lines[:] = 0  # it follows a draw that waits for its mask
            masks += [line[: self._words] for line in lines]
        filling = self._begin(bits, to_fill) if to_fill else None
        return PassMasks(self, masks, filling)

    def _resumed(self, chunk: Chunk, row: GrammarRow) -> GrammarRow:
        """Return the row of this chunk's sequence: where that was preempted while it waited, with its mask."""
        if row.sequence_id is None:
            row.sequence_id = chunk.sequence_id
            waited = self._waiting.pop(chunk.sequence_id, None)
            if waited is not None and waited.num_tokens == row.num_tokens:
                row = self.rows[chunk.row] = waited
        return row

    def _fill_or_wait(
        self, row: GrammarRow, drafts: tuple[int, ...], lines: Array, first: int, to_fill: list[_RowMasks]
    ) -> None:
        """Have these lines filled: from a slow mask that is done, beside the steps, or with the others of the pass."""
        mask = row.mask
        is_done = mask is not None and mask.done
        if mask is not None and (mask.is_of(row.num_tokens, drafts) or not is_done):  # a matcher is of one thread
            row.sits_out, mask.is_reported = not is_done, False
            lines[:] = mask.lines if is_done else 0
        elif row.is_slow or row.lacks_grammar:
            own = np.full_like(lines, 0xFFFFFFFF)
            mask = row.mask = self._slow.begin(row.num_tokens, drafts, own)
            self._slow.fill(mask, partial(self._fill, own, [_RowMasks(row, 0, drafts)]))
            row.sits_out = True
            lines[:] = 0
        else:
            row.mask, row.sits_out = None, False
            to_fill.append(_RowMasks(row, first, drafts))

    def _begin(self, bits: Array, to_fill: list[_RowMasks]) -> Filling:
        thread = self._thread = self._thread or MaskThread()
        return Filling(bits, to_fill, thread.submit(partial(self._fill, bits, to_fill)), thread)

    def sampled(self, plan: BatchPlan, draws: Sequence[Sampled]) -> tuple[Sampled, ...]:
        """Take in what a step has drawn, which its rows go on from. Dead ends are reported in their grammar's words,
        and draws of rows that sit out as waiting. A step that no call waited for may be reported late, when its rows
        are others'."""
        rows = (self.rows.get(one.row) for one in plan.chunks if one.sample)
        row_of = {row.sequence_id: row for row in rows if row is not None}
        return tuple(self._taken_in(row_of.get(one.sequence_id), one) for one in draws)

    def _taken_in(self, row: GrammarRow | None, drawn: Sampled) -> Sampled:
        if row is None:
            return drawn
        if row.mask is not None and row.sits_out:
            self._waiting[drawn.sequence_id] = row
            while len(self._waiting) > _MAX_WAITING:
                self._waiting.popitem(last=False)
            self._slow.report(row.mask)
            self._compiled.tally.sit_outs += 1
            return Sampled(drawn.sequence_id, (), waits_for=row.mask.transfer_id)
        row.mask = None
        self._waiting.pop(drawn.sequence_id, None)
        if drawn.error is not None:
            error = row.error()
            return drawn if error is None else structs.replace(drawn, error=error, by_request=True)
        forced = row.append(drawn.token_ids)
        return structs.replace(drawn, forced_token_ids=forced) if forced and self._reports_forced else drawn

    def wait(self, filling: Filling) -> bool:
        """Return whether the masks are filled; wait until they are, or have taken too long: then their rows sit the
        step out. Raises what broke them."""
        began = time.perf_counter()
        try:
            while not filling.thread.is_overdue:
                with contextlib.suppress(FutureTimeout):
                    filling.done.result(PATIENCE_SECONDS)
                    return True
        finally:
            self._compiled.tally.wait_seconds += time.perf_counter() - began
        self._thread = None  # it is busy; the masks of the next pass have another
        for one in filling.to_fill:
            row, lines = one.row, filling.bits[one.lines.start : one.lines.stop]
            mask = row.mask = self._slow.begin(row.num_tokens, one.drafts, lines)
            row.sits_out = True
            filling.done.add_done_callback(mask.set_done)
        filling.thread.close()
        return False

    def poll(self) -> list[int] | None:
        """Return the transfer_ids of masks that have been filled since the last call; None: no row waits for one."""
        return self._slow.poll()

    def close(self) -> None:
        self.rows.clear()
        self._waiting.clear()
        self._slow.close()
        if self._thread is not None:
            self._thread.close()
        self._compiled.close()

    def _fill(self, bits: Array, to_fill: Sequence[_RowMasks]) -> None:
        """Fill uint32[lines, words], all bits set; in a thread."""
        began = time.perf_counter()
        if _IS_PARALLEL and len(to_fill) > 1 and not self._is_suspicious:
            self._fill_together(bits, to_fill)
            self._is_suspicious = time.perf_counter() - began > SLOW_SECONDS  # then each is timed, once
        else:
            for one in to_fill:
                row_began = time.thread_time()
                self._fill_together(bits, [one])
                one.row.took(time.thread_time() - row_began)
            self._is_suspicious &= len(to_fill) == 1
        for row, first, _ in to_fill:
            if row.fault is not None:
                bits[first] = 0
        self._compiled.tally.masks += len(bits)
        self._compiled.tally.mask_seconds += time.perf_counter() - began

    def _fill_together(self, bits: Array, to_fill: Sequence[_RowMasks]) -> None:
        """Fill one row's masks in this thread, several in others. Behind a draft that cannot be drawn lines stay as
        they are."""
        asked = [(row, row.demand(bits, first, drafts)) for row, first, drafts in to_fill]
        demands = [(row, one) for row, one in asked if one is not None]
        plain = [(one.matcher, one.first) for _, one in demands if not one.drafts]
        drafted = [(one.matcher, one.first, one.drafts) for _, one in demands if one.drafts]
        where = (bits.ctypes.data, bits.shape[1] * 4, len(bits))
        if plain:
            self._executor.unsafe_compute_mask_ptr(plain, *where)
        if drafted:
            self._executor.unsafe_compute_mask_ptr_with_draft_token(drafted, *where)
        for row, one in demands:
            row.filled(one, bits[one.first : one.first + 1 + len(one.drafts)])

    @cached_property
    def _executor(self) -> LLExecutor:
        """A quarter of the cores at most: the others compute meanwhile."""
        from llguidance import LLExecutor

        return LLExecutor(max(1, min(8, _CORES // 4)))


def _num_known(chunk: Chunk) -> int:
    """Return the number of tokens before a chunk's first draw."""
    return chunk.start + chunk.length - len(chunk.draft_token_ids)
