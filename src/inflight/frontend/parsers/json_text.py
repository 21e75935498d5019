"""JSON text that a model wrote. Knows that Python's reader takes words for numbers that JSON does not have."""

from __future__ import annotations

import json
from typing import Any


def json_value(text: str) -> Any:
    """Raises ValueError for what is no JSON, or too deep to be read."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("the text is nested too deeply") from None


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")
