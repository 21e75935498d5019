"""Messages between an engine and the process in which its grammars are compiled first: msgpack on a socket."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from inflight.core.types.sampling import GrammarKind


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
