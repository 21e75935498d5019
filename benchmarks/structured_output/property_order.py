"""A value with its properties in the order in which a grammar of its schema writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from inflight.execution.grammars.compiling import GrammarError
from inflight.execution.grammars.json_schema.answer_check import validator

Schema = dict[str, Any] | bool
MAX_DEPTH = 40  # of references within one another


class PropertyOrder:
    def __init__(self, lowered: str) -> None:
        """lowered: a schema as `lower` put it, whose order the library follows."""
        self._root: dict[str, Any] = json.loads(lowered)
        self._definitions: dict[str, Schema] = self._root.get("$defs", {})
        self._valid: dict[int, Any] = {}  # validators, by the identity of a schema

    def ordered(self, value: Any) -> Any:
        return self._ordered(value, [self._root])

    def _ordered(self, value: Any, schemas: Sequence[Schema]) -> Any:
        if not isinstance(value, dict | list):
            return value
        parts = self._parts(value, schemas, 0)
        listed = next((one for part in parts for one in part.get("enum", ()) if one == value), None)
        if listed is not None:
            return listed
        if isinstance(value, list):
            return [self._ordered(one, [_item(part, place) for part in parts]) for place, one in enumerate(value)]
        names = [name for part in parts for name in part.get("properties", ())]
        names += [name for part in parts for name in part.get("required", ())]
        names = [name for name in dict.fromkeys([*names, *value]) if name in value]
        return {name: self._ordered(value[name], [one for p in parts for one in _members(p, name)]) for name in names}

    def _parts(self, value: Any, schemas: Sequence[Schema], depth: int) -> list[dict[str, Any]]:
        """Schemas that hold of a value, in the order of their keywords; of alternatives those that do."""
        parts: list[dict[str, Any]] = []
        for schema in schemas:
            if isinstance(schema, bool) or depth > MAX_DEPTH:
                continue
            own: dict[str, Any] = {}
            for name, one in schema.items():
                if name in ("$ref", "allOf", "anyOf"):
                    parts.append(own)
                    own = {}
                    inner = [self._definitions[one.rpartition("/")[2]]] if name == "$ref" else one
                    valid = [way for way in inner if name != "anyOf" or self._is_valid(way, value)]
                    parts += self._parts(value, valid, depth + 1)
                else:
                    own[name] = one
            parts.append(own)
        return parts

    def _is_valid(self, schema: Schema, value: Any) -> bool:
        if isinstance(schema, bool):
            return schema
        if id(schema) not in self._valid:
            try:
                self._valid[id(schema)] = validator({**schema, "$defs": self._definitions}).is_valid
            except GrammarError:
                return True
        return bool(self._valid[id(schema)](value))


def _item(schema: dict[str, Any], place: int) -> Schema:
    first = schema.get("prefixItems", [])
    item: Schema = first[place] if place < len(first) else schema.get("items", True)
    return item


def _members(schema: dict[str, Any], name: str) -> list[Schema]:
    if name in schema.get("properties", {}):
        return [schema["properties"][name]]
    return [*schema.get("patternProperties", {}).values(), schema.get("additionalProperties", True)]
