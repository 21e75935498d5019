"""Put items of arrays, and names and counts of objects' properties, as the library can follow them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inflight.execution.grammars.json_schema.dialect import Schema, both
from inflight.execution.grammars.json_schema.texts import LENGTHS, is_followed, listed, without_look_around

ARRAY_KEYWORDS = frozenset(
    {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "unevaluatedItems"}
    | {"contains", "minContains", "maxContains"}
)
OBJECT_KEYWORDS = frozenset(
    {"properties", "patternProperties", "additionalProperties", "propertyNames", "required"}
    | {"minProperties", "maxProperties"}
)
MAX_ITEMS = 1_000  # as the library writes one behind the other
MAX_REFERENCES = 20  # one behind the other
MAX_PATTERNS = 12  # of names: each is compared with each other
MAX_COUNT = 1_000
MAX_LISTED = 64  # names that one pattern lists
MAX_CHOICES = 24  # optional properties of which one must be there


def array_items(schema: dict[str, Any], types: frozenset[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the schema with what the library follows of an array, and the keywords that it leaves to the check."""
    if "array" not in types or not ARRAY_KEYWORDS & set(schema):
        return schema, []
    kept, left = dict(schema), list[str]()
    if kept.pop("uniqueItems", False) and kept.get("maxItems", 2) > 1:
        left.append("uniqueItems")
        values = _num_values(kept.get("items", True))
        if values is not None and "prefixItems" not in kept:
            kept["maxItems"] = min(kept.get("maxItems", values), values)
    if "contains" in kept:
        low, high = kept.pop("minContains", 1), kept.pop("maxContains", None)
        del kept["contains"]
        if low or high is not None:
            left.append("contains")
            kept["minItems"] = max(kept.get("minItems", 0), low)
    if "minItems" in kept and kept["minItems"] > MAX_ITEMS:
        left.append("minItems")
        kept["minItems"] = MAX_ITEMS
    if "maxItems" in kept and kept["maxItems"] > MAX_ITEMS:
        left.append("maxItems")
        del kept["maxItems"]
    return kept, left


def _num_values(items: Schema) -> int | None:
    """Return how many different items there can be, where they are listed."""
    if isinstance(items, bool):
        return None
    if "enum" in items or "const" in items:
        return len(items.get("enum", (1,)))
    return {"boolean": 2, "null": 1}.get(str(items.get("type")))


def _named(schema: dict[str, Any], names: Schema) -> tuple[dict[str, Any], bool]:
    """Return the schema of an object whose names are valid under `names`, and whether that is all that it asks.

    Names that are listed become properties, so that each is written once.
    """
    if names is True:
        return schema, True
    if names is False:
        return {**schema, "maxProperties": 0}, True
    allowed = names.get("enum", [names["const"]] if "const" in names else None)
    others = schema.get("additionalProperties", True)
    patterns = schema.get("patternProperties", {})
    if allowed is not None:
        allowed = [one for one in allowed if isinstance(one, str)]
        declared = schema.get("properties", {})
        kept = {name: one if name in allowed else False for name, one in declared.items()}
        if patterns:  # whose schemas the new properties would need, too
            return schema, False
        kept |= {name: others for name in allowed if name not in kept}
        return {**schema, "properties": kept, "additionalProperties": False}, set(names) <= {"enum", "const", "type"}
    pattern = _name_pattern(names)
    if pattern is None or patterns or others is False or (schema.get("properties") and others is not True):
        return schema, others is False and not patterns and not schema.get("properties")
    is_all = not schema.get("properties") and set(names) <= {"type", "pattern", *LENGTHS} and _is_one_of(names)
    return {**schema, "patternProperties": {pattern: others}, "additionalProperties": False}, is_all


def _is_one_of(names: dict[str, Any]) -> bool:
    return ("pattern" in names) != (not names.keys().isdisjoint(LENGTHS))


def _name_pattern(names: dict[str, Any]) -> str | None:
    if "pattern" in names:
        return str(names["pattern"])
    if not names.keys().isdisjoint(LENGTHS):
        return rf"^[\s\S]{{{names.get('minLength', 0)},{names.get('maxLength', '')}}}$"
    return None


