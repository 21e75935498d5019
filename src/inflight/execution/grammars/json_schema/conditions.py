"""Put conditions between schemas (`oneOf`, `not`, `if`, dependencies, …) in terms of `allOf` and `anyOf`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from inflight.execution.grammars.json_schema.dialect import Schema, both
from inflight.execution.grammars.json_schema.facts import ALL_TYPES, negated, overlaps

MAX_SPLITS = 4  # choices that hold of one value together; each doubles what the library looks at
MAX_ALTERNATIVES = 100  # each is compared with each other
MAX_EXCLUSIVE = 6  # alternatives of which each excludes all others
_HERE = ("oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas")
_BESIDE = frozenset({"allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas"})
_STATIC = frozenset({"allOf", "$ref"})  # hold of every instance


class Resolved(NamedTuple):
    """A schema without conditions.

    Attributes:
        schema: what is left of it, or False.
        parts: schemas that hold beside it.
        left: keywords that are followed in part or not at all.
        splits_left: how many more choices may hold of the same value.
    """

    schema: Schema
    parts: list[Schema]
    left: list[str]
    splits_left: int


def resolved(schema: dict[str, Any], definitions: Mapping[str, Schema], splits: int) -> Resolved:
    """Return the schema with its conditions in terms of `allOf` and `anyOf`."""
    resolving = _Resolving(schema, definitions, splits)
    return resolving.resolved() if resolving.has_any else Resolved(schema, [], [], splits)


class _Resolving:
    def __init__(self, schema: dict[str, Any], definitions: Mapping[str, Schema], splits: int) -> None:
        self._schema, self._definitions, self._splits = schema, definitions, splits
        self._kept = {name: one for name, one in schema.items() if name not in _HERE}
        self._parts: list[Schema] = []
        self._left: list[str] = []
        self.has_any = len(self._kept) < len(schema) or any(one.startswith("unevaluated") for one in schema)

    def resolved(self) -> Resolved:
        self._unevaluated_items()
        self._unevaluated_properties()
        if "oneOf" in self._schema:
            self._one_of()
        if "not" in self._schema:
            other = negated(self._schema["not"], self._definitions)
            if other is None:
                self._left.append("not")
            else:
                self._parts.append(other)
        if "if" in self._schema:
            self._if()
        for name, names in self._schema.get("dependentRequired", {}).items():
            self._depends("dependentRequired", name, {"required": names})
        for name, one in self._schema.get("dependentSchemas", {}).items():
            self._depends("dependentSchemas", name, one)
        is_impossible = False in self._parts
        return Resolved(False if is_impossible else self._kept, self._parts, self._left, self._splits)

    def _split(self, name: str, ways: list[Schema]) -> None:
        """Let one of the ways hold, where not too much depends on choices already."""
        if self._splits > 0:
            self._splits -= 1
            self._parts.append({"anyOf": ways})
        else:
            self._left.append(name)

    def _if(self) -> None:
        condition = self._schema["if"]
        then, otherwise = self._schema.get("then", True), self._schema.get("else", True)
        if then is True and otherwise is True:
            return
        other = negated(condition, self._definitions)
        if other is None:
            self._left.append("if")
            if otherwise is True:
                return
        first, second = both(condition, then), both(True if other is None else other, otherwise)
        self._split("if", [one for one in (first, second) if one is not False])

    def _depends(self, keyword: str, name: str, then: Schema) -> None:
        if name in self._schema.get("required", ()):
            self._parts.append(then)
            return
        absent: Schema = {
            "anyOf": [{"type": sorted(ALL_TYPES - {"object"})}, {"type": "object", "properties": {name: False}}]
        }
        self._split(keyword, [absent, both({"required": [name]}, then)])

    def _one_of(self) -> None:
        ways = [one for one in self._schema["oneOf"] if one is not False]
        base = {name: one for name, one in self._schema.items() if name in ("type", "properties", "required")}
        if len(ways) <= MAX_ALTERNATIVES:
            together = overlaps([{"allOf": [base, one]} if base else one for one in ways], self._definitions)
        else:
            together = {index: {index} for index in range(len(ways))}
        if together:
            excluding = self._excluding(ways, together) if len(ways) <= MAX_EXCLUSIVE and self._splits > 0 else None
            if excluding is None:
                self._left.append("oneOf")
            else:
                self._splits -= 1
                ways = excluding
        if "anyOf" in self._kept:
            self._parts.append({"anyOf": ways})
        else:
            self._kept = {  # in its place, as the order of properties follows it
                "anyOf" if name == "oneOf" else name: ways if name == "oneOf" else one
                for name, one in self._schema.items()
                if name == "oneOf" or name in self._kept
            }

    def _excluding(self, ways: list[Schema], together: dict[int, set[int]]) -> list[Schema] | None:
        """Return alternatives that each exclude those that may be valid together with it; None where one has no
        opposite."""
        others = {index: negated(ways[index], self._definitions) for index in together}
        if None in others.values():
            return None
        return [
            {"allOf": [one, *(others[other] for other in sorted(together.get(index, ())))]}
            for index, one in enumerate(ways)
        ]

    def _unevaluated_items(self) -> None:
        rest = self._kept.pop("unevaluatedItems", True)
        if rest is True or "items" in self._kept:
            return
        if _BESIDE & set(self._schema) or "contains" in self._schema:
            self._left.append("unevaluatedItems")
        else:
            self._kept["items"] = rest

    def _unevaluated_properties(self) -> None:
        rest = self._kept.pop("unevaluatedProperties", True)
        if rest is True or "additionalProperties" in self._kept:
            return
        beside = _BESIDE & set(self._schema)
        if not beside:
            self._kept["additionalProperties"] = rest
            return
        names, patterns = set[str](), dict[str, Schema]()
        is_exact = self._evaluated(self._schema, names, patterns, set())
        if is_exact is None:
            self._left.append("unevaluatedProperties")
            return
        if not is_exact:
            self._left.append("unevaluatedProperties")
        ordered = list(dict.fromkeys([*self._schema.get("properties", ()), *sorted(names)]))
        closing: dict[str, Any] = {"properties": dict.fromkeys(ordered, True), "additionalProperties": rest}
        self._parts.append({**closing, "patternProperties": patterns} if patterns else closing)

    def _evaluated(self, schema: Schema, names: set[str], patterns: dict[str, Schema], seen: set[int]) -> bool | None:
        """Collect names that some part may look at; whether all of them always are. None: any may be."""
        if isinstance(schema, bool) or id(schema) in seen:
            return True
        is_inner = bool(seen)
        seen.add(id(schema))
        if schema.get("additionalProperties", False) is not False or (is_inner and "unevaluatedProperties" in schema):
            return None
        names.update(schema.get("properties", ()))
        patterns.update(dict.fromkeys(schema.get("patternProperties", ()), True))
        is_exact = not (_BESIDE - _STATIC) & set(schema)
        parts = [*schema.get("allOf", ()), *schema.get("anyOf", ()), *schema.get("oneOf", ())]
        parts += [schema[name] for name in ("if", "then", "else") if name in schema]
        parts += schema.get("dependentSchemas", {}).values()
        if "$ref" in schema:
            parts.append(self._definitions[schema["$ref"].rpartition("/")[2]])
        for part in parts:
            found = self._evaluated(part, names, patterns, seen)
            if found is None:
                return None
            is_exact &= found
        return is_exact
