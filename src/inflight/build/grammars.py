"""What grammars need of a model: its tokens, and those that end an answer.

Knows which engines bind outputs to grammars and why others don't; what is done with them, `execution.grammars` knows.
"""

from __future__ import annotations

from collections.abc import Callable

from inflight.build.end_tokens import find_end_tokens
from inflight.execution.grammars.compiled_grammars import CompiledGrammars
from inflight.execution.grammars.errors import GrammarError
from inflight.execution.grammars.vocabulary import Vocabulary
from inflight.models.spec import ModelSpec
from inflight.text import Tokenizer


def grammars_of(model: ModelSpec, tokenizer: Callable[[], Tokenizer | None], ranks: int) -> CompiledGrammars:
    """tokenizer: asked for when the first grammar comes."""
    return CompiledGrammars(lambda: _vocabulary(model, tokenizer(), ranks))


def _vocabulary(model: ModelSpec, tokenizer: Tokenizer | None, ranks: int) -> Vocabulary:
    """Raises GrammarError."""
    if ranks > 1:
        raise GrammarError(
            f"cannot be used with --tensor-parallel-size {ranks}, whose processes know no grammars; use 1"
        )
    if tokenizer is None:
        raise GrammarError("cannot be used, since this model has no tokenizer that tells what its tokens mean")
    ends = find_end_tokens(model, tokenizer).ids
    if not ends:
        raise GrammarError("cannot be used, since this model names 0 tokens that end an answer")
    known = tokenizer.for_grammars()
    return Vocabulary(known.as_json, known.count, model.vocab_size, tuple(sorted(ends)), known.plain, known.special)
