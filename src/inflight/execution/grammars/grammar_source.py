"""Put a request's grammar into llguidance's terms, or say why it has none."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from llguidance import LLMatcher, StructTag
from llguidance.gbnf_to_lark import any_to_lark

from inflight.core.types.sampling import JSON_WHITESPACE, MAX_SOURCE_CHARS, Grammar
from inflight.execution.grammars.compiling import GrammarError, client_sentence
from inflight.execution.grammars.json_schema.lowering import lower
from inflight.execution.grammars.vocabulary import Vocabulary

_TAG_KEYS = {"begin", "schema", "end"}
# Texts, regular expressions and comments are passed over.
_PARTS = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/(?:\\.|[^/\\\n])+/|%json(?![\w])|%lark(?![\w])')
_SPACE = re.compile(r"\s*")
_OPTIONS = "x-guidance"
_EXCLUDED = re.compile(r"~/(?:\\.|[^/\\])*/")  # of texts that a tool's grammar does not let be written
_NO_FORCING = '%llguidance {"no_forcing": true}\n'
_STRING_REGEX_NAME = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?![/*])(?:\\.|[^/\\\n])+/|//[^\n]*|(<[^<>\s\[\]][^<>\n]*>)')


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
    """Read {"structures": [{"begin": …, "schema": …, "end": …}], "triggers": […]}: free text, in which each part that
    begins with a trigger is one of the structures."""
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


# -- schemas within a Lark grammar (`%json {…}`)
def with_lowered_schemas(lark: str, is_wide: bool) -> tuple[str, dict[str, str]]:
    """Return the grammar with its schemas lowered, and those to check by the name of the capture that holds the text.

    Args:
        lark: a grammar that may hold `%json`.
        is_wide: as `lower` takes it.

    Raises:
        GrammarError: a schema is none, or would have to be checked where nothing can be captured.
    """
    written, end = list[str](), 0
    rules: dict[tuple[str, str], str] = {}  # by the lowered schema and the one to check: several may be lowered alike
    name = _unused_name(lark)
    is_nested = False
    for found in _PARTS.finditer(lark):
        is_nested |= found.group() == "%lark"
        if found.group() != "%json" or found.start() < end:
            continue
        start = _SPACE.match(lark, found.end())
        assert start is not None
        schema, after = _schema(lark, start.end())
        written.append(lark[end : found.start()])
        text, check = _lowered(schema, is_wide)
        if check is None:
            written.append(f"%json {text}")
        elif is_nested:
            raise GrammarError("has a schema within %lark that would have to be checked at its end; put it outside")
        else:
            written.append(rules.setdefault((text, check), f"{name}{len(rules)}"))
        end = after
    written.append(lark[end:])
    written += [f'\n{rule}[capture="{rule}"]: %json {text}\n' for (text, _), rule in rules.items()]
    return "".join(written), {rule: check for (_, check), rule in rules.items()}


def _unused_name(lark: str) -> str:
    name = "checked_json_"
    while name in lark:
        name += "x_"
    return name


def _schema(lark: str, at: int) -> tuple[Any, int]:
    try:
        return json.JSONDecoder().raw_decode(lark, at)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"has a %json that is not JSON that can be read: {error}") from None


def _lowered(schema: Any, is_wide: bool) -> tuple[str, str | None]:
    options = schema.get(_OPTIONS, {}) if isinstance(schema, dict) else {}
    try:
        text, check, escapes = lower(schema, is_wide)
    except GrammarError as error:
        raise GrammarError(f"has a JSON schema that {error}") from None
    options = {"json_allowed_escapes": escapes} | options if isinstance(options, dict) else options
    return json.dumps({**json.loads(text), _OPTIONS: options}), check


# -- texts of added tokens
# Where one text alone may follow, llguidance tokenizes it and lets the first of these tokens follow alone. Of an added
# token that is text (`Vocabulary.plain`) it finds smaller tokens, though the model was trained on the token; of a
# special one it may find the token, which no text matches. A grammar with such a text is compiled without forcing.
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
