"""Read the JSON schema of a tool's arguments, for formats that do not write arguments as JSON.

Parsers read the types of properties; an unreadable schema has none. Grammars read alternatives; a keyword that cannot
be enforced is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from msgspec import Struct

from inflight.counted import quoted, shortened

JsonType = Literal["string", "number", "integer", "boolean", "null", "array", "object"]
Schema = Mapping[str, Any]
ANYTHING: Schema = {}

_MAX_DEPTH = 16  # of references and nested alternatives
_DEFINITIONS = ("$defs", "definitions")
_ALTERNATIVES = ("anyOf", "oneOf")
# A keyword without a type constrains values of these types only.
_OF_TYPE: Mapping[JsonType, tuple[str, ...]] = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
}
_REFUSED = (
    *("allOf", "not", "if", "then", "else", "patternProperties", "propertyNames", "minProperties", "maxProperties"),
    *("dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties", "unevaluatedItems", "contains"),
    *("uniqueItems", "$dynamicRef", "$recursiveRef"),
)
_SAYS = {
    *(word for keywords in _OF_TYPE.values() for word in keywords),
    *_REFUSED,
    *_ALTERNATIVES,
    "type",
    "enum",
    "const",
}


class SchemaError(ValueError):
    """Raised for a schema that cannot be enforced in a format's calls."""


class Alternative(Struct, frozen=True):
    """One type that a value may have.

    Attributes:
        type: None: any.
        values: The only allowed values; None: see `schema`.
    """

    type: JsonType | None
    schema: Schema
    values: tuple[Any, ...] | None = None


class Member(Struct, frozen=True):
    name: str
    schema: Schema
    required: bool


class ToolSchema:
    def __init__(self, root: Schema):
        self.root = root
        self._of_properties = _mapping(self._followed(root))

    # -- for parsers: every schema is accepted ----------------------------------------------------------------------

    def types_of(self, name: str) -> frozenset[JsonType]:
        """Return the types of a property's values."""
        known = _mapping(self._of_properties.get("properties"))
        return self.types_in(known.get(name, self._of_properties.get("additionalProperties")))

    def types_in(self, schema: Any) -> frozenset[JsonType]:
        """Return the types of the values that a schema allows; a schema without types means string."""
        found = {*self._types(schema, 0)} or {"string"}
        return frozenset({*found, "integer"} if "number" in found else found)

    def _types(self, schema: Any, depth: int) -> list[JsonType]:
        schema = self._followed(schema)
        if depth > _MAX_DEPTH or not isinstance(schema, dict):
            return []
        values = _values(schema)
        if values is not None:
            return [type_of(value) for value in values]
        within = [one for key in _ALTERNATIVES for one in _sequence(schema.get(key))]
        return [*_own_types(schema), *(found for one in within for found in self._types(one, depth + 1))]

    # -- for grammars -----------------------------------------------------------------------------------------------

    def arguments(self) -> Schema:
        """Return the schema of the arguments' object. Raises SchemaError."""
        found = self.alternatives(self.root)
        if len(found) != 1 or found[0].type != "object" or found[0].values is not None:
            raise SchemaError("is not of one object, as arguments are")
        return found[0].schema

    def members(self, schema: Schema) -> list[Member]:
        """Return the properties of an object. Raises SchemaError."""
        required = _sequence(schema.get("required"))
        properties = _mapping(schema.get("properties"))
        if missing := [name for name in required if name not in [*properties]]:
            raise SchemaError(f"requires {quoted(missing[0])}, which is none of its properties")
        return [Member(name, one, name in required) for name, one in properties.items()]

    def others(self, schema: Schema) -> Schema | None:
        """Return the schema of unnamed properties; None: there are none, as for an object with named ones."""
        others = schema.get("additionalProperties", ANYTHING)
        if schema.get("properties") or schema.get("required") or others is False:
            return None
        return others if isinstance(others, dict) else ANYTHING

    def alternatives(self, schema: Any, depth: int = 0) -> list[Alternative]:
        """Return the alternatives of a value, by type. Raises SchemaError."""
        followed = self._followed(schema)
        if followed is True:
            followed = ANYTHING
        if depth > _MAX_DEPTH or not isinstance(followed, dict):
            raise SchemaError(f"holds {json.dumps(schema)[:60]}, which no value can be read by")
        for keyword in _REFUSED:
            if followed.get(keyword, False) is not False:
                raise SchemaError(f"says {keyword!r}, which cannot be enforced in this format")
        values = _values(followed)
        if values is not None:
            return _by_type(values, _own_types(followed))
        within = [(key, one) for key in _ALTERNATIVES for one in _sequence(followed.get(key))]
        if not within:
            types = _own_types(followed)
            return [Alternative(one, followed) for one in types] if types else [Alternative(None, followed)]
        if any(key in followed for keys in _OF_TYPE.values() for key in keys):
            raise SchemaError(f"says more beside {within[0][0]!r}, which cannot be enforced in this format")
        found = [alternative for _, one in within for alternative in self.alternatives(one, depth + 1)]
        kinds = [one.type for one in found]
        if any(key == "oneOf" for key, _ in within) and (None in kinds or len({*kinds}) < len(kinds)):
            raise SchemaError("says 'oneOf' of values of one type, which cannot be enforced here; say 'anyOf'")
        return found

    def whole(self, schema: Schema) -> Schema:
        """Return the schema with the definitions that its references need."""
        return {**{key: self.root[key] for key in _DEFINITIONS if key in self.root}, **schema}

    def _followed(self, schema: Any) -> Any:
        """Resolve a reference within this schema, and an allOf of one schema."""
        for _ in range(_MAX_DEPTH):
            if not isinstance(schema, dict):
                return schema
            rest = {key: value for key, value in schema.items() if key not in ("$ref", "allOf")}
            if "$ref" in schema:
                schema = _joined(self._found(schema["$ref"]), rest)
            elif len(_sequence(schema.get("allOf"))) == 1:
                schema = _joined(schema["allOf"][0], rest)
            else:
                return schema
        return None

    def _found(self, reference: object) -> Any:
        parts = reference.split("/") if isinstance(reference, str) else []
        if len(parts) != 3 or parts[0] != "#" or parts[1] not in _DEFINITIONS:
            return None
        return _mapping(self.root.get(parts[1])).get(parts[2].replace("~1", "/").replace("~0", "~"))


