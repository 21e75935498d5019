"""Compile one grammar, as the limited process and the engine do: bounds, errors, and the messages between the two."""

from __future__ import annotations

import contextlib
import os
import re
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from inflight.core.types.sampling import GrammarKind

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

STACK_BYTES = 16 << 20  # of the thread that compiles here
MAX_LEXER_STATES = 20_000  # of the automaton that reads a text; of about 2 kB
MAX_SYMBOLS = 200_000  # of its rules
STEP_LEXER_FUEL = 200_000  # of one mask: about 14 ms; the first of a hundred optional properties needs 150,000
NICE = 10
_LONGEST = 300  # characters
_WITHIN = re.compile(r"^at \d+\(\d+\): failed to compile JSON schema: ")  # of a grammar that a client has not seen
ALLOWS_NOTHING = "it allows no text that ends: it refers to itself without end, or contradicts itself"
_TOO_MANY = "more can follow at one place than is kept track of (2,000 items; an optional property takes 4); give less"


def lower_priority(nice: int, thread: int) -> None:
    """Lower a thread's priority by its system id, where the system lets threads of a process differ in that."""
    with contextlib.suppress(AttributeError, OSError):
        os.setpriority(os.PRIO_PROCESS, thread, nice)


class GrammarError(ValueError):
    """A grammar cannot be used; the sentence, without its subject, says why."""


class GrammarNotNow(GrammarError):
    """A grammar cannot be compiled at the moment, for a reason that passes and is not its own."""


def is_unsatisfiable(error: GrammarError) -> bool:
    """Return whether the library found that no text is valid, which no wider form mends."""
    return "Unsatisfiable" in str(error) or ALLOWS_NOTHING in str(error)


def client_sentence(sentence: str) -> str:
    """Return the library's error for a client: one line, which holds the reason."""
    lines = sentence.strip().split("\n")
    first = lines[0]
    if "NoExtensionBias" in first:
        return first.replace("NoExtensionBias", ALLOWS_NOTHING)[:_LONGEST]
    if "Current row has" in first:
        return _TOO_MANY
    first = _WITHIN.sub("a JSON schema in it: ", first)
    reason = next((one for one in reversed(lines[1:]) if one.startswith("error: ")), None)
    if reason is None:
        return first[:_LONGEST]
    # Of a regular expression: what comes before shows it, and the place.
    reason = reason.removeprefix("error: ")[: _LONGEST // 2]
    return f"{first[: _LONGEST - len(reason)].removesuffix(':')}: {reason}"


def compiled(tokenizer: LLTokenizer, source: str) -> LLMatcher:
    """Return a matcher at the beginning of a grammar whose first mask is known. Raises GrammarError."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(
        max_lexer_states=MAX_LEXER_STATES,
        max_grammar_size=MAX_SYMBOLS,
        step_lexer_fuel=STEP_LEXER_FUEL,
        verbose_errors=False,
    )
    matcher = LLMatcher(tokenizer, source, log_level=0, limits=limits)
    if matcher.is_error():
        raise GrammarError(f"cannot be used: {client_sentence(matcher.get_error())}")
    matcher.compute_bitmask()
    if matcher.is_error():
        raise GrammarError(f"cannot be computed: {client_sentence(matcher.get_error())}")
    return matcher


# -- messages: msgpack on a socket
class CompileJob(Struct, frozen=True, tag="compile"):
    """Compile this grammar; the verdict bears the same number."""

    number: int
    kind: GrammarKind
    source: str


class CancelJob(Struct, frozen=True, tag="cancel"):
    """End the job; no verdict comes."""

    number: int


class Verdict(Struct, frozen=True):
    """The outcome of one job.

    source: the grammar in the library's words, which the engine compiles again; None: `error` says why there is none.
    passes: the error is none of the grammar's own; asking again may help.
    checks: schemas, as JSON, that its texts are checked under once they are whole (`GrammarSource`).
    memory_bytes: that the compiled grammar takes. seconds: of processor time that compiling took.
    """

    number: int
    source: str | None = None
    checks: dict[str, str] = {}
    error: str | None = None
    passes: bool = False
    memory_bytes: int = 0
    seconds: float = 0.0


encode = msgspec.msgpack.Encoder().encode
decode_order = msgspec.msgpack.Decoder(CompileJob | CancelJob).decode
decode_verdict = msgspec.msgpack.Decoder(Verdict).decode
