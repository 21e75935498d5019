"""Items of an array, as the library can follow them."""

from __future__ import annotations

from typing import Any

from inflight.execution.grammars.json_schema.dialect import Schema

KEYWORDS = frozenset(
    [
        "items",
        "prefixItems",
        "minItems",
        "maxItems",
        "uniqueItems",
        "contains",
        "minContains",
        "maxContains",
        "unevaluatedItems",
    ]
)
MAX_ITEMS = 1_000  # as the library writes one behind the other


def listed(schema: dict[str, Any], types: frozenset[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the schema with what the library follows of an array, and the keywords that it leaves to the check."""
    if "array" not in types or not KEYWORDS & set(schema):
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
    """How many different items there can be, where they are listed."""
    if isinstance(items, bool):
        return None
    if "enum" in items or "const" in items:
        return len(items.get("enum", (1,)))
    return {"boolean": 2, "null": 1}.get(str(items.get("type")))