@lru_cache(256)
def tool_schema(parameters: str) -> ToolSchema:
    """Read the schema of JSON text; invalid JSON is an empty schema."""
    try:
        root = json.loads(parameters)
    except (ValueError, RecursionError):
        root = {}
    return ToolSchema(root if isinstance(root, dict) else {})


def count_of(schema: Schema, word: str) -> int | None:
    """Return the count that a keyword sets; None: not set. Raises SchemaError."""
    count = schema.get(word)
    if count is not None and (type(count) is not int or count < 0):
        raise SchemaError(f"says {shortened(word)!r} {json.dumps(count)[:40]}, which is no count")
    return count


def type_of(value: object) -> JsonType:
    names: dict[type, JsonType] = {bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    return names.get(type(value), "null" if value is None else "string")


def _joined(schema: Any, rest: Schema) -> Any:
    """Join a referenced schema with the keywords beside the reference, which are mostly annotations.

    Constraints on both sides become an allOf, which grammars refuse.
    """
    says = _SAYS & set(rest)
    if not isinstance(schema, dict) or not says:
        return schema
    return {"allOf": [schema, rest]} if says & set(schema) else {**schema, **{key: rest[key] for key in says}}


def _own_types(schema: Schema) -> list[JsonType]:
    named = schema.get("type")
    if named is not None:
        return [one for one in ([named] if isinstance(named, str) else _sequence(named)) if isinstance(one, str)]  # type: ignore[misc]
    return [kind for kind, keywords in _OF_TYPE.items() if any(word in schema for word in keywords)][:1]


def _values(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return _sequence(schema["enum"]) if "enum" in schema else None


def _by_type(values: Sequence[Any], types: Sequence[JsonType]) -> list[Alternative]:
    groups: dict[JsonType, list[Any]] = {}
    for value in values:
        kind = type_of(value)
        if not types or kind in types or (kind == "integer" and "number" in types):
            groups.setdefault(kind, []).append(value)
    if not groups:
        raise SchemaError("allows no value of its own 'enum'")
    return [Alternative(kind, {"enum": found}, tuple(found)) for kind, found in groups.items()]


def _mapping(found: Any) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


def _sequence(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []
