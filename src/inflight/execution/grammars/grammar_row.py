"""Follow one running output under a grammar, and fill the masks of what may be drawn next."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from copy import copy
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from inflight.core.types.sampling import Grammar
from inflight.execution.backends.protocol import Array
from inflight.execution.grammars.compiled_grammars import Compiled, CompiledGrammars
from inflight.execution.grammars.compiling import GrammarError, client_sentence
from inflight.execution.grammars.json_schema.answer_check import AnswerChecks
from inflight.execution.grammars.slow_masks import MAX_SLOW_SECONDS, SLOW_SECONDS, SlowMask

if TYPE_CHECKING:
    from llguidance import LLMatcher


class Demand(NamedTuple):
    """Masks that a matcher is to fill, from line `first` on: behind its tokens, and behind each draft."""

    matcher: LLMatcher
    first: int
    drafts: list[int]


TOO_SLOW = (
    f"The grammar took {MAX_SLOW_SECONDS:g} s of processor time within {{tokens}} tokens, at {SLOW_SECONDS * 1e3:g} ms "
    "or more each; make it less ambiguous."
)


class GrammarRow:
    """fault: the sentence why nothing can follow, once that is known. sequence_id: whose output it is, from its first
    draw on. is_slow: its masks take long. mask: that it waits, or waited, for. sits_out: its last draw waits for it."""

    def __init__(
        self,
        grammar: Grammar,
        compiled: CompiledGrammars,
        prompt_length: int,
        token_ids: Sequence[int],
    ) -> None:
        """Begin at an output. token_ids: all that are known, of the prompt and behind it."""
        self.num_tokens = len(token_ids)
        self.fault: str | None = None
        self.sequence_id: int | None = None
        self.is_slow = False
        self.mask: SlowMask | None = None
        self.sits_out = False
        self._slow_seconds = 0.0
        self._grammar, self._compiled = grammar, compiled
        self._prelude = Prelude(grammar)
        self._matcher: LLMatcher | None = None
        self._kept: Future[Compiled] | None = None  # until the matcher is made: it may leave the cache meanwhile
        self._untaken = list(token_ids[prompt_length:])  # by the grammar
        self._has_ended = False
        self._checks: AnswerChecks | None = None
        self._taken: list[int] = []  # by the grammar, where its texts are checked
        self._behind_taken: tuple[int, ...] = ()  # with which the first of the last masks begins
        self._num_checked = 0  # captures that are valid
        self._fault_ahead: str | None = None  # behind drafts
        self._forced: list[int] = []  # what follows the tokens that the last masks were asked behind

    def append(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Add tokens that were drawn; return the tokens that alone may follow, as far as their masks showed it."""
        self.num_tokens += len(token_ids)
        self._untaken += token_ids
        forced, self._forced = self._forced, []
        drawn = len(token_ids)
        return tuple(forced[drawn:]) if forced[:drawn] == list(token_ids) else ()

    @property
    def lacks_grammar(self) -> bool:
        """Whether the grammar has to be compiled again."""
        unbound = self._matcher is not None or self.fault is not None or self._grammar.kind == "none"
        if not unbound and self._kept is None:
            self._kept = self._compiled.found(self._grammar)
        return not unbound and self._kept is None

    def took(self, seconds: float) -> None:
        """Note the processor time that the masks took."""
        self.is_slow = seconds > SLOW_SECONDS
        if self.is_slow:
            self._slow_seconds += seconds
        if self._slow_seconds > MAX_SLOW_SECONDS:
            self.fault = TOO_SLOW.format(tokens=self.num_tokens)

    def demand(self, lines: Array, first: int, drafts: Sequence[int]) -> Demand | None:
        """Return what is left to fill of the lines from `first` on; fill those before the grammar's beginning. lines
        uint32[S, V / 32, rounded up], all bits set."""
        self._catch_up()
        self._forced, self._fault_ahead = [], None
        drafts, begun, num_drafts = list(drafts), tuple[int, ...](), len(drafts)
        if not self._prelude.is_over:
            prelude = copy(self._prelude)
            while not prelude.is_over:
                self._fill_before(lines[first], prelude)
                if not drafts:
                    return None
                prelude.take(drafts.pop(0))
                first += 1
            begun = prelude.begun
        if self._grammar.kind == "none" or (matcher := self._behind(begun)) is None:
            return None
        ends = self._compiled.end_token_ids
        if self._has_ended or not ends.isdisjoint(begun):
            self._fill_ended(lines[first : first + 1 + len(drafts)])
            return None
        if not num_drafts:
            self._forced = matcher.compute_ff_tokens()
        self._behind_taken = begun
        before_end = next((index for index, token_id in enumerate(drafts) if token_id in ends), len(drafts))
        self._fill_ended(lines[first + before_end + 1 : first + 1 + len(drafts)])
        return Demand(matcher, first, list(drafts[:before_end]))

    def filled(self, demand: Demand, lines: Array) -> None:
        """Look at the masks that were asked for, and at texts that are whole there. What is wrong behind a draft is no
        fault yet: it may not be drawn.

        Args:
            demand: as `demand` gave it.
            lines: uint32[1 + drafts, V / 32, rounded up]; where a text is whole and not valid, ends are taken out.
        """
        if demand.matcher.is_error():
            reason = client_sentence(demand.matcher.get_error())
            self.fault = f"The grammar has come to a dead end ({reason}); allow more, or make it simpler."
        elif not lines[0].any():
            self.fault = "The grammar has come to a dead end: no token can follow; allow more."
        elif self._checks is not None:
            self._check(self._checks, demand, lines)

    def error(self) -> str | None:
        """Return why a draw of the last pass had nothing to draw from, as far as this row is the reason."""
        return self.fault or self._fault_ahead

    def _check(self, checks: AnswerChecks, demand: Demand, lines: Array) -> None:
        matcher, taken = demand.matcher, [*self._taken, *self._behind_taken]
        self.fault, num_checked = self._checked(checks, matcher, taken, lines[0], self._num_checked)
        if not self._behind_taken:
            self._num_checked = num_checked  # else behind drafts, which may not be drawn
        if self.fault is not None or not demand.drafts:
            return
        matcher = matcher.deep_copy()
        for line, draft in zip(lines[1:], demand.drafts, strict=True):
            taken.append(draft)
            if not matcher.consume_token(draft):
                return
            fault, num_checked = self._checked(checks, matcher, taken, line, num_checked)
            if fault is not None:
                self._fault_ahead = fault
                return

    def _checked(
        self, checks: AnswerChecks, matcher: LLMatcher, taken: list[int], line: Array, num_checked: int
    ) -> tuple[str | None, int]:
        """Check texts that are whole behind these tokens; why nothing can follow, and how many captures are valid."""
        fault = None
        captures = matcher.get_captures()[num_checked:]
        for name, text in captures:
            if (fault := checks.fault(name, text)) is not None:
                line[:] = 0
                break
        if checks.has_whole and matcher.is_accepting():
            fault = checks.fault("", self._compiled.text(taken))
            if fault is not None:
                self._exclude_ends(line)
        if fault is None or line.any():
            return None, num_checked + len(captures)
        return f"The JSON text is whole and its schema does not allow it: {fault}. Ask again, or ask for less.", 0

    def _catch_up(self) -> None:
        token_ids, self._untaken = self._untaken, []
        before = 0
        while before < len(token_ids) and not self._prelude.is_over:
            self._prelude.take(token_ids[before])
            before += 1
            if self._prelude.is_over:  # what may have opened reasoning is the grammar's
                token_ids[:before] = self._prelude.begun
                before = 0
        if not self._prelude.is_over or not token_ids[before:] or self._has_ended or self._grammar.kind == "none":
            return
        ends = self._compiled.end_token_ids
        end = next((index for index in range(before, len(token_ids)) if token_ids[index] in ends), None)
        self._has_ended = end is not None
        if matcher := self._matched():
            self._compiled.consume(matcher, token_ids[before:end], self.is_slow)
            if self._checks is not None:
                self._taken += token_ids[before:end]

    def _behind(self, begun: tuple[int, ...]) -> LLMatcher | None:
        """Return the matcher at the output's end, or behind drafts that it would begin with. None: they cannot be
        drawn."""
        matcher = self._matched()
        if not begun or matcher is None:
            return matcher
        if matcher.validate_tokens(list(begun)) < len(begun):
            return None
        matcher = matcher.deep_copy()
        matcher.consume_tokens(list(begun))
        return matcher

    def _matched(self) -> LLMatcher | None:
        if self._matcher is None and self.fault is None:
            try:
                kept = self._compiled.outcome(self._grammar) if self._kept is None else self._kept.result()
                self._matcher, self._checks = kept.matcher.deep_copy(), kept.checks
            except GrammarError as error:  # it was compiled once, and could not be again
                self.fault = f"The grammar {error}."
            self._kept = None
        return self._matcher

    def _fill_ended(self, lines: Array) -> None:
        """Allow ends alone behind an end that is ignored."""
        lines[:] = 0
        for end in self._compiled.end_token_ids:
            _allow(lines, end)

    def _fill_before(self, line: Array, prelude: Prelude) -> None:
        """Fill a mask before the grammar begins, where an answer does not end: it would lack what was asked for."""
        if self._grammar.kind != "none" and prelude.opening is not None:
            self._fill_begun(line, prelude.begun)
            _allow(line, prelude.opening)
        elif prelude.forced is not None:
            line[:] = 0
            _allow(line, prelude.forced)
        elif self._grammar.kind != "none":
            self._exclude_ends(line)

    def _exclude_ends(self, line: Array) -> None:
        for end in self._compiled.end_token_ids:
            line[end >> 5] &= ~(np.uint32(1) << np.uint32(end & 31))

    def _fill_begun(self, line: Array, begun: tuple[int, ...]) -> None:
        """Fill a mask by the grammar alone, which may let nothing follow here: an opening does all the same."""
        matcher = self._behind(begun)
        if matcher is None:
            line[:] = 0
        else:
            matcher.unsafe_compute_mask_ptr(line.ctypes.data, line.nbytes)


