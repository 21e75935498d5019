"""Texts of a model's added tokens within grammars.

Where one text alone may follow, llguidance tokenizes it and lets the first of these tokens follow alone. Of an added
token that is text (`Vocabulary.plain`) it finds smaller tokens, though the model was trained on the token; of a special
one it may find the token, which no text matches. So a grammar that holds such a text is compiled without forcing:
whatever writes the text may follow. Knows grammars as the library takes them; not what clients write.
"""

from __future__ import annotations

import json
import re

from inflight.execution.grammars.vocabulary import Vocabulary

_EXCLUDED = re.compile(r"~/(?:\\.|[^/\\])*/")  # of texts that a tool's grammar does not let be written
_NO_FORCING = '%llguidance {"no_forcing": true}\n'
_STRING_REGEX_NAME = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?![/*])(?:\\.|[^/\\\n])+/|//[^\n]*|(<[^<>\s\[\]][^<>\n]*>)')


def with_names_as_ids(lark: str, vocabulary: Vocabulary) -> str:
    """Return a grammar with ids in place of tokens' names (`<name>`), which the library's view of them lacks."""

    def written(found: re.Match[str]) -> str:
        token_id = vocabulary.plain.get(found[1], vocabulary.special.get(found[1]))
        return found[0] if token_id is None else f"<[{token_id}]>"

    return _STRING_REGEX_NAME.sub(written, lark)


def unforced(source: str, vocabulary: Vocabulary) -> str:
    """Return a grammar as it is, or without forcing where it holds the text of an added token."""
    searched = _EXCLUDED.sub("", source)
    searched += searched.replace("\\", "")  # JSON and patterns escape some characters
    if not any(text in searched for text in (*vocabulary.plain, *vocabulary.special)):
        return source
    if not source.startswith("{"):  # it is Lark
        return _NO_FORCING + source
    (grammar,) = json.loads(source)["grammars"]
    lark = grammar["lark_grammar"] or f"start: %json {json.dumps(grammar['json_schema'])}"
    return _NO_FORCING + str(lark)
