"""Values that a model wrote: read as JSON, without the constants NaN and Infinity, which only Python's reader accepts;
and text between marks as JSON, by the types that its schema allows."""

from __future__ import annotations

import json
from typing import Any

from inflight.frontend.parsers.tool_schema import JsonType, type_of


def json_value(text: str) -> Any:
    """Read a value. Raises ValueError for invalid JSON, also for JSON that is nested too deeply."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("the text is nested too deeply") from None


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def as_json(text: str, types: frozenset[JsonType]) -> str:
    """Convert a value that may have other types than string to JSON."""
    text = text.strip()
    spelled = text.lower() if text.lower() in ("true", "false", "null") else "null" if text == "None" else text
    try:
        value = json_value(spelled)
    except ValueError:
        return json.dumps(text, ensure_ascii=False)
    # Strings are written without quotes here, so quotes belong to the string.
    if "string" in types and (isinstance(value, str) or type_of(value) not in types):
        return json.dumps(text, ensure_ascii=False)
    return spelled
