"""Grammars that are compiled, in threads of their own, and kept for those who ask for the same again.

A grammar is compiled before its request is handed to the engine (`engine.bridge` waits for it), in threads of low
priority of the engine's process: no step does it, nobody waits for a slow one but its own request, and what cannot be
compiled is refused like any other mistake. The scheduler knows nothing of it, so that a record replays as it was. Where
a grammar has left the cache before its request's turn comes, it is compiled again beside that step's forward pass.

Knows what is kept, and what a compilation may cost; which tokens come next, `grammar_row` asks the result.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

from inflight.core.types.grammar import Grammar
from inflight.core.types.grammar_stats import GrammarStats
from inflight.core.types.request import RequestRefused
from inflight.execution.grammars.errors import GrammarError, told
from inflight.execution.grammars.tally import GrammarTally
from inflight.execution.grammars.vocabulary import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_Key = tuple[str, str]  # kind and source
_KEPT = 512
_THREADS = 2
_NICE = 10
_MOST_STATES = 50_000  # of the automaton that reads a text; of about 2 kB
_MOST_SYMBOLS = 200_000  # of its rules
_NAMES = {
    "json_schema": "The JSON schema",
    "json_object": "The JSON object",
    "regex": "The regular expression",
    "choice": "The choice",
    "lark": "The grammar",
    "structural_tag": "The structural tag",
}


class CompiledGrammars:
    """The engine's `GrammarGate`. end_token_ids: that may end an answer; known from the first grammar on."""

    def __init__(self, vocabulary: Callable[[], Vocabulary]) -> None:
        """vocabulary: asked for when the first grammar comes, in a thread. Raises GrammarError where there is none."""
        self._vocabulary = vocabulary
        self._pool = ThreadPoolExecutor(_THREADS, "grammars", _give_way)
        self._kept: OrderedDict[_Key, Future[LLMatcher]] = OrderedDict()
        self._lock = threading.Lock()  # of what stands above and below
        self._tokenizer: LLTokenizer | None = None
        self._making = threading.Lock()  # the tokenizer, once
        self.tally = GrammarTally()
        self.end_token_ids: frozenset[int] = frozenset()

    @property
    def mask_words(self) -> int:
        """Words of 32 bits of a mask; 0 before the first grammar was compiled."""
        return -(-self._tokenizer.vocab_size // 32) if self._tokenizer is not None else 0

    def warm_up(self) -> None:
        """Makes the view of the tokenizer, in a thread: the library lets nobody else compute Python meanwhile, for half
        a second with 150,000 tokens, which later would be taken from whoever is being answered."""
        self._pool.submit(self._made_tokenizer)  # where there is none, the first grammar is told why

    def check(self, grammar: Grammar) -> None:
        """Raises RequestRefused for what cannot be compiled; waits where nobody has prepared it."""
        if grammar.kind == "none":
            return
        try:
            self._future(grammar).result()
        except GrammarError as error:
            sentence = f"{_NAMES[grammar.kind]} {str(error).rstrip('.')}."
            raise RequestRefused(sentence, field="grammar", code="invalid_grammar") from None

    def prepare(self, grammars: Sequence[Grammar], then: Callable[[], None]) -> bool:
        """Calls `then`, in any thread, when all of them are compiled or have turned out not to be. False: they are, and
        nobody is called."""
        futures = [self._future(one) for one in grammars if one.kind != "none"]
        left = [one for one in futures if not one.done()]
        if not left:
            return False
        self._wait_for(left, then)
        return True

    def new_matcher(self, grammar: Grammar) -> LLMatcher:
        """At the beginning of the grammar. Raises GrammarError."""
        return self._future(grammar).result().deep_copy()

    def stats(self) -> GrammarStats:
        return self.tally.stats()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _wait_for(self, futures: list[Future[LLMatcher]], then: Callable[[], None]) -> None:
        """One after the other: a callback of the last to come may run before the next is asked for."""

        def next_one(_: Future[LLMatcher] | None = None) -> None:
            while futures and futures[-1].done():
                futures.pop()
            if futures:
                futures[-1].add_done_callback(next_one)
            else:
                then()

        next_one()

    def _future(self, grammar: Grammar) -> Future[LLMatcher]:
        key = (grammar.kind, grammar.source)
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self.tally.cache_hits += 1
                self._kept.move_to_end(key)
                return found
            future = self._kept[key] = self._pool.submit(self._compile, grammar)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return future

    def _made_tokenizer(self) -> LLTokenizer:
        with self._making:
            if self._tokenizer is None:
                vocabulary = self._vocabulary()
                try:
                    self._tokenizer = vocabulary.for_llguidance()
                except Exception as error:  # whatever the library cannot make of a tokenizer
                    sentence = f"cannot be used, since the model's tokenizer is not understood: {error}"
                    raise GrammarError(sentence) from None
                self.end_token_ids = frozenset(vocabulary.end_token_ids)
            return self._tokenizer

    def _compile(self, grammar: Grammar) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits  # here, since most engines are never asked for a grammar

        from inflight.execution.grammars.grammar_source import grammar_source

        began = time.perf_counter()
        is_sound = False
        try:
            tokenizer = self._made_tokenizer()
            source = grammar_source(grammar, partial(_is_special, tokenizer))
            limits = LLParserLimits(max_lexer_states=_MOST_STATES, max_grammar_size=_MOST_SYMBOLS, verbose_errors=False)
            matcher = LLMatcher(tokenizer, source, log_level=0, limits=limits)
            if matcher.is_error():
                raise GrammarError(f"cannot be used: {told(matcher.get_error())}")
            matcher.compute_bitmask()  # what a row's first mask needs is found once
            if matcher.is_error():
                raise GrammarError(f"cannot be computed: {told(matcher.get_error())}")
            is_sound = True
            return matcher
        finally:
            with self._lock:
                self.tally.compiled += is_sound
                self.tally.refused += not is_sound
                self.tally.compile_seconds += time.perf_counter() - began


def _give_way() -> None:
    """This thread computes when the steps' threads do not, where the system lets threads differ in that."""
    with contextlib.suppress(AttributeError, OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


def _is_special(tokenizer: LLTokenizer, text: str) -> bool:
    token_ids = tokenizer.tokenize_str(text, parse_special=True)
    return len(token_ids) == 1 and tokenizer.is_special_token(token_ids[0])
