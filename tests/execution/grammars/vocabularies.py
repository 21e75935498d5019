"""The tokens of a tokenizer, as an engine gives them to grammars."""

from __future__ import annotations

from inflight.execution.grammars.vocabulary import Vocabulary
from inflight.text import Tokenizer


def vocabulary_of(tokenizer: Tokenizer, size: int, *end_token_ids: int) -> Vocabulary:
    known = tokenizer.for_grammars()
    return Vocabulary(known.as_json, known.count, size, end_token_ids, known.plain, known.special)