def _allow(lines: Array, token_id: int) -> None:
    """Allow a token in one line, or in several."""
    lines[..., token_id >> 5] |= np.uint32(1) << np.uint32(token_id & 31)


class Prelude:
    """is_over: the tokens that end it have been there, or there is none. begun: tokens of an opening that is not
    complete; where the output turns out to have none, all that is the grammar's."""

    def __init__(self, grammar: Grammar) -> None:
        """Begin; it is over at once where no tokens are known that end it."""
        self._opening, self._end = grammar.opening_token_ids, grammar.after_token_ids
        self._max_tokens = grammar.max_tokens_before
        self._matched = 0  # leading tokens of `end` that the output ends with
        self._taken = 0
        self.begun: tuple[int, ...] = ()
        self.is_over = not self._end

    def take(self, token_id: int) -> None:
        next_of_opening = self.opening
        if next_of_opening is not None:
            self.begun += (token_id,)
            if token_id != next_of_opening:
                self.is_over = True
                return
            if self.begun == self._opening:
                self.begun = ()
        self._taken += 1
        while self._matched and self._end[self._matched] != token_id:
            self._matched = self._shorter(self._matched)
        self._matched += self._end[self._matched] == token_id
        self.is_over = self._matched == len(self._end)

    @property
    def opening(self) -> int | None:
        """The token that goes on opening it, where it is not open yet: any other means that there is none."""
        is_open = self.is_over or self._taken >= len(self._opening)
        return None if is_open else self._opening[self._taken]

    @property
    def forced(self) -> int | None:
        """The token that must come next; None: any may."""
        is_spent = self._max_tokens is not None and self._taken >= self._max_tokens
        return self._end[self._matched] if is_spent and not self.is_over and self.opening is None else None

    def _shorter(self, matched: int) -> int:
        """Return the next shorter beginning of the end that so many of its tokens end with."""
        seen = self._end[:matched]
        return next(length for length in range(matched - 1, -1, -1) if seen[matched - length :] == self._end[:length])
