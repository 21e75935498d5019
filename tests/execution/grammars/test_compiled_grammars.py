"""Grammars compile in processes that are limited: whatever a client sends, the engine's process lives on."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from text.builders import byte_level

from inflight.core.types.grammar import Grammar
from inflight.core.types.request import RequestRefused
from inflight.execution.grammars import compile_queue, compiled_grammars
from inflight.execution.grammars.compile_queue import CompileQueue
from inflight.execution.grammars.compile_wire import Verdict
from inflight.execution.grammars.compiled_grammars import CompiledGrammars
from inflight.text import Tokenizer

from .vocabularies import vocabulary_of

TOKENIZER = Tokenizer(byte_level())
END = TOKENIZER.token_to_id("<|end|>")
assert END is not None
VOCABULARY = vocabulary_of(TOKENIZER, 384, END)
SMALL = Grammar("regex", "[a-z]{1,9}")
SECONDS = 120  # for which a test waits at most


@pytest.fixture
def grammars() -> Iterator[CompiledGrammars]:
    made = CompiledGrammars(lambda: VOCABULARY)
    yield made
    made.close()


def schema(value: Any) -> Grammar:
    return Grammar("json_schema", json.dumps(value))


def stepping(*steps: int) -> Grammar:
    """Multiples of all these, for which the library makes as many states as their product."""
    return schema({"type": "integer", "allOf": [{"multipleOf": step} for step in steps]})


SLOW = stepping(1999, 1997)


def referring(depth: int, step: Any) -> Grammar:
    """Schemas each of which refers to the next; `step`: one of them, of the reference."""
    steps = {f"a{n}": step({"$ref": f"#/$defs/a{n + 1}"}) for n in range(depth)}
    return schema({"$ref": "#/$defs/a0", "$defs": {**steps, f"a{depth}": {"type": "integer"}}})


@pytest.mark.parametrize(
    "grammar",
    [
        referring(1900, lambda next_one: {"anyOf": [next_one, {"type": "null"}]}),
        referring(3500, lambda next_one: next_one),
        referring(1500, lambda next_one: {"type": "object", "properties": {"x": next_one}}),
        Grammar("lark", "start: r0\n" + "\n".join(f"r{n}: r{n + 1}" for n in range(3000)) + '\nr3000: "a"'),
        Grammar("lark", "root ::= r0\n" + "\n".join(f"r{n} ::= r{n + 1}" for n in range(3000)) + '\nr3000 ::= "a"'),
        Grammar("lark", "start: " + "(" * 20000 + '"a"' + ")" * 20000),
        Grammar("regex", "(" * 5000 + "a" + ")" * 5000),
    ],
    ids=["choices", "references", "objects", "lark", "gbnf", "parentheses", "groups"],
)
def test_what_is_nested_deeply_is_compiled_or_refused(grammars: CompiledGrammars, grammar: Grammar) -> None:
    try:
        grammars.check(grammar)
    except RequestRefused as refusal:
        assert str(refusal).endswith(".") and len(str(refusal)) < 500
    grammars.check(SMALL)


def test_what_takes_too_long_or_too_much_is_refused_and_the_refusal_kept(grammars: CompiledGrammars) -> None:
    for _ in range(2):
        with pytest.raises(RequestRefused, match=r"2 s of processor time|64 MiB"):
            grammars.check(SLOW)
    assert (grammars.stats().refused, grammars.stats().cache_hits) == (1, 1)


def test_a_small_grammar_is_ready_while_another_tenants_slow_ones_compile(grammars: CompiledGrammars) -> None:
    slow = [stepping(1999, 1997 - 2 * n) for n in range(8)]
    done, ready = threading.Event(), threading.Event()
    assert grammars.prepare(slow, done.set, "other") is not None
    assert grammars.prepare([SMALL], ready.set, "mine") is not None
    assert ready.wait(SECONDS) and not done.is_set()


def test_nothing_is_compiled_for_requests_that_left(
    grammars: CompiledGrammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_queue, "MAX_AT_ONCE", 1)
    ended = threading.Event()
    slow, last = grammars.prepare([SLOW], ended.set), threading.Event()
    assert slow is not None and grammars.prepare([SMALL], last.set) is not None
    slow.cancel()
    assert last.wait(SECONDS)  # it need not wait for the end of the slow one
    assert grammars.stats().refused == 0
    slow.cancel()  # again


def test_what_another_request_waits_for_is_compiled_all_the_same(grammars: CompiledGrammars) -> None:
    done = threading.Event()
    first, second = grammars.prepare([SMALL], lambda: None), grammars.prepare([SMALL], done.set)
    assert first is not None and second is not None
    first.cancel()
    assert done.wait(SECONDS)
    assert grammars.prepare([SMALL], lambda: None) is None  # it is there


def test_too_many_that_wait_are_refused_with_their_number(
    grammars: CompiledGrammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammars.check(SMALL)
    monkeypatch.setattr(compile_queue, "MAX_AT_ONCE", 0)
    monkeypatch.setattr(compile_queue, "MAX_WAITING_OF_TENANT", 3)
    for n in range(3):
        assert grammars.prepare([Grammar("regex", f"a{{{n + 1}}}")], lambda: None, "one") is not None
    with pytest.raises(RequestRefused, match="3 of this tenant's grammars wait") as refused:
        grammars.prepare([Grammar("regex", "b"), Grammar("regex", "c")], lambda: None, "one")
    assert refused.value.retry_after and refused.value.field == "grammar"
    assert grammars.prepare([Grammar("regex", "b")], lambda: None, "another") is not None


def test_the_cache_is_bounded_by_bytes_and_the_least_recently_used_go(
    grammars: CompiledGrammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammars.check(SMALL)
    one = grammars.stats().cached_bytes
    large = stepping(71, 73)
    grammars.check(large)
    assert grammars.stats().cached_bytes > 10 * one
    monkeypatch.setattr(compiled_grammars, "CACHE_BYTES", grammars.stats().cached_bytes - 1)
    grammars.check(SMALL)
    grammars.check(Grammar("regex", "[0-9]"))
    assert grammars.stats().cached_bytes < 4 * one
    assert grammars.prepare([SMALL], lambda: None) is None  # and not the one that was asked for last


def test_a_process_that_is_killed_is_started_anew_and_its_jobs_are_sent_again() -> None:
    queue, verdicts = CompileQueue(lambda: VOCABULARY), list[Verdict]()
    both = threading.Semaphore(0)

    def decided(verdict: Verdict) -> None:
        verdicts.append(verdict)
        both.release()

    try:
        queue.start()
        process = queue._process
        assert process is not None
        os.kill(process._process.pid, signal.SIGSTOP)
        queue.put("", SMALL, decided)
        os.kill(process._process.pid, signal.SIGKILL)
        assert both.acquire(timeout=SECONDS) and verdicts[0].source is not None
        assert queue._process is not process
    finally:
        queue.close()


def test_a_closed_queue_leaves_no_process_behind() -> None:
    queue = CompileQueue(lambda: VOCABULARY)
    queue.put("", SLOW, lambda _: None)
    process = queue._process
    assert process is not None
    queue.close()
    process._process.wait(SECONDS)
    assert not Path(f"/proc/{process._process.pid}/exe").exists()
