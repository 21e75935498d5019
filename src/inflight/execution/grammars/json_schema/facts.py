"""Find what excludes what in schemas, by jsonschema-rs's canonical forms: for sure, or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from inflight.execution.grammars.json_schema.dialect import TYPES, Schema, in_one_dialect
from inflight.execution.grammars.json_schema.texts import other_than

if TYPE_CHECKING:
    from jsonschema_rs import CanonicalSchema

ALL_TYPES = frozenset(TYPES)
MAX_DEFINITIONS = 30  # that a schema whose opposite is found may refer to: each takes time
MAX_REFERENCES = 3  # one behind the other, that are followed where schemas are compared; a property counts as one
MAX_OPPOSITE = 10_000  # characters of what is valid where a schema is not


def types_of(schema: Mapping[str, Any]) -> frozenset[str]:
    """Return the types that the keyword `type` allows; a number may be whole."""
    given = schema.get("type")
    if given is None:
        return ALL_TYPES
    types = {given} if isinstance(given, str) else set(given)
    return frozenset(types | {"integer"} if "number" in types else types)


def overlaps(schemas: Sequence[Schema], definitions: Mapping[str, Schema]) -> dict[int, set[int]]:
    """Return, by the index of each schema, the others that may be valid at the same time."""
    found: dict[int, set[int]] = {}
    forms = [_canonical(_outline(one, definitions, MAX_REFERENCES), {}) for one in schemas]
    for first, one in enumerate(forms):
        for second, other in enumerate(forms[:first]):
            if not _are_disjoint(one, other):
                found.setdefault(first, set()).add(second)
                found.setdefault(second, set()).add(first)
    return found


def _are_disjoint(one: CanonicalSchema | None, other: CanonicalSchema | None) -> bool:
    from jsonschema_rs.canonical import Satisfiability

    if one is None or other is None:
        return False
    try:
        return one.intersect(other).satisfiability() == Satisfiability.NO
    except ValueError:
        return False


def _outline(schema: Schema, definitions: Mapping[str, Schema], num_references: int) -> Schema:
    """Return a schema that says less, in which so many references are followed and others are left out."""
    if isinstance(schema, bool):
        return schema
    kept, parts = dict[str, Any](), list[Schema]()
    for name, value in schema.items():
        if name == "$ref" and num_references:
            parts.append(_outline(definitions[value.rpartition("/")[2]], definitions, num_references - 1))
        elif name == "allOf":
            parts += [_outline(one, definitions, num_references) for one in value]
        elif name in ("anyOf", "oneOf"):
            parts.append({"anyOf": [_outline(one, definitions, num_references) for one in value]})
        elif name == "properties":
            within = max(0, num_references - 1)
            kept[name] = {key: _outline(one, definitions, within) for key, one in value.items()}
        elif not name.startswith("unevaluated") and '"$ref"' not in json.dumps({name: value}):
            kept[name] = value
    for name, beside in (("additionalProperties", "patternProperties"), ("items", "prefixItems")):
        if beside in schema and beside not in kept:  # by which it says less
            kept.pop(name, None)
    return {**kept, "allOf": parts} if parts else kept


def negated(schema: Schema, definitions: Mapping[str, Schema]) -> Schema | None:
    """Return what is valid exactly where `schema` is not; None where that has no form without `not`, or a long one."""
    form = _canonical(schema, definitions)
    try:
        found: Any = None if form is None else _without_not(form.negate().to_json_schema())
    except ValueError:
        return None
    if isinstance(found, dict):
        found = {name: one for name, one in found.items() if name not in ("$schema", "$defs")}
    return found if len(json.dumps(found)) <= MAX_OPPOSITE else None


def _canonical(schema: Schema, definitions: Mapping[str, Schema]) -> CanonicalSchema | None:
    from jsonschema_rs import Draft202012, ReferencingError, canonicalize

    used = reached(schema, definitions)
    if len(used) > MAX_DEFINITIONS:
        return None
    whole = {**schema, "$defs": used} if used and isinstance(schema, dict) else schema
    try:
        return canonicalize(whole, draft=Draft202012, validate_formats=True, offline=True)
    except (ReferencingError, ValueError):
        return None


def reached(schema: Schema, definitions: Mapping[str, Schema]) -> dict[str, Schema]:
    """Return the definitions that a schema refers to, directly or through others."""
    found: dict[str, Schema] = {}
    left: list[Any] = [schema]
    while left and len(found) <= MAX_DEFINITIONS:
        one = left.pop()
        if isinstance(one, dict):
            reference = one.get("$ref")
            name = reference.rpartition("/")[2] if isinstance(reference, str) else ""
            if name in definitions and name not in found:
                found[name] = definitions[name]
                left.append(definitions[name])
            left += one.values()
        elif isinstance(one, list):
            left += one
    return found


def _without_not(schema: Any) -> Any:
    """Return a schema with excluded texts as a pattern of all others. Raises ValueError for any other `not`."""
    if isinstance(schema, list):
        return [_without_not(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("not") == {}:
        return False
    kept = dict[str, Any]()
    for name, value in schema.items():
        if name in ("properties", "patternProperties"):
            kept[name] = {key: _without_not(one) for key, one in value.items()}
        elif name == "not":
            texts = value.get("enum") if set(value) == {"enum"} and "pattern" not in schema else None
            pattern = other_than(texts) if texts and all(isinstance(one, str) for one in texts) else None
            if pattern is None:
                raise ValueError(f"{value} has no opposite")
            kept["pattern"] = pattern
        elif name != "$defs":
            kept[name] = value if name in ("const", "enum") else _without_not(value)
    return kept


def contradiction(schema: Any) -> str | None:
    """Return the keywords and places by which a schema allows nothing; None where they are not found."""
    from jsonschema_rs import Draft202012, ReferencingError
    from jsonschema_rs.canonical import UnsatisfiableReason, find_unsatisfiable

    try:
        found = find_unsatisfiable(in_one_dialect(schema), draft=Draft202012, validate_formats=True, offline=True)
    except (ReferencingError, ValueError):
        return None
    causes = {
        place: [reason.cause] if isinstance(reason, UnsatisfiableReason.Empty) else reason.causes
        for place, reason in found.items()
        if isinstance(reason, UnsatisfiableReason.Empty | UnsatisfiableReason.Conflict)
    }
    place: str | None = "" if "" in causes else None
    said: dict[str, list[str]] = {}
    while place is not None:  # the innermost part by which all around it allows nothing
        said = {}
        for cause in causes[place]:
            said.setdefault(cause.pointer, []).extend(cause.keywords)
        parts = tuple(f"{at}/{name}/" for at, names in said.items() for name in names)
        place = min((at for at in causes if f"{at}/".startswith(parts)), key=len, default=None)
    for names in said.values():
        if len(names) > 1 and "type" in names:
            names.remove("type")
    return ", ".join(f"{' and '.join(names)} at #{at}" if names else f"#{at}" for at, names in said.items()) or None
