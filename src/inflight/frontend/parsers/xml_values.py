"""What a value is that stands between marks as text. Knows the types that it may have; not where it stands."""

from __future__ import annotations

import json

from inflight.frontend.parsers.json_text import json_value
from inflight.frontend.parsers.tool_schema import JsonType, type_of


def as_json(text: str, types: frozenset[JsonType]) -> str:
    """What a value that may be more than a string is, as JSON."""
    text = text.strip()
    spelled = text.lower() if text.lower() in ("true", "false", "null") else "null" if text == "None" else text
    try:
        value = json_value(spelled)
    except ValueError:
        return json.dumps(text, ensure_ascii=False)
    # A string in quotes is a string of quotes where strings are written without.
    if "string" in types and (isinstance(value, str) or type_of(value) not in types):
        return json.dumps(text, ensure_ascii=False)
    return spelled
