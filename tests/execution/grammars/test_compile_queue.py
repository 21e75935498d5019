"""The process that compiles grammars may be killed, may not start, and leaves nothing behind."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from text.builders import byte_level

from inflight.core.types.sampling import Grammar
from inflight.execution.grammars import compile_worker
from inflight.execution.grammars.compile_queue import CompileQueue
from inflight.execution.grammars.compiling import CompileJob, Verdict
from inflight.text import Tokenizer

from .vocabularies import vocabulary_of

TOKENIZER = Tokenizer(byte_level())
VOCABULARY = vocabulary_of(TOKENIZER, 384, TOKENIZER.token_to_id("<|end|>") or 0)
SMALL = Grammar("regex", "[a-z]{1,9}")
SLOW = Grammar("json_schema", '{"type": "integer", "allOf": [{"multipleOf": 1999}, {"multipleOf": 1997}]}')
SECONDS = 120  # for which a test waits at most


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


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """So many are open that the next is numbered above 1,023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip("this system lets a process have fewer than 2,048 descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    first = os.open(os.devnull, os.O_RDONLY)
    opened = [first]
    while opened[-1] <= 1023:
        opened.append(os.dup(first))
    yield
    for one in opened:
        os.close(one)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def verdict_of(queue: CompileQueue, grammar: Grammar) -> Verdict:
    verdicts, done = list[Verdict](), threading.Event()
    queue.put("", grammar, lambda verdict: (verdicts.append(verdict), done.set())[0])
    assert done.wait(SECONDS)
    return verdicts[0]


@pytest.mark.usefixtures("many_descriptors")
def test_a_process_starts_while_a_thousand_clients_are_connected() -> None:
    queue = CompileQueue(lambda: VOCABULARY)
    try:
        assert verdict_of(queue, SMALL).error is None
    finally:
        queue.close()


def test_a_process_that_was_killed_leaves_no_thread_and_no_descriptor() -> None:
    queue = CompileQueue(lambda: VOCABULARY)
    try:
        verdict_of(queue, SMALL)
        threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            process = queue._process
            assert process is not None
            process._process.kill()
            while queue._process is process:  # it is started with the next job
                time.sleep(0.01)
            assert verdict_of(queue, SMALL).error is None
        end = time.monotonic() + SECONDS
        while (threading.active_count() > threads or len(os.listdir("/proc/self/fd")) > descriptors) and (
            time.monotonic() < end
        ):
            time.sleep(0.01)
        assert threading.active_count() <= threads and len(os.listdir("/proc/self/fd")) <= descriptors
    finally:
        queue.close()


def test_a_queue_that_is_closed_while_it_starts_starts_nothing() -> None:
    queue = CompileQueue(lambda: VOCABULARY)
    queue.close()
    queue.start()
    assert queue._process is None


def test_tenants_that_have_left_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inflight.execution.grammars.compile_queue.MAX_AT_ONCE", 0)
    queue = CompileQueue(lambda: VOCABULARY)
    try:
        for n in range(3):
            queue.cancel(queue.put(f"tenant {n}", SMALL, lambda _: None))
        assert not queue._waiting
    finally:
        queue.close()


def test_whatever_the_library_raises_is_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that left a child's code would end the children beside it."""

    class Panic(BaseException):
        pass

    def panics(*_: object) -> None:
        raise Panic("index out of range")

    monkeypatch.setattr(compile_worker, "_followed", panics)
    known = compile_worker._Known(VOCABULARY, VOCABULARY.for_llguidance())
    verdict = compile_worker._verdict(known, CompileJob(7, "regex", "a"))
    assert verdict.number == 7 and "Panic: index out of range" in (verdict.error or "")


def test_a_child_that_the_system_killed_says_nothing_about_its_grammar() -> None:
    killed, slow = (compile_worker.ended_verdict(7, -one) for one in (signal.SIGKILL, signal.SIGPROF))
    assert killed.passes and "was killed" in str(killed.error)
    assert not slow.passes and "2 s of processor time" in str(slow.error)
