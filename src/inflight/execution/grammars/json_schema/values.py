"""Values that are listed: those that the rest of their schema allows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from inflight.execution.grammars.json_schema.dialect import Schema
from inflight.execution.grammars.json_schema.facts import key_of, types_of, types_of_value

MAX_EXACT = 2**53  # of numbers that the library reads as floats


def possible(schema: dict[str, Any], definitions: Mapping[str, Schema]) -> tuple[list[Any], list[str]]:
    """Return the values of `enum` and `const` that are valid, and keywords that only the check at the end follows."""
    values = schema.get("enum", [])
    if "const" in schema:
        only = key_of(schema["const"])
        values = [schema["const"]] if "enum" not in schema or only in map(key_of, values) else []
    types = types_of(schema)
    values = list({json.dumps(one): one for one in values if _has_type(one, types)}.values())
    rest = {name: one for name, one in schema.items() if name not in ("enum", "const", "type")}
    left = ["enum"] if any(_is_inexact(one) for one in values) else []
    if rest and values:
        from inflight.execution.grammars.json_schema.answer_check import validator

        is_valid = validator({**rest, "$defs": dict(definitions)}).is_valid
        values = [one for one in values if is_valid(one)]
    return values, left


def _has_type(value: Any, types: frozenset[str]) -> bool:
    if isinstance(value, float):
        return "number" in types or ("integer" in types and value.is_integer())
    return bool(types_of_value(value) & types)


def _is_inexact(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_is_inexact, value))
    if isinstance(value, dict):
        return any(map(_is_inexact, value.values()))
    return not isinstance(value, bool) and isinstance(value, int | float) and abs(value) > MAX_EXACT
