"""A request's grammar in llguidance's words, or why it has none.

Knows the forms that clients write: schemas, regular expressions, choices, Lark and GBNF grammars, structural tags. What
they match, llguidance knows; what it finds wrong when it compiles `compiled_grammars` reports.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from llguidance import LLMatcher, StructTag
from llguidance.gbnf_to_lark import any_to_lark

from inflight.core.types.sampling import JSON_WHITESPACE, MAX_SOURCE_CHARS, Grammar
from inflight.execution.grammars.added_texts import unforced, with_names_as_ids
from inflight.execution.grammars.embedded_schemas import with_lowered_schemas
from inflight.execution.grammars.errors import GrammarError, client_sentence
from inflight.execution.grammars.json_schema.lowering import lower
from inflight.execution.grammars.vocabulary import Vocabulary

_TAG_KEYS = {"begin", "schema", "end"}


class GrammarSource(NamedTuple):
    """A grammar as the library takes it.

    Attributes:
        text: for the library's matcher.
        checks: schemas, as JSON, that texts must be valid under once they are whole, by the capture that holds a text;
            by "" where it is the whole output. Empty where the grammar is as strict as what was asked for.
    """

    text: str
    checks: Mapping[str, str] = {}


def grammar_source(grammar: Grammar, vocabulary: Vocabulary, is_wide: bool = False) -> GrammarSource:
    """Return a grammar as the library takes it. Raises GrammarError.

    Args:
        grammar: as the client sent it.
        vocabulary: the model's tokens.
        is_wide: whether schemas are put so that the library takes them in any case (`lower`).
    """
    source = _source(grammar, vocabulary, is_wide)
    return source._replace(text=unforced(source.text, vocabulary))


def explained(grammar: Grammar, error: GrammarError) -> GrammarError:
    """Return why no text follows a grammar: the keyword of its schema and its place, where they are found."""
    from inflight.execution.grammars.json_schema.facts import contradiction

    found = contradiction(_parsed(grammar.source)) if grammar.kind == "json_schema" else None
    if found is None:
        return error
    reason = str(error).removeprefix("cannot be used: ")
    return GrammarError(f"allows nothing, because of {found} ({reason}); change it")


def _source(grammar: Grammar, vocabulary: Vocabulary, is_wide: bool) -> GrammarSource:
    source = grammar.source
    if len(source) > MAX_SOURCE_CHARS:
        raise GrammarError(
            f"has {len(source):,} characters, and at most {MAX_SOURCE_CHARS:,} are read; make it shorter"
        )
    match grammar.kind:
        case "json_schema":
            return _of_schema(_parsed(source), is_wide)
        case "json_object":
            return _of_schema({"type": "object"}, is_wide)
        case "regex":
            return GrammarSource(LLMatcher.grammar_from_regex(source))
        case "choice":
            return GrammarSource(_of_choice(_parsed(source)))
        case "lark":
            return _of_lark(source, vocabulary, is_wide)
        case "structural_tag":
            return _of_structural_tag(_parsed(source), vocabulary, is_wide)
        case "none":
            raise GrammarError("allows everything; leave it out")


def _parsed(source: str) -> Any:
    try:
        return json.loads(source)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"is not JSON that can be read: {error}") from None


def _of_schema(schema: Any, is_wide: bool) -> GrammarSource:
    lowered = lower(schema, is_wide)
    try:
        text = LLMatcher.grammar_from_json_schema(
            lowered.text, overrides={"whitespace_pattern": JSON_WHITESPACE, "json_allowed_escapes": lowered.escapes}
        )
    except ValueError as error:
        raise GrammarError(str(error)) from None
    return GrammarSource(text, {} if lowered.check is None else {"": lowered.check})


def _of_choice(texts: Any) -> str:
    if not isinstance(texts, list) or not texts or not all(isinstance(one, str) for one in texts):
        raise GrammarError("is no list of texts; give one text or more")
    return LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(one) for one in texts))


def _of_lark(source: str, vocabulary: Vocabulary, is_wide: bool) -> GrammarSource:
    try:
        lark = with_names_as_ids(any_to_lark(source), vocabulary)
    except Exception as error:  # whatever the conversion of GBNF stumbles over
        raise GrammarError(f"is neither Lark nor GBNF: {client_sentence(str(error))}") from None
    lowered, checks = with_lowered_schemas(lark, is_wide)
    return GrammarSource(LLMatcher.grammar_from_lark(lowered), checks)


def _of_structural_tag(tag: Any, vocabulary: Vocabulary, is_wide: bool) -> GrammarSource:
    """{"structures": [{"begin": …, "schema": …, "end": …}], "triggers": […]}: free text, in which whatever begins with
    a trigger is one of the structures."""
    structures, triggers = (tag.get("structures"), tag.get("triggers")) if isinstance(tag, dict) else (None, None)
    if not isinstance(structures, list) or not isinstance(triggers, list) or not structures or not triggers:
        raise GrammarError('is no structural tag; give {"structures": […], "triggers": […]}, one of each or more')
    tags = [_structure(one, triggers) for one in structures]
    has_tokens = all(one.trigger in vocabulary.special for one in tags)
    lark = with_names_as_ids(StructTag.to_grammar(tags, assume_special=has_tokens), vocabulary)
    return GrammarSource(*with_lowered_schemas(lark, is_wide))


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