def _patterned(schema: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the schema with patterns of names that the library follows, and whether they mean the same.

    Names that a pattern lists become properties: the library lets a comma come where a pattern matches no name but
    declared ones, behind which nothing can.
    """
    patterns: dict[str, Schema] = schema["patternProperties"]
    properties: dict[str, Schema] = dict(schema.get("properties", {}))
    others = schema.get("additionalProperties", True)
    same, kept = True, dict[str, Schema]()
    for pattern, one in patterns.items():
        texts = listed(pattern) if len(patterns) <= MAX_PATTERNS else None
        if texts is not None and len(texts) <= MAX_LISTED:
            for name in texts:
                properties[name] = both(properties.get(name, True), one)
        elif without_look_around(pattern) == pattern:
            kept[pattern] = one
        else:  # what it matches may be as it says, or as others are
            others, same = _either(one, others), False
    patterns = kept
    probe = {"type": "object", "patternProperties": dict.fromkeys(patterns, True), "additionalProperties": False}
    if patterns and (len(patterns) > MAX_PATTERNS or not is_followed(probe)):
        if not patterns.keys() - {"", ".*", "^.*$", ".+", "^.+$"}:
            others = next(iter(patterns.values()))
        for one in patterns.values():
            others = _either(one, others)
        patterns, same = {}, False
    kept_schema = {**schema, "patternProperties": patterns, "additionalProperties": others}
    if properties:
        kept_schema["properties"] = properties
    if not patterns:
        del kept_schema["patternProperties"]
    if "additionalProperties" not in schema and others is True:
        del kept_schema["additionalProperties"]
    return kept_schema, same


def _either(one: Schema, other: Schema) -> Schema:
    if one is False or other is False:
        return other if one is False else one
    return True if one is True or other is True else {"anyOf": [one, other]}


def object_members(schema: dict[str, Any], definitions: Mapping[str, Schema]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the ways in which an object may be made, as the library follows them, and the keywords that it leaves.

    The library writes declared properties in their order, each once, and others behind them.
    """
    left: list[str] = []
    if "propertyNames" in schema:
        names = _followed(schema["propertyNames"], definitions)
        schema, is_all = _named({name: one for name, one in schema.items() if name != "propertyNames"}, names)
        if not is_all:
            left.append("propertyNames")
    if "patternProperties" in schema:
        schema, is_all = _patterned(schema)
        if not is_all:
            left.append("patternProperties")
    if "minProperties" in schema or "maxProperties" in schema:
        ways, counts = _counted(schema)
        return ways, left + counts
    return [schema], left


def _followed(schema: Schema, definitions: Mapping[str, Schema]) -> Schema:
    for _ in range(MAX_REFERENCES):
        if isinstance(schema, bool) or set(schema) != {"$ref"}:
            break
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    return schema


def _counted(schema: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Bound the number of properties."""
    low, high = schema.get("minProperties", 0), schema.get("maxProperties")
    kept = {name: one for name, one in schema.items() if name not in ("minProperties", "maxProperties")}
    properties, required = schema.get("properties", {}), set(schema.get("required", ()))
    names = {name for name, one in properties.items() if one is not False} | required
    is_closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    if low <= len(required):
        low = 0
    if high is not None and is_closed and len(names) <= high:
        high = None
    if (high is not None and high < max(len(required), low)) or (is_closed and low > len(names)):
        return [], []
    if not low and high is None:
        return [kept], []
    optional = [name for name in properties if name in names and name not in required]
    if not optional:
        return _counted_others(kept, low, high)
    if low == len(required) + 1 and high is None and len(optional) <= MAX_CHOICES:
        return _with_one_of(kept, optional, is_closed)
    if high == len(required) and not (required and schema.get("patternProperties")):
        others = schema.get("additionalProperties", True)
        closed = {name: properties.get(name, others) for name in [*properties, *required] if name in required}
        kept.pop("patternProperties", None)
        return [{**kept, "properties": closed, "additionalProperties": False}], []
    return [kept], ["minProperties"] * (low > 0) + ["maxProperties"] * (high is not None)


def _counted_others(kept: dict[str, Any], low: int, high: int | None) -> tuple[list[dict[str, Any]], list[str]]:
    """Bound the number of undeclared properties, of which the library may write one twice: that counts once."""
    left = ["minProperties"] * (low > len(kept.get("required", ())) + 1 or low > MAX_COUNT)
    bounds = {"minProperties": min(low, MAX_COUNT)} if low else {}
    if high is not None and high <= MAX_COUNT:
        bounds["maxProperties"] = high
    elif high is not None:
        left.append("maxProperties")
    return [kept | bounds], left


def _with_one_of(
    schema: dict[str, Any], optional: list[str], is_closed: bool
) -> tuple[list[dict[str, Any]], list[str]]:
    """Require one of the optional properties, by the first that is there: each way leaves out those before it."""
    ways: list[Schema] = [
        {"type": "object", "properties": dict.fromkeys(optional[:place], False), "required": [name]}
        for place, name in enumerate(optional)
    ]
    if not is_closed:
        count = len(schema.get("required", ())) + 1
        ways.append({"type": "object", "properties": dict.fromkeys(optional, False), "minProperties": count})
    return [{**schema, "allOf": [*schema.get("allOf", ()), {"anyOf": ways}]}], []
