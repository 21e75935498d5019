"""Whether a client's types accept values, and know their fields: run by the client's own interpreter.

Takes a file with a JSON list of [`module:Type`, value]; says a JSON list of mistakes.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError


def unknown(value: Any, path: str) -> Iterator[str]:
    """Yield the paths of fields that no type names."""
    if isinstance(value, BaseModel):
        yield from (f"{path}.{name}" for name in value.model_extra or ())
        for name in type(value).model_fields:
            yield from unknown(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from unknown(one, f"{path}[{index}]")


def mistakes(name: str, value: Any) -> list[str]:
    module, _, kind = name.partition(":")
    try:
        read = TypeAdapter(getattr(importlib.import_module(module), kind)).validate_python(value)
    except ValidationError as error:
        return [f"{kind}: {error}"]
    return sorted({*unknown(read, kind)})


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print(json.dumps([mistake for name, value in given for mistake in mistakes(name, value)]))
