"""What the text of an output must be like, as a client has said it: a schema, a regular expression, a grammar.

Knows the words that came; what they mean, and which tokens may come next, `execution.grammars` knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Between the parts of a JSON text: nothing, a space, or a new line with its indentation. Without a bound a model that
# is unsure writes spaces until its tokens are used up.
JSON_WHITESPACE = r"( |\n[ \t]{0,32})"
# One of so many, all property names, compiles in about two seconds.
MAX_SOURCE_CHARS = 2**17
GrammarKind = Literal["none", "json_schema", "json_object", "regex", "choice", "lark", "structural_tag"]


@dataclass(frozen=True, slots=True)
class Grammar:
    """kind, source: of the output, or of what comes behind the first occurrence of `after_token_ids` (the end of
    reasoning). A choice's source is a JSON list of texts; "none" has no source and binds nothing. max_tokens_before:
    so many output tokens may come before those, then they are forced. opening_token_ids: an output that begins with
    them has reasoning; one that begins otherwise has none, and follows the grammar from its first token on. Empty: the
    reasoning has begun in the prompt."""

    kind: GrammarKind
    source: str = ""
    after_token_ids: tuple[int, ...] = ()
    max_tokens_before: int | None = None
    opening_token_ids: tuple[int, ...] = ()
