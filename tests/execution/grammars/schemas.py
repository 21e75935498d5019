"""JSON schemas drawn at random, with bounds, so that every text that follows one comes to an end."""

from __future__ import annotations

import random
from typing import Any

Schema = dict[str, Any]


def drawn_schema(chance: random.Random, depth: int = 3) -> Schema:
    kinds = ["string", "integer", "number", "enum", "boolean", "null"] + ["object", "array", "anyOf"] * (depth > 0) * 2
    match chance.choice(kinds):
        case "string":
            return _string(chance)
        case "integer":
            least = chance.randrange(-50, 50)
            return {"type": "integer", "minimum": least, "maximum": least + chance.randrange(200)}
        case "number":
            return {"type": "number", "minimum": 0, "exclusiveMaximum": chance.choice([1, 10])}
        case "enum":
            return {"enum": chance.sample(["red", "green", 'with "quotes"', "ünï", 3, 4.5, None, True, "日本"], 3)}
        case "object":
            names = chance.sample(["a", "name", "größe", "x y", "tags", "n-1"], chance.randrange(1, 4))
            properties = {name: drawn_schema(chance, depth - 1) for name in names}
            required = [name for name in names if chance.random() < 0.7]
            return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
        case "array":
            least = chance.randrange(2)
            most = least + chance.randrange(3)
            return {"type": "array", "items": drawn_schema(chance, depth - 1), "minItems": least, "maxItems": most}
        case "anyOf":
            return {"anyOf": [drawn_schema(chance, depth - 1) for _ in range(2)]}
        case kind:
            return {"type": kind}


def _string(chance: random.Random) -> Schema:
    return chance.choice(
        [
            {"type": "string", "maxLength": chance.randrange(12)},
            {"type": "string", "pattern": "^[a-c]{2,5}$"},
            {"type": "string", "format": "date"},
            {"type": "string", "enum": ["one", "two"]},
        ]
    )
