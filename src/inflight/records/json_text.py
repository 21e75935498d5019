"""JSON text that any parser reads: NaN and infinities, which Python writes as words that are not JSON, are null."""

from __future__ import annotations

import json
import math
from typing import Any


def json_text(value: Any, **style: Any) -> str:
    """Return the text of `json.dumps` in this style, with null for numbers that are not finite."""
    try:
        return json.dumps(value, allow_nan=False, **style)
    except ValueError:  # rare, so it may take another pass
        return json.dumps(_finite(value), allow_nan=False, **style)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
