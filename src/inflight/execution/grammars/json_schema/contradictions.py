"""Where a schema that nothing satisfies contradicts itself: a keyword and its place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llguidance import LLMatcher

from inflight.execution.grammars.errors import GrammarError, is_unsatisfiable
from inflight.execution.grammars.json_schema.dialect import escaped, in_one_dialect
from inflight.execution.grammars.json_schema.lowering import lower

MAX_TRIALS = 60  # schemas that are compiled to find it


def contradiction(schema: Any) -> str | None:
    """Return the keyword without which a schema could be satisfied, and its place; None where it is not found."""
    whole = in_one_dialect(schema)
    definitions = whole.pop("$defs", {})
    trials = iter(range(MAX_TRIALS))
    part, place = whole, "#"
    while found := _impossible_part(part, definitions, trials):
        part, step = found
        place += step
    for name in part:
        rest = {other: one for other, one in part.items() if other != name}
        if next(trials, None) is not None and not _is_impossible(rest, definitions):
            return f"{name} at {place}"
    return None


def _impossible_part(
    schema: dict[str, Any], definitions: dict[str, Any], trials: Iterator[int]
) -> tuple[dict[str, Any], str] | None:
    """Return a part that must be satisfied and cannot be."""
    for step, part in _needed(schema, definitions):
        if isinstance(part, dict) and next(trials, None) is not None and _is_impossible(part, definitions):
            return part, step
    return None


def _needed(schema: dict[str, Any], definitions: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name in properties:
            yield f"/properties/{escaped(name)}", properties[name]
    if schema.get("minItems", 0) > len(schema.get("prefixItems", ())) and "items" in schema:
        yield "/items", schema["items"]
    for place, part in enumerate(schema.get("allOf", ())):
        yield f"/allOf/{place}", part


def _is_impossible(schema: dict[str, Any], definitions: dict[str, Any]) -> bool:
    """Whether the library, or what is said to it, finds that nothing satisfies a schema."""
    try:
        text = lower({**schema, "$defs": definitions}).text
    except GrammarError as error:
        return is_unsatisfiable(error)
    return "Unsatisfiable" in LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(text))
