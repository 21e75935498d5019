"""A request's grammar in llguidance's words, or why it has none.

Knows the forms that clients write: schemas, regular expressions, choices, Lark and GBNF grammars, structural tags. What
they match, llguidance knows; what it finds wrong when it compiles is told by `compiled_grammars`.
"""

from __future__ import annotations

import json
from typing import Any

from llguidance import LLMatcher, StructTag
from llguidance.gbnf_to_lark import any_to_lark

from inflight.core.types.grammar import JSON_WHITESPACE, MOST_SOURCE_CHARACTERS, Grammar
from inflight.execution.grammars.added_texts import unforced, with_names_as_ids
from inflight.execution.grammars.errors import GrammarError
from inflight.execution.grammars.vocabulary import Vocabulary

_TAG_KEYS = {"begin", "schema", "end"}


def grammar_source(grammar: Grammar, vocabulary: Vocabulary) -> str:
    """Return a grammar as the library takes it. Raises GrammarError."""
    return unforced(_source(grammar, vocabulary), vocabulary)


def _source(grammar: Grammar, vocabulary: Vocabulary) -> str:
    source = grammar.source
    if len(source) > MOST_SOURCE_CHARACTERS:
        raise GrammarError(
            f"has {len(source):,} characters, and at most {MOST_SOURCE_CHARACTERS:,} are read; make it shorter"
        )
    match grammar.kind:
        case "json_schema":
            return _of_schema(_parsed(source))
        case "json_object":
            return _of_schema({"type": "object"})
        case "regex":
            return LLMatcher.grammar_from_regex(source)
        case "choice":
            return _of_choice(_parsed(source))
        case "lark":
            return _of_lark(source, vocabulary)
        case "structural_tag":
            return _of_structural_tag(_parsed(source), vocabulary)
        case "none":
            raise GrammarError("binds nothing; leave it out")


def _parsed(source: str) -> Any:
    try:
        return json.loads(source)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"is not JSON that can be read: {error}") from None


def _of_schema(schema: Any) -> str:
    if schema is True:  # anything
        schema = {}
    if not isinstance(schema, dict):
        raise GrammarError(f"is {json.dumps(schema)[:40]}, which is no schema; give an object")
    try:
        return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides={"whitespace_pattern": JSON_WHITESPACE})
    except ValueError as error:
        raise GrammarError(str(error)) from None


def _of_choice(texts: Any) -> str:
    if not isinstance(texts, list) or not texts or not all(isinstance(one, str) for one in texts):
        raise GrammarError("is no list of texts; give one text or more")
    return LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(one) for one in texts))


def _of_lark(source: str, vocabulary: Vocabulary) -> str:
    try:
        return LLMatcher.grammar_from_lark(with_names_as_ids(any_to_lark(source), vocabulary))
    except Exception as error:  # whatever the conversion of GBNF stumbles over
        raise GrammarError(f"is neither Lark nor GBNF: {error}") from None


def _of_structural_tag(tag: Any, vocabulary: Vocabulary) -> str:
    """{"structures": [{"begin": …, "schema": …, "end": …}], "triggers": […]}: free text, in which whatever begins with
    a trigger is one of the structures."""
    structures, triggers = (tag.get("structures"), tag.get("triggers")) if isinstance(tag, dict) else (None, None)
    if not isinstance(structures, list) or not isinstance(triggers, list) or not structures or not triggers:
        raise GrammarError('is no structural tag; give {"structures": […], "triggers": […]}, one of each or more')
    tags = [_structure(one, triggers) for one in structures]
    has_tokens = all(one.trigger in vocabulary.special for one in tags)
    return with_names_as_ids(StructTag.to_grammar(tags, assume_special=has_tokens), vocabulary)


def _structure(one: Any, triggers: list[Any]) -> StructTag:
    if not isinstance(one, dict) or not set(one) <= _TAG_KEYS or not isinstance(one.get("begin"), str):
        raise GrammarError(f"has the structure {json.dumps(one)[:80]}; give it begin, schema and end, and nothing else")
    begin, schema, end = one["begin"], one.get("schema", {}), one.get("end", "")
    if not isinstance(schema, dict) or not isinstance(end, str):
        raise GrammarError(f"has a structure that begins with {begin[:40]!r} whose schema is no object or end no text")
    trigger = next((text for text in triggers if isinstance(text, str) and text and begin.startswith(text)), None)
    if trigger is None:
        raise GrammarError(f"has a structure that begins with {begin[:40]!r}, but no trigger that this begins with")
    schema = {**schema, "x-guidance": {"whitespace_pattern": JSON_WHITESPACE}}
    return StructTag(trigger=trigger, begin=begin, grammar=schema, end=end)
