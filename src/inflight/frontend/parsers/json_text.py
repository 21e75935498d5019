"""Read JSON text that a model wrote, without the constants NaN and Infinity, which only Python's reader accepts."""

from __future__ import annotations

import json
from typing import Any


def json_value(text: str) -> Any:
    """Read a value. Raises ValueError for invalid JSON, also for JSON that is nested too deeply."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("the text is nested too deeply") from None


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")
