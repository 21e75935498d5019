"""Grammars compile in processes that are limited: whatever a client sends, the engine's process lives on."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from text.builders import byte_level

from inflight.core.types.request import RequestRefused
from inflight.core.types.sampling import Grammar
from inflight.execution.grammars import compile_queue, compiled_grammars
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
    grammars.prepare(slow, done.set, "other")
    grammars.prepare([SMALL], ready.set, "mine")
    assert ready.wait(SECONDS) and not done.is_set()


def test_nothing_is_compiled_for_requests_that_left(
    grammars: CompiledGrammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_queue, "MAX_AT_ONCE", 1)
    ended = threading.Event()
    slow, last = grammars.prepare([SLOW], ended.set), threading.Event()
    grammars.prepare([SMALL], last.set)
    slow.cancel()
    assert last.wait(SECONDS)  # it need not wait for the end of the slow one
    assert grammars.stats().refused == 0
    slow.cancel()  # again


def test_what_another_request_waits_for_is_compiled_all_the_same(grammars: CompiledGrammars) -> None:
    done = threading.Event()
    first = grammars.prepare([SMALL], lambda: None)
    grammars.prepare([SMALL], done.set)
    first.cancel()
    assert done.wait(SECONDS)
    assert grammars.prepare([SMALL], lambda: None).is_ready  # it is there


def test_too_many_that_wait_are_refused_with_their_number(
    grammars: CompiledGrammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammars.check(SMALL)
    monkeypatch.setattr(compile_queue, "MAX_AT_ONCE", 0)
    monkeypatch.setattr(compile_queue, "MAX_WAITING_OF_TENANT", 3)
    for n in range(3):
        grammars.prepare([Grammar("regex", f"a{{{n + 1}}}")], lambda: None, "one")
    with pytest.raises(RequestRefused, match="3 of this tenant's grammars wait") as refused:
        grammars.prepare([Grammar("regex", "b"), Grammar("regex", "c")], lambda: None, "one")
    assert refused.value.retry_after and refused.value.field == "grammar"
    grammars.prepare([Grammar("regex", "b")], lambda: None, "another")


def test_the_cache_is_bounded_by_bytes_and_those_used_longest_ago_go(
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
    assert grammars.prepare([SMALL], lambda: None).is_ready  # and not the one that was asked for last


def test_what_a_request_has_prepared_is_kept_until_it_is_handed_in(
    grammars: CompiledGrammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its check runs in an event loop, or while the engine waits."""
    monkeypatch.setattr(compiled_grammars, "CACHE_BYTES", 0)
    ready, others = threading.Event(), threading.Event()
    mine = grammars.prepare([SMALL], ready.set)
    other = grammars.prepare([Grammar("regex", f"b{{{n}}}") for n in range(1, 5)], others.set)
    assert ready.wait(SECONDS) and others.wait(SECONDS)
    grammars.check(SMALL)
    assert grammars.stats().compiled == 5
    kept = grammars.stats().cached_bytes
    mine.cancel()
    other.cancel()
    assert grammars.stats().cached_bytes < kept


def test_a_grammar_whose_process_was_killed_twice_may_be_asked_for_again(grammars: CompiledGrammars) -> None:
    grammars.check(SMALL)
    done = threading.Event()
    preparation, killed = grammars.prepare([SLOW], done.set), list[Any]([None])
    for _ in range(2):
        while (process := grammars._queue._process) in killed:
            time.sleep(0.01)
        assert process is not None
        process._process.kill()
        killed.append(process)
    assert done.wait(SECONDS)
    with pytest.raises(RequestRefused, match="ended twice") as refused:
        grammars.check(SLOW)
    assert refused.value.retry_after
    preparation.cancel()
    with pytest.raises(RequestRefused, match=r"processor time|MiB") as refused:
        grammars.check(SLOW)
    assert refused.value.retry_after is None


def test_a_process_that_cannot_be_started_refuses_for_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_process(*_: Any, **__: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    made = CompiledGrammars(lambda: VOCABULARY)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(compile_queue.subprocess, "Popen", no_process)
            for _ in range(5):  # more than a tenant's at work
                with pytest.raises(RequestRefused, match="no process can be started") as refused:
                    made.check(SMALL)
                assert refused.value.retry_after
        made.check(SMALL)
    finally:
        made.close()


def test_no_thread_waits_for_a_grammar_of_an_engine_that_was_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    made, outcomes = CompiledGrammars(lambda: VOCABULARY), list[RequestRefused]()
    made.check(SMALL)
    monkeypatch.setattr(compile_queue, "MAX_AT_ONCE", 0)

    def wait() -> None:
        try:
            made.check(Grammar("regex", "b"))
        except RequestRefused as refusal:
            outcomes.append(refusal)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    while made.stats().cache_hits == 0 and not made._entries.get(("regex", "b")):
        time.sleep(0.01)
    made.close()
    waiting.join(SECONDS)
    assert "was closed" in str(outcomes[0])
    with pytest.raises(RequestRefused, match="was closed"):
        made.check(Grammar("regex", "c"))


def test_a_fault_of_the_library_refuses_its_grammar_alone(
    grammars: CompiledGrammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Panic(BaseException):
        pass

    def panics(*_: Any) -> None:
        raise Panic

    with monkeypatch.context() as patched:
        patched.setattr(compiled_grammars, "compiled", panics)
        for n in range(1, 4):  # more than there are threads
            with pytest.raises(RequestRefused, match="Panic"):
                grammars.check(Grammar("regex", f"b{{{n}}}"))
    grammars.check(SMALL)
