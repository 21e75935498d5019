"""Compile grammars beside the engine, and cache them for requests that ask for the same again."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

from inflight.core.types.request import RequestRefused
from inflight.core.types.sampling import Grammar, GrammarStats
from inflight.execution.grammars.compile_queue import CompileQueue
from inflight.execution.grammars.compiling import (
    NICE,
    STACK_BYTES,
    GrammarError,
    GrammarNotNow,
    Verdict,
    compiled,
    lower_priority,
)
from inflight.execution.grammars.json_schema.answer_check import AnswerChecks
from inflight.execution.grammars.vocabulary import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

CACHE_BYTES = 64 << 20  # of compiled grammars, whether a running request uses them or not
_OVERHEAD_BYTES = 64 << 10  # of one, beside what compiling it allocated; of a refusal, its source and sentence
_THREADS = 2
log = logging.getLogger(__name__)
_NAMES = {
    "json_schema": "The JSON schema",
    "json_object": "The JSON object",
    "regex": "The regular expression",
    "choice": "The choice",
    "lark": "The grammar",
    "structural_tag": "The structural tag",
}


@dataclass(slots=True)
class GrammarTally:
    """Count grammars and masks, as `GrammarStats` has them."""

    compiled: int = 0
    refused: int = 0
    compile_seconds: float = 0.0
    cache_hits: int = 0
    masks: int = 0
    mask_seconds: float = 0.0
    wait_seconds: float = 0.0
    sit_outs: int = 0

    def stats(self, cached_bytes: int = 0) -> GrammarStats:
        return GrammarStats(**asdict(self), cached_bytes=cached_bytes)


class Compiled(NamedTuple):
    """checks: of texts once they are whole, where the grammar allows more than was asked for."""

    matcher: LLMatcher
    checks: AnswerChecks | None


@dataclass(slots=True, eq=False)
class _Entry:
    """A grammar that is being compiled, was, or cannot be.

    outcome: its matcher and checks, or GrammarError. interested: requests that wait for it, or were not handed in yet;
    as long as there are any, it is kept; without any, compiling is cancelled. job: its number in the queue. passes:
    why it was not compiled is none of its own faults; the next request that asks for it tries again.
    """

    grammar: Grammar
    outcome: Future[Compiled] = field(default_factory=Future)
    interested: int = 0
    job: int | None = None
    passes: bool = False
    memory_bytes: int = _OVERHEAD_BYTES


class Preparation:
    """Grammars of requests of one consumer. is_ready: all are compiled, or cannot be."""

    def __init__(self, entries: list[_Entry], drop: Callable[[_Entry], None]) -> None:
        self._entries, self._drop = entries, drop

    @property
    def is_ready(self) -> bool:
        return all(entry.outcome.done() for entry in self._entries)

    def cancel(self) -> None:
        """Stop compiling what no other request waits for, and keep nothing for these any longer. Harmless when called
        again."""
        entries, self._entries = self._entries, []
        for entry in entries:
            self._drop(entry)


class CompiledGrammars:
    """The engine's `GrammarGate`.

    A grammar is compiled before its request enters the engine (`engine.bridge` waits for it): first in a limited
    process (`compile_queue`), which refuses what is too slow, too large or too deep, then here, in a thread of low
    priority, since the library cannot send a compiled grammar to another process. The scheduler has no part in it, so
    that a record replays as it was. Compiled grammars are cached by bytes, and the least recently used are evicted; one
    that is gone before its request runs is compiled again beside that step's forward pass.

    Attributes:
        end_token_ids: That may end an answer; known from the first grammar on.
    """

    def __init__(self, vocabulary: Callable[[], Vocabulary]) -> None:
        """Create the cache. vocabulary: called when the first grammar comes, in a thread; raises GrammarError where
        there is none."""
        self._vocabulary = vocabulary
        self._queue = CompileQueue(vocabulary)
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._has_threads = False
        self._entries: OrderedDict[tuple[str, str], _Entry] = OrderedDict()  # by kind and source
        self._cached_bytes = 0
        self._lock = threading.RLock()  # of what stands above and below
        self._tokenizer: LLTokenizer | None = None
        self._making = threading.Lock()  # the tokenizer, once
        self.tally = GrammarTally()
        self.end_token_ids: frozenset[int] = frozenset()

    @property
    def mask_words(self) -> int:
        """Words of 32 bits of a mask; 0 before the first grammar was compiled."""
        return -(-self._tokenizer.vocab_size // 32) if self._tokenizer is not None else 0

    def warm_up(self) -> None:
        """Make the view of the tokenizer, in a thread, and start the process that has one, too. The library lets no
        other thread compute Python meanwhile, for half a second with 150,000 tokens, which later would delay requests
        that are being answered."""

        def start() -> None:
            with contextlib.suppress(GrammarError):  # the first grammar's refusal says why there is none
                self._load()

        self._in_thread(start)

    def prepare(self, grammars: Sequence[Grammar], then: Callable[[], None], tenant: str = "") -> Preparation:
        """Compile them, and call `then`, in any thread, when all are compiled or have turned out not to be.

        Where all were before (`is_ready`), `then` is not called. They are kept until the preparation is cancelled.
        Raises RequestRefused where too many wait.
        """
        with self._lock:
            entries: list[_Entry] = []
            preparation = Preparation(entries, self._lose_interest)
            for one in grammars:
                try:
                    if one.kind != "none":
                        entries.append(self._entry(one, tenant))
                except GrammarNotNow as error:
                    preparation.cancel()
                    raise _refusal(one, error) from None
            if preparation.is_ready:
                return preparation
        _when_done([entry.outcome for entry in entries], then)
        return preparation

    def check(self, grammar: Grammar) -> None:
        """Raise RequestRefused for what cannot be compiled; waits for what was not prepared."""
        if grammar.kind == "none":
            return
        try:
            self.outcome(grammar)
        except GrammarError as error:
            raise _refusal(grammar, error) from None

    def text(self, token_ids: list[int]) -> bytes:
        """Return the text that tokens of an output spell."""
        assert self._tokenizer is not None, "a grammar was compiled"
        return self._tokenizer.decode_bytes(token_ids)

    def tokens(self, text: str) -> list[int]:
        assert self._tokenizer is not None, "a grammar was compiled"
        return self._tokenizer.tokenize_str(text)

    def outcome(self, grammar: Grammar) -> Compiled:
        """Return what is kept, whose matcher is not to move; waits for what was not prepared. Raises GrammarError."""
        with self._lock:
            entry = self._entry(grammar, "")
        try:
            return entry.outcome.result()
        finally:
            self._lose_interest(entry)

    def found(self, grammar: Grammar) -> Future[Compiled] | None:
        """Return what was compiled, or refused, and is still there."""
        with self._lock:
            entry = self._entries.get(_key(grammar))
            return entry.outcome if entry is not None and entry.outcome.done() else None

    def consume(self, matcher: LLMatcher, token_ids: Sequence[int], is_slow: bool) -> None:
        """Move a matcher on. is_slow: other threads compute Python meanwhile, which the library lets them where it
        moves several matchers at once; so it is given one more, which stays where it is."""
        if not is_slow:
            matcher.consume_tokens(list(token_ids))
            return
        from llguidance import LLExecutor, LLMatcher

        assert self._tokenizer is not None, "the matcher was made with it"
        executor, another = LLExecutor(1), LLMatcher(self._tokenizer, "", log_level=0)
        for token_id in token_ids:
            executor.consume_token_par([(matcher, token_id), (another, token_id)])

    def stats(self) -> GrammarStats:
        return self.tally.stats(self._cached_bytes)

    def close(self) -> None:
        """End the process and the threads; what waits is refused, so that no thread waits for ever."""
        self._queue.close()
        with self._lock:
            threads = _THREADS if self._has_threads else 0
            waiting = [entry for entry in self._entries.values() if not entry.outcome.done()]
        for entry in waiting:
            self._refuse(entry, GrammarNotNow("cannot be compiled: the engine was closed"))
        for _ in range(threads):
            self._work.put(None)

    # -- entries
    def _entry(self, grammar: Grammar, tenant: str) -> _Entry:
        """Return its entry, one more being interested; compiling it begins where there is none. Raises
        GrammarNotNow."""
        entry = self._entries.get(_key(grammar))
        if entry is not None:
            self.tally.cache_hits += 1
            self._entries.move_to_end(_key(grammar))
        else:
            entry = _Entry(grammar)
            self._begin(entry, tenant)
            self._entries[_key(grammar)] = entry
        entry.interested += 1
        return entry

    def _begin(self, entry: _Entry, tenant: str) -> None:
        """Queue a grammar for the limited process, once the tokenizer is there, without which no grammar means
        anything."""
        if self._tokenizer is None:
            return self._in_thread(lambda: self._begin_with_tokenizer(entry, tenant))
        entry.job = self._queue.put(tenant, entry.grammar, lambda verdict: self._decided(entry, verdict))

    def _begin_with_tokenizer(self, entry: _Entry, tenant: str) -> None:
        with self._refusing(entry):
            self._load()
            with self._lock:
                if self._entries.get(_key(entry.grammar)) is entry:  # else no request has waited so long
                    self._begin(entry, tenant)

    @contextlib.contextmanager
    def _refusing(self, entry: _Entry) -> Iterator[None]:
        """Refuse this grammar whatever goes wrong: its requests would wait for ever, and the thread end."""
        try:
            yield
        except GrammarError as error:
            self._refuse(entry, error)
        except BaseException as error:  # what the library panics with is no Exception
            log.exception("a grammar could not be compiled")
            self._refuse(entry, GrammarNotNow(f"cannot be compiled: {type(error).__name__}; see the server's log"))

    def _decided(self, entry: _Entry, verdict: Verdict) -> None:
        """Take in the limited process's verdict, in the thread that reads it."""
        with self._lock:
            self.tally.compile_seconds += verdict.seconds
        if verdict.source is None:
            kind = GrammarNotNow if verdict.passes else GrammarError
            return self._refuse(entry, kind(verdict.error or "cannot be compiled"))
        source = verdict.source
        self._in_thread(lambda: self._compile(entry, source, verdict))

    def _compile(self, entry: _Entry, source: str, verdict: Verdict) -> None:
        """Compile what a limited process has compiled before, in a thread with more stack."""
        assert self._tokenizer is not None, "made before the process was asked"
        if entry.outcome.done():
            return
        with self._refusing(entry):
            checks = AnswerChecks(verdict.checks) if verdict.checks else None
            outcome = Compiled(compiled(self._tokenizer, source), checks)
            if self._decide(entry, verdict.memory_bytes):
                entry.outcome.set_result(outcome)

    def _refuse(self, entry: _Entry, error: GrammarError) -> None:
        entry.passes = isinstance(error, GrammarNotNow)
        if self._decide(entry, None):
            entry.outcome.set_exception(error)

    def _decide(self, entry: _Entry, memory_bytes: int | None) -> bool:
        """Return whether an outcome is to be set: no request has cancelled the grammar, and none can from now on.
        memory_bytes: that it takes; None: it is refused."""
        with self._lock:
            if entry.outcome.done() or entry.outcome.running() or not entry.outcome.set_running_or_notify_cancel():
                return False
            if memory_bytes is None:
                self.tally.refused += 1
            else:
                self.tally.compiled += 1
                entry.memory_bytes += memory_bytes
            self._cached_bytes += entry.memory_bytes
            self._evict()
            return True

    def _evict(self) -> None:
        """Drop what was asked for least recently and no request is interested in, until the rest fits."""
        for key, one in list(self._entries.items())[:-1]:
            if self._cached_bytes <= CACHE_BYTES:
                return
            if not one.interested and one.outcome.done():
                del self._entries[key]
                self._cached_bytes -= one.memory_bytes

    def _lose_interest(self, entry: _Entry) -> None:
        """Note that one request less waits for an entry, or has it kept."""
        with self._lock:
            entry.interested -= 1
            if entry.interested:
                return
            if entry.outcome.cancel():
                self._entries.pop(_key(entry.grammar), None)
                if entry.job is not None:
                    self._queue.cancel(entry.job)
            elif entry.passes:
                if self._entries.pop(_key(entry.grammar), None) is not None:
                    self._cached_bytes -= entry.memory_bytes
            else:
                self._evict()

    # -- threads
    def _load(self) -> None:
        """Make the tokenizer's view, and have the process make its own. Raises GrammarError."""
        with self._making:
            if self._tokenizer is None:
                vocabulary = self._vocabulary()
                self._queue.start()
                try:
                    self._tokenizer = vocabulary.for_llguidance()
                except Exception as error:  # whatever the library cannot make of a tokenizer
                    sentence = f"cannot be used, since the model's tokenizer is not understood: {error}"
                    raise GrammarError(sentence) from None
                self.end_token_ids = frozenset(vocabulary.end_token_ids)

    def _in_thread(self, work: Callable[[], None]) -> None:
        """Do work in threads of low priority, with four times the stack of the limited process. They end with the
        interpreter, which waits for none of them."""
        with self._lock:
            if not self._has_threads:
                self._has_threads = True
                usual = threading.stack_size(4 * STACK_BYTES)
                try:
                    for _ in range(_THREADS):
                        threading.Thread(target=_run, args=(self._work,), name="grammars", daemon=True).start()
                finally:
                    threading.stack_size(usual)
        self._work.put(work)


def _key(grammar: Grammar) -> tuple[str, str]:
    return grammar.kind, grammar.source


def _refusal(grammar: Grammar, error: GrammarError) -> RequestRefused:
    sentence = f"{_NAMES[grammar.kind]} {str(error).rstrip('.')}."
    if isinstance(error, GrammarNotNow):
        return RequestRefused(sentence, 1.0, field="grammar", code="too_many_grammars")
    return RequestRefused(sentence, field="grammar", code="invalid_grammar")


def _run(work: SimpleQueue[Callable[[], None] | None]) -> None:
    """Do work at low priority, as steps come first, until there is None."""
    lower_priority(NICE, threading.get_native_id())
    while (one := work.get()) is not None:
        one()


def _when_done(outcomes: list[Future[Compiled]], then: Callable[[], None]) -> None:
    """Call `then` when all are done, one after the other: a callback of the last to come may run before the next is
    added."""

    def next_one(_: Future[Compiled] | None = None) -> None:
        while outcomes and outcomes[-1].done():
            outcomes.pop()
        if outcomes:
            outcomes[-1].add_done_callback(next_one)
        else:
            then()

    next_one()
