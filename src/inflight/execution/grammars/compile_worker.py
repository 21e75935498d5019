"""Compile grammars first in limited children of a process: `python -m inflight.execution.grammars.compile_worker FD`.

The process makes the library's view of the tokenizer once, then forks a child for each grammar. A child bounds its own
processor time, memory and stack, compiles the grammar and fills its first mask. A grammar that exceeds a bound, or
makes the library crash, ends its child alone, and the process reports why. The engine compiles again what passed here,
in a thread with four times the stack, since the library cannot send a compiled grammar to another process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import resource
import selectors
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from inflight.core.types.sampling import Grammar
from inflight.execution.grammars.compiling import (
    NICE,
    STACK_BYTES,
    CompileJob,
    GrammarError,
    Verdict,
    compiled,
    decode_order,
    encode,
    is_unsatisfiable,
    lower_priority,
)
from inflight.execution.grammars.grammar_source import GrammarSource, explained, grammar_source
from inflight.execution.grammars.json_schema.answer_check import AnswerChecks
from inflight.limited_process import end_before_others, limit_memory, receive, send, silence_stderr

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from inflight.execution.grammars.vocabulary import Vocabulary

CPU_SECONDS = 2.0  # of one grammar; 437 schemas of real projects take 0.0024 s in the median, and 0.028 s at most
MEMORY_BYTES = 64 << 20  # of a compiled grammar
WORKING_BYTES = 256 << 20  # while it is compiled
MAX_ERROR_CHARACTERS = 300
SMALL_SECONDS = 0.1  # after which a grammar is large, and small ones and steps come before it
LARGE_NICE = 15
_WITH_SCHEMAS = ("json_schema", "lark", "structural_tag")

TOO_SLOW = f"takes more than {CPU_SECONDS:g} s of processor time to compile; make it smaller or simpler"
TOO_DEEP = "is nested too deeply to be compiled (references count too); make it flatter"
KILLED = "cannot be compiled now: its process was killed, as systems do when memory is short; try again in a moment"
TOO_LARGE = f"takes more than {MEMORY_BYTES >> 20} MiB when compiled; make it smaller, or its numbers and counts lower"


class _Known(NamedTuple):
    """The model's tokens, and the library's view of them."""

    vocabulary: Vocabulary
    tokenizer: LLTokenizer


# -- the child
def _compile(known: _Known, job: CompileJob, verdict: int, others: list[int]) -> None:
    """Write the verdict of one job to a pipe, and end this process, whatever happens: an error that went on from here
    would end the children beside it. others: descriptors of the process that forked it."""
    try:
        for one in others:
            os.close(one)
        _write_verdict(known, job, verdict)
        os._exit(0)
    finally:
        os._exit(1)


def _write_verdict(known: _Known, job: CompileJob, verdict: int) -> None:
    silence_stderr()
    limit_memory(WORKING_BYTES + STACK_BYTES)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # SIGPROF ends the process, whatever it computes
    outcome: list[Verdict] = []
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=lambda: outcome.append(_verdict(known, job)))
    thread.start()
    thread.join(SMALL_SECONDS)
    if thread.is_alive() and thread.native_id is not None:
        lower_priority(LARGE_NICE, thread.native_id)
    thread.join()
    with os.fdopen(verdict, "wb", closefd=False) as pipe:
        pipe.write(encode(outcome[0]))


def _verdict(known: _Known, job: CompileJob) -> Verdict:
    before, began, error = _allocated_bytes(), time.process_time(), None
    memory, source = 0, GrammarSource("")
    try:
        source, *kept = _followed(known, Grammar(job.kind, job.source))
        memory = max(0, _allocated_bytes() - before)
        del kept
        error = TOO_LARGE if memory > MEMORY_BYTES else None
    except GrammarError as fault:
        error = str(fault)
    except MemoryError:
        error = TOO_LARGE
    except RecursionError:
        error = TOO_DEEP
    except BaseException as fault:  # what the library panics with is no Exception
        error = f"cannot be compiled: {type(fault).__name__}: {fault}"[:MAX_ERROR_CHARACTERS]
    seconds = time.process_time() - began
    if error is not None:
        return Verdict(job.number, error=error, seconds=seconds)
    return Verdict(job.number, source.text, dict(source.checks), memory_bytes=memory, seconds=seconds)


def _followed(known: _Known, grammar: Grammar) -> tuple[GrammarSource, LLMatcher, AnswerChecks]:
    """Return a grammar as the library takes it, schemas in a wider form where it does not take them otherwise. Raises
    GrammarError."""
    try:
        return _compiled_source(known, grammar, is_wide=False)
    except GrammarError as error:
        if grammar.kind not in _WITH_SCHEMAS:
            raise
        if is_unsatisfiable(error):
            raise explained(grammar, error) from None
        try:
            return _compiled_source(known, grammar, is_wide=True)
        except GrammarError:
            raise error from None


def _compiled_source(known: _Known, grammar: Grammar, is_wide: bool) -> tuple[GrammarSource, LLMatcher, AnswerChecks]:
    source = grammar_source(grammar, known.vocabulary, is_wide)
    return source, compiled(known.tokenizer, source.text), AnswerChecks(source.checks)


class _MallocInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks"),
            "keepcost",
        )
    )


def _allocated_bytes() -> int:
    """Return what the C library has handed out; what the process has at most, where it cannot say."""
    with contextlib.suppress(AttributeError, OSError):
        mallinfo2 = ctypes.CDLL(None).mallinfo2
        mallinfo2.restype = _MallocInfo
        info = mallinfo2()
        return int(info.uordblks + info.hblkhd)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


# -- the process that forks them
@dataclass(slots=True)
class _Child:
    """A job at work. verdict: what has come of it."""

    number: int
    pid: int
    verdict: bytearray = field(default_factory=bytearray)
    cancelled: bool = False


class _Children:
    """The jobs at work, by the pipes of their verdicts."""

    def __init__(self, engine: socket.socket, known: _Known) -> None:
        self._engine, self._known = engine, known
        self._children: dict[int, _Child] = {}

    @property
    def pipes(self) -> list[int]:
        return list(self._children)

    def start(self, job: CompileJob) -> None:
        """Fork a child for this job; report where the system lets no child start."""
        pipe: tuple[int, ...] = ()
        try:
            theirs, mine = pipe = os.pipe()
            pid = os.fork()
        except OSError as error:
            for one in pipe:
                os.close(one)
            sentence = (
                f"cannot be compiled now, since the system starts no process ({error.strerror}); try again in 1 s"
            )
            return send(self._engine, encode(Verdict(job.number, error=sentence, passes=True)))
        if not pid:
            _compile(self._known, job, mine, [self._engine.fileno(), theirs, *self._children])
        os.close(mine)
        self._children[theirs] = _Child(job.number, pid)

    def cancel(self, number: int) -> None:
        """Kill the child of this job, if it is at work."""
        for child in self._children.values():
            if child.number == number:
                child.cancelled = True
                os.kill(child.pid, signal.SIGKILL)  # it is reaped when its pipe closes

    def read(self, pipe: int) -> None:
        """Take in more of a verdict, and forward it once the child has ended."""
        child = self._children[pipe]
        piece = os.read(pipe, 1 << 20)
        if piece:
            child.verdict += piece
            return
        os.close(pipe)
        del self._children[pipe]
        ended = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
        if not child.cancelled:
            send(self._engine, bytes(child.verdict) if ended == 0 else encode(ended_verdict(child.number, ended)))

    def end(self) -> None:
        """Kill all that is at work."""
        for child in self._children.values():
            os.kill(child.pid, signal.SIGKILL)


def ended_verdict(number: int, ended: int) -> Verdict:
    """Return the verdict of a child that ended before it had one. ended: its exit code, negative for a signal."""
    if ended == -signal.SIGKILL:
        return Verdict(number, error=KILLED, passes=True)
    if ended == -signal.SIGPROF:
        return Verdict(number, error=TOO_SLOW)
    return Verdict(number, error=TOO_LARGE if ended == -signal.SIGABRT else TOO_DEEP)


def main() -> int:
    """Serve an engine until it closes its socket. The first frame is the pickled vocabulary; orders follow."""
    for number in (signal.SIGINT, signal.SIGHUP):  # the terminal's are for the engine's process
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(NICE)
    end_before_others()
    import jsonschema_rs  # noqa: F401  (or each child would load it)

    with socket.socket(fileno=int(sys.argv[1])) as engine, contextlib.suppress(EOFError, OSError):
        vocabulary: Vocabulary = pickle.loads(receive(engine))
        children = _Children(engine, _Known(vocabulary, vocabulary.for_llguidance()))
        try:
            _serve(engine, children)
        finally:
            children.end()
    return 0


def _serve(engine: socket.socket, children: _Children) -> None:
    """Serve the engine until it closes its side, when EOFError or OSError is raised."""
    while True:
        for ready in _readable([engine.fileno(), *children.pipes]):
            if ready != engine.fileno():
                children.read(ready)
            elif isinstance(order := decode_order(receive(engine)), CompileJob):
                children.start(order)
            else:
                children.cancel(order.number)


def _readable(descriptors: list[int]) -> list[int]:
    """Wait for one of these. The engine's may be numbered above 1,023, which `select` does not take."""
    with selectors.PollSelector() as selector:
        for one in descriptors:
            selector.register(one, selectors.EVENT_READ)
        return [key.fd for key, _ in selector.select()]


if __name__ == "__main__":
    sys.exit(main())
