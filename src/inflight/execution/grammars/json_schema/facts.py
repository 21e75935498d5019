"""Find whether two schemas exclude each other, and what is valid where one is not.

Both answer for sure or not at all: a schema that says more than is understood here excludes and is excluded by nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inflight.execution.grammars.json_schema.dialect import TYPES, Schema
from inflight.execution.grammars.json_schema.texts import other_than

ALL_TYPES = frozenset(TYPES)
MAX_DEPTH = 6  # of properties and references that are looked into
MAX_VALUES = 256
MAX_COMPARED = 5_000  # pairs of schemas


@dataclass
class Facts:
    """Properties of every valid instance.

    Attributes:
        types: those that it may have.
        values: all that it may be, as JSON texts; None where they are not listed.
        required: names of properties that an object has.
        properties: the schemas of an object's properties, each of which holds.
        closed: names that an object may have, where no others are allowed.
    """

    types: frozenset[str] = ALL_TYPES
    values: frozenset[str] | None = None
    required: set[str] = field(default_factory=set)
    properties: dict[str, list[Schema]] = field(default_factory=dict)
    closed: frozenset[str] | None = None


def types_of(schema: Mapping[str, Any]) -> frozenset[str]:
    """Return the types that the keyword `type` allows; a number may be whole."""
    given = schema.get("type")
    if given is None:
        return ALL_TYPES
    types = {given} if isinstance(given, str) else set(given)
    return frozenset(types | {"integer"} if "number" in types else types)


class Comparison:
    """Comparisons of one schema's parts. They end: once MAX_COMPARED were made, nothing is certain."""

    def __init__(self, definitions: Mapping[str, Schema]) -> None:
        self._definitions = definitions
        self._num_left = MAX_COMPARED

    def are_disjoint(self, one: Schema, other: Schema, depth: int = 0) -> bool:
        """Return whether it is certain that nothing is valid under both."""
        if one is False or other is False:
            return True
        self._num_left -= 1
        if depth > MAX_DEPTH or self._num_left < 0 or one is True or other is True:
            return False
        first, second = (_gathered(schema, self._definitions, Facts(), set()) for schema in (one, other))
        return self._exclude(first, second, depth)

    def _exclude(self, first: Facts, second: Facts, depth: int) -> bool:
        types = first.types & second.types
        if not types:
            return True
        if first.values is not None and second.values is not None and not first.values & second.values:
            return True
        if types != {"object"}:
            return False
        for name in first.required | second.required:
            if any(facts.closed is not None and name not in facts.closed for facts in (first, second)):
                return True
            mine, others = first.properties.get(name, ()), second.properties.get(name, ())
            if any(self.are_disjoint(a, b, depth + 1) for a in mine for b in others):
                return True
            if False in mine or False in others:
                return True
        return False


def _gathered(schema: Schema, definitions: Mapping[str, Schema], facts: Facts, seen: set[int]) -> Facts:
    if isinstance(schema, bool) or id(schema) in seen:
        return facts
    seen.add(id(schema))
    facts.types &= types_of(schema)
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if values is not None and len(values) <= MAX_VALUES:
        texts = frozenset(map(key_of, values))
        facts.values = texts if facts.values is None else facts.values & texts
        facts.types &= frozenset().union(*(types_of_value(one) for one in values))
    facts.required.update(schema.get("required", ()))
    for name, one in schema.get("properties", {}).items():
        facts.properties.setdefault(name, []).append(one)
    if schema.get("additionalProperties") is False and not schema.get("patternProperties"):
        names = frozenset(schema.get("properties", ()))
        facts.closed = names if facts.closed is None else facts.closed & names
    if "$ref" in schema:
        _gathered(definitions[schema["$ref"].rpartition("/")[2]], definitions, facts, seen)
    for part in schema.get("allOf", ()):
        _gathered(part, definitions, facts, seen)
    return facts


def key_of(value: Any) -> str:
    """Return a text that equal values share: 1 and 1.0, objects whatever their order."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return {name: _plain(one) for name, one in value.items()} if isinstance(value, dict) else value


def types_of_value(value: Any) -> frozenset[str]:
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case int() | float():
            return frozenset({"number", "integer"})
        case str():
            return frozenset({"string"})
        case list():
            return frozenset({"array"})
    return frozenset({"object"})


def negated(schema: Schema, depth: int = 0) -> Schema | None:
    """Return what is valid exactly where `schema` is not; None where that has no form without `not`."""
    if isinstance(schema, bool):
        return not schema
    if depth > MAX_DEPTH:
        return None
    match sorted(schema):
        case []:
            return False
        case ["not"]:
            found: Schema = schema["not"]
            return found
        case ["type"]:
            return _other_types(types_of(schema))
        case ["const"]:
            return _other_values([schema["const"]])
        case ["enum"]:
            return _other_values(schema["enum"])
        case ["anyOf"]:
            parts = [negated(one, depth + 1) for one in schema["anyOf"]]
            return None if None in parts else {"allOf": parts}
        case ["allOf"]:
            parts = [negated(one, depth + 1) for one in schema["allOf"]]
            return None if None in parts else {"anyOf": parts}
    if set(schema) <= {"type", "required", "properties"}:
        return _other_objects(schema, depth)
    return None


def _other_objects(schema: dict[str, Any], depth: int) -> Schema | None:
    """Return an object without one of the names, or with another value of one of the properties."""
    ways: list[Schema] = []
    for name in schema.get("required", ()):
        ways.append({"type": "object", "properties": {name: False}})
    for name, one in schema.get("properties", {}).items():
        other = negated(one, depth + 1)
        if other is None:
            return None
        if other is not False:
            ways.append({"type": "object", "required": [name], "properties": {name: other}})
    if "type" in schema:
        others = _other_types(types_of(schema))
        if others is None or types_of(schema) != {"object"}:
            return None
        ways.append(others)
    return {"anyOf": ways} if ways else False


def _other_types(types: frozenset[str]) -> Schema | None:
    if "integer" in types and "number" not in types:
        return None
    others = [one for one in TYPES if one not in types and one != "integer"]
    return {"type": others} if others else False


def _other_values(values: list[Any]) -> Schema | None:
    """Return what is none of these texts, true, false and null; None for other values, with too many neighbours."""
    if not all(one is None or isinstance(one, bool | str) for one in values):
        return None
    types = frozenset().union(*(types_of_value(one) for one in values)) if values else frozenset()
    ways: list[Schema] = [{"type": [one for one in TYPES if one not in types and one != "integer"]}]
    if "boolean" in types:
        ways += [{"const": one} for one in (True, False) if one not in values]
    if "string" in types:
        pattern = other_than(one for one in values if isinstance(one, str))
        if pattern is None:
            return None
        ways.append({"type": "string", "pattern": pattern})
    return {"anyOf": ways}
