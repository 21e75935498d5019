"""Convert the text of a value between marks to JSON, by the types that its schema allows."""

from __future__ import annotations

import json

from inflight.frontend.parsers.json_text import json_value
from inflight.frontend.parsers.tool_schema import JsonType, type_of


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
